"""The effects of heads on one answer, against edits and against rotations by hand."""

from typing import Any

import numpy as np
import pytest
import torch

from helpers.any_models import any_model, output_projection
from jarilab.core.errors import UserError
from jarilab.inspect.cause.head_effects import CONTROLS, HeadEffects, turned
from jarilab.inspect.intervene.edits import HeadOff
from jarilab.inspect.intervene.interventions import operate
from jarilab.inspect.study.example import Batch

SITE = "encoder.0"


def first_row(batch: Batch) -> Batch:
    kwargs = {name: value[:1] for name, value in batch.kwargs.items()}
    return Batch(kwargs=kwargs, tokens=batch.tokens[:1])


def read(outputs: Any, rows: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probability of token 3 at the first and last place."""
    logs = outputs.logits[:, [0, -1]].double().log_softmax(-1)
    return logs[..., 3], logs.argmax(-1)


@pytest.fixture(scope="module", params=["gpt2", pytest.param("t5", marks=pytest.mark.slow)])
def measured(request: pytest.FixtureRequest) -> tuple[Any, Batch, HeadEffects]:
    model, batch = any_model(request.param)
    batch = first_row(batch)
    effects = HeadEffects(model, batch, read)
    assert [effects.is_done for _ in effects.run()][-1] is False
    assert effects.is_done
    return model, batch, effects


def test_an_effect_is_that_of_the_head_off(measured: tuple[Any, Batch, HeadEffects]) -> None:
    model, batch, effects = measured
    with torch.no_grad():
        before, _ = read(batch.forward(model), batch)
        for (site, head), one in effects.heads.items():
            with operate(model, [HeadOff(site, head)]):
                after, likeliest = read(batch.forward(model), batch)
            assert one.changes.numpy() == pytest.approx((after - before)[0].numpy(), abs=1e-4)
            assert one.likeliest.tolist() == likeliest[0].tolist()
        for site, change in effects.layers.items():
            heads = [HeadOff(name, head) for name, head in effects.heads if name == site]
            with operate(model, heads):
                after, _ = read(batch.forward(model), batch)
            assert change == pytest.approx(float((after - before).mean()), abs=1e-4)


def test_only_a_head_above_all_draws_is_compared_to_the_end(measured: tuple[Any, Batch, HeadEffects]) -> None:
    *_, effects = measured
    assert {one.draws for one in effects.heads.values()} <= {3, 12, CONTROLS}
    for one in effects.heads.values():
        assert (one.draws == CONTROLS) or abs(one.effect) <= one.largest
        assert one.largest > 0


def test_a_random_change_takes_the_turned_vectors_away() -> None:
    model, batch = any_model("gpt2")
    batch = first_row(batch)
    effects = HeadEffects(model, batch, read)
    for _ in effects.run():
        site, head = next(iter(effects.heads), (None, None))
        if site and effects.heads[site, head].draws == 3:
            break
    one = effects.heads[site, head]
    projection = output_projection("gpt2", model, site)
    changes = []
    with torch.no_grad():
        before, _ = read(batch.forward(model), batch)
        for draw in range(3):
            hook = projection.register_forward_hook(lambda module, args, out, d=draw: out - turned(one.added[0], d))
            changes.append(abs(float((read(batch.forward(model), batch)[0] - before).mean())))
            hook.remove()
    assert one.largest == pytest.approx(max(changes), rel=1e-3)


def test_turned_vectors_keep_their_length_and_point_anywhere() -> None:
    vectors = torch.randn(1, 4, 256, generator=torch.Generator().manual_seed(0))
    draws = torch.stack([turned(vectors, draw) for draw in range(CONTROLS)])
    assert draws.norm(dim=-1).numpy() == pytest.approx(vectors.norm(dim=-1).expand(CONTROLS, 1, 4).numpy(), rel=1e-4)
    cosines = torch.cosine_similarity(draws, vectors, dim=-1)
    assert float(cosines.std()) == pytest.approx(1 / np.sqrt(256), rel=0.3), "as of random directions"
    assert abs(float(cosines.mean())) < 0.02
    assert torch.equal(turned(vectors, 5), turned(vectors, 5)), "the same for all heads"


def test_an_answer_without_tokens_is_refused() -> None:
    model, batch = any_model("gpt2")
    empty = HeadEffects(model, first_row(batch), lambda out, rows: tuple(part[:, :0] for part in read(out, rows)))
    with pytest.raises(UserError, match="at least one token"):
        next(empty.run())


def test_a_forward_that_gives_way_is_repeated(measured: tuple[Any, Batch, HeadEffects]) -> None:
    model, batch, expected = measured
    draws, stopped = np.random.default_rng(0), 0

    def proceed() -> bool:
        nonlocal stopped
        stops = draws.random() < 0.02
        stopped += stops
        return not stops

    effects = HeadEffects(model, batch, read, proceed=proceed)
    forwards = sum(1 for _ in effects.run())
    assert stopped > 5
    assert forwards == stopped + sum(1 for _ in HeadEffects(model, batch, read).run())
    assert effects.layers == pytest.approx(expected.layers, abs=1e-6)
    for head, one in expected.heads.items():
        found = effects.heads[head]
        assert found.changes.numpy() == pytest.approx(one.changes.numpy(), abs=1e-6)
        assert (found.draws, found.largest) == (one.draws, pytest.approx(one.largest, abs=1e-6))
    assert not any(module._forward_pre_hooks for module in model.modules())
