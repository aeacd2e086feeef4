"""Gradients of all heads at once are right, only screen, and are compared with real patching."""

import numpy as np
import pytest
import torch

from helpers.any_models import any_model
from helpers.circuits import Circuit, examples, previous
from jarilab.core.errors import UserError
from jarilab.inspect.cause.answers import logit_difference, logit_over_mean
from jarilab.inspect.cause.copies import Copies
from jarilab.inspect.cause.parts import ModelParts
from jarilab.inspect.cause.screening import estimated_changes, rank_correlation, screen
from jarilab.inspect.intervene.interventions import HeadOff, operate
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.model_batches import batch_of


def set_up(name: str):
    model, batch = any_model(name, torch.float64)
    copies = Copies(ModelParts(model, batch))
    return copies, copies.run_clean(batch), batch


def zero(part, call, z):
    return torch.zeros_like(z)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "jarilab", "jarilab decoder", "jarilab encoder"])
def test_gradients_of_all_layers_at_once_are_those_of_finite_steps(name):
    copies, clean, batch = set_up(name)
    is_rough = name in ("llama", "t5")  # their norms compute in float32
    score, step, tolerance = logit_difference(5, 7), 1e-3 if is_rough else 1e-5, 1e-3 if is_rough else 1e-6
    estimates = estimated_changes(copies, clean, zero, score)
    for column, head in enumerate(copies.parts.heads):
        group = [(copies.parts.of_head(head),)]
        ends = [
            score(copies.run(clean, group, lambda part, call, z, sign=sign: z * (1 + sign * step)), batch)
            for sign in (-1, 1)
        ]
        slope = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(estimates[:, column], slope, rtol=1e-2, atol=tolerance)
        assert bool(estimates[:, column].any()), f"{head.short} has a gradient"


def test_attribution_patching_is_exact_to_first_order_between_two_inputs():
    copies, clean, batch = set_up("gpt2")
    score = logit_difference(5, 7)
    donor = copies.run_clean(Batch((), batch.kwargs | {"input_ids": batch.kwargs["input_ids"].flip(0)}, batch.tokens))
    step = 1e-4

    def towards(part, call, z):
        return z + step * (donor.heads[part.site][call][:, part.index] - z)

    estimates = estimated_changes(copies, clean, towards, score)
    base = score(clean.outputs, batch)
    for column, head in enumerate(copies.parts.heads):
        patched = score(copies.run(clean, [(copies.parts.of_head(head),)], towards), batch)
        torch.testing.assert_close(estimates[:, column], patched - base, rtol=1e-2, atol=1e-8)


@pytest.mark.parametrize("name", ["gpt2", "jarilab decoder"])
def test_an_ablated_layer_has_no_gradient_and_leaves_those_of_the_others(name):
    copies, clean, batch = set_up(name)
    score, parts = logit_difference(5, 7), copies.parts
    middle = parts.heads[4].site
    with operate(parts.model, [HeadOff(middle, head) for head in range(4)]):
        run = Copies(parts).run_clean(batch)
        estimates = estimated_changes(copies, run, zero, score)
    assert not bool(estimates[:, 4:8].any())
    assert bool((estimates[:, :4].abs().amax(0) > 0).all())
    assert bool((estimates[:, 8:].abs().amax(0) > 0).all())
    before = estimated_changes(copies, clean, zero, score)
    assert not torch.allclose(before[:, :4], estimates[:, :4])


def test_a_layer_whose_output_nobody_reads_has_a_gradient_of_zero():
    copies, clean, _ = set_up("gpt2")
    pruned = copies.model.transformer.h[1].attn.c_proj
    hook = pruned.register_forward_hook(lambda module, args, output: torch.zeros_like(output))
    estimates = estimated_changes(copies, clean, zero, logit_difference(5, 7))
    hook.remove()
    assert not bool(estimates[:, 4:8].any())
    assert bool(estimates[:, :4].any())


def uniform(seed: int):
    q_DE, k_DE, ov_DD = previous()
    generator = torch.Generator().manual_seed(seed)
    return q_DE * 0, k_DE, 0.1 * torch.randn(ov_DD.shape, generator=generator)


def last_logits(outputs, batch):
    return (outputs[:, -1, 3] - outputs[:, -1, 5]).double()


def test_estimates_are_exact_in_a_linear_model_and_checked_heads_are_marked():
    model = Circuit([uniform(1), uniform(2), uniform(3)], [uniform(4), uniform(5), uniform(6)])
    batches = [examples(4, 0), examples(4, 1)]
    result = screen(model, batches, last_logits, top=2, sample=3)
    assert [row["checked"] for row in result.rows[:2]] == ["top", "top"]
    assert sorted(str(row["checked"]) for row in result.rows) == ["None"] + ["random"] * 3 + ["top"] * 2
    for row in result.rows:
        assert (row["actual"] is None) == (row["checked"] is None)
        if row["checked"]:
            assert row["actual"] == pytest.approx(row["estimate"], abs=1e-3)
            assert row["estimate_low"] <= row["estimate"] <= row["estimate_high"]
    assert result.rank_correlation == pytest.approx(1)
    assert result.of_random == pytest.approx(1)
    assert np.argmax([abs(row["estimate"]) for row in result.rows]) == 0


def test_a_saturated_softmax_hides_a_head_from_its_gradient():
    # The primary head fills the output, so that its backup rests: the backup's attention is saturated.
    model = Circuit([previous()], [previous(rest_if_filled=24.0)])
    batch = examples(8)

    def score(outputs, batch):
        return outputs[:, -1].double().gather(1, batch.args[0][:, -2:-1])[:, 0]

    result = screen(model, [batch], score, top=2, sample=0)
    rows = {row["head"]: row for row in result.rows}
    assert rows["L0H0"]["estimate"] == pytest.approx(-10, abs=0.1)
    assert abs(rows["L0H0"]["actual"]) < 0.1, "the gradient does not see the backup"
    assert result.rank_correlation is None, "of two heads"


def test_donors_are_put_in_and_bad_input_is_refused():
    model, batch = any_model("gpt2")
    other = Batch((), batch.kwargs | {"input_ids": batch.kwargs["input_ids"].flip(0)}, batch.tokens, batch.valid)
    result = screen(model, [batch], logit_over_mean(5), [other], top=3, sample=3)
    assert sum(row["checked"] is not None for row in result.rows) == 6
    same = screen(model, [batch], logit_over_mean(5), [batch], top=3, sample=3)
    assert all(row["estimate"] == 0 for row in same.rows)
    assert same.rank_correlation is None
    with pytest.raises(UserError, match="a donor for each, got 1 batches and 2 donors"):
        screen(model, [batch], logit_over_mean(5), [other, other])
    for cut in (slice(0, 1), slice(None)), (slice(None), slice(0, -1)):  # one row would be broadcast
        part = batch_of({name: value[cut] for name, value in batch.kwargs.items()})
        with pytest.raises(UserError, match="expected a donor of as many rows and tokens, got"):
            screen(model, [batch], logit_over_mean(5), [part])
    with pytest.raises(UserError, match=r"expected a number for each of \d rows, got \(\)"):
        screen(model, [batch], lambda outputs, batch: outputs.logits.mean())
    with pytest.raises(UserError, match="expected an answer for each of 4 rows, got 2"):
        screen(model, [batch], logit_over_mean([5, 6]))
    with pytest.raises(UserError, match="got 0 batches"):
        screen(model, [], logit_over_mean(5))
    with pytest.raises(UserError, match="evaluation mode"):
        screen(model.train(), [batch], logit_over_mean(5))


def test_ties_have_their_mean_rank() -> None:
    one, other = np.array([1.0, 2.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0, 6.0])
    assert rank_correlation(one, other) == pytest.approx(5 / 6)
    assert rank_correlation(other, one) == rank_correlation(one[::-1], other[::-1])
    assert rank_correlation(one, np.ones(4)) is None
    assert rank_correlation(one[:2], other[:2]) is None
