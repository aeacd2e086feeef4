"""Steering: known circuits, other ways to compute the same numbers, and bad input."""

import copy

import pytest
import torch

from helpers.any_models import any_model, output_projection
from helpers.circuits import OUT, TEMPERATURE, Circuit, D, L, V, examples, previous, silent, sink
from jarilab.core.errors import UserError
from jarilab.inspect.cause.answers import log_probability, logit_difference, logit_over_mean
from jarilab.inspect.cause.copies import Copies
from jarilab.inspect.cause.parts import ModelParts
from jarilab.inspect.cause.steering import steer, steer_streams
from jarilab.inspect.study.losses import logits_of
from jarilab.inspect.study.model_batches import batch_of

ANSWERS, RIVALS = (3, 7, 11, 4), (5, 6, 9, 8)


@pytest.mark.parametrize("name", ["llama", "gpt2", "jarilab decoder"])
def test_scaling_a_head_scales_its_rows_of_the_output_projection(name):
    model, batch = any_model(name, torch.float64)
    parts = ModelParts(model, batch).select(["head"])
    metric = logit_difference(ANSWERS, RIVALS)
    rows = steer(model, [batch], metric, parts, [1.0, -0.5])
    for row in rows[: len(parts)]:
        assert row["change"] == pytest.approx(0.0, abs=1e-12)
        assert row["control"] == pytest.approx(0.0, abs=1e-12)
    with torch.no_grad():
        base = metric(batch.forward(model), batch).mean().item()
        for part, row in zip(parts, rows[len(parts) :], strict=True):
            other = copy.deepcopy(model)
            weight = output_projection(name, other, part.site).weight
            width = (weight.shape[0] if name == "gpt2" else weight.shape[1]) // 4
            columns = slice(part.index * width, (part.index + 1) * width)
            weight[(columns, slice(None)) if name == "gpt2" else (slice(None), columns)] *= -0.5
            change = metric(batch.forward(other), batch).mean().item() - base
            assert row["change"] == pytest.approx(change, abs=1e-9)
            assert (row["part"], row["factor"], row["examples"]) == (part.short, -0.5, 4)
            assert row["change_low"] <= row["change"] <= row["change_high"]


@pytest.mark.parametrize("position", [None, 1, -1])
def test_a_vector_is_added_to_the_stream_at_its_positions(position):
    model, batch = any_model("llama", torch.float64)
    part = ModelParts(model, batch).streams()[1].at(position)
    vector = torch.randn(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    metric = logit_over_mean(ANSWERS)
    (row,) = steer(model, [batch], metric, [part], [3.0], vector=vector)
    places = {None: slice(None), 1: (slice(None), 1), -1: (torch.arange(4), torch.tensor([8, 8, 5, 5]))}[position]

    def add(module, args):
        stream_BLD = args[0].clone()
        stream_BLD[places] += 3 * vector
        return (stream_BLD, *args[1:])

    with torch.no_grad():
        base = metric(batch.forward(model), batch)
        model.get_submodule(part.site).register_forward_pre_hook(add)
        expected = (metric(batch.forward(model), batch) - base).mean().item()
    assert row["change"] == pytest.approx(expected, abs=1e-9)
    assert row["change"] != pytest.approx(row["control"], abs=1e-3)


def test_a_head_that_writes_the_answer_is_steered_by_its_sign():
    model, batch = Circuit([sink(3), silent()]), examples(8)
    first, second = ModelParts(model, batch).select(["head"])
    rows = steer(model, [batch, batch], logit_difference(3, 4), [first, second], [0.0, -1.0])
    assert [round(row["change"], 2) for row in rows] == [-10.0, 0.0, -20.0, 0.0]
    assert abs(rows[0]["control"]) < 10.0, "a random direction says little of the answer"
    (row,) = steer(model, [batch], log_probability(3), [first], [0.0])
    assert row["change"] == pytest.approx(-2.484, abs=0.001)
    assert row["metric"] == "log probability"


def read_last(outputs, batch):
    """The score, and the most likely answer."""
    logits_BV = logits_of(outputs)[:, -1].double()
    return torch.stack([logits_BV[:, 3] - logits_BV[:, 5], logits_BV.argmax(1).double()], 1)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_difference_of_two_inputs_turns_one_answer_into_the_other(name):
    model, batch = any_model(name, torch.float64)
    ids = batch.kwargs["input_ids"][:1]
    one, other = (batch_of({"input_ids": each}) for each in (ids, ids.flip(1)))
    rows = steer_streams(model, one, read_last, other, position=-1, scales=[1.0, 2.0], controls=3)
    with torch.no_grad():
        ends = [read_last(each.forward(model), each)[0].tolist() for each in (one, other)]
    assert [(row["part"], row["scale"]) for row in rows[:4]] == [
        *((f"L{layer} stream", 1.0) for layer in range(3)),
        ("L2 stream out", 1.0),
    ]
    assert rows[3]["values"] == pytest.approx(ends[1], abs=1e-6), "after the last layer, nothing else is read"
    assert rows[3]["change"] == pytest.approx(ends[1][0] - ends[0][0], abs=1e-6)
    for row in rows:
        assert row["passes"] == (abs(row["change"]) > row["control"])
        assert row["norm"] > 0
        assert row["stream_norm"] > 0
    first, *_ = rows
    (added,) = steer(
        model, [one], logit_difference(3, 5), [ModelParts(model, one).streams()[0].at(-1)], [1.0],
        vector=difference_of_embeddings(model, one, other),
    )  # fmt: skip
    assert first["change"] == pytest.approx(added["change"], abs=1e-9)


def difference_of_embeddings(model, one, other):
    copies = Copies(ModelParts(model, one))
    part = copies.parts.streams()[0]
    first, second = (copies.values(copies.run_clean(each), part)[0][0, -1] for each in (one, other))
    return second - first


def test_a_model_without_a_stream_and_inputs_that_do_not_fit_are_refused():
    model, batch = any_model("llama")
    one = batch_of({"input_ids": batch.kwargs["input_ids"][:1]})
    with pytest.raises(UserError, match=r"L0 stream: expected a vector of 16 numbers, got 3"):
        steer_streams(model, one, read_last, torch.ones(3))
    with pytest.raises(UserError, match=r"L0 stream, row 1: expected a position from -9 to 8, got 9"):
        steer_streams(model, one, read_last, torch.ones(16), position=9)
    shorter = batch_of({"input_ids": batch.kwargs["input_ids"][:1, :5]})
    with pytest.raises(UserError, match=r"expected the 9 tokens .* got 5 in the other one"):
        steer_streams(model, one, read_last, shorter)
    with pytest.raises(UserError, match="score with L0 stream steered 1 times: expected a finite number"):
        steer_streams(model, one, read_last, torch.full((16,), torch.nan), scales=[1.0])
    single = Circuit([previous()])
    single.layers = single.layers[0]
    single.forward = lambda ids: TEMPERATURE * single.layers(torch.zeros(1, L, D) + ids[..., None])[..., OUT]
    with pytest.raises(UserError, match=r"expected a model with a list of layers that attend"):
        steer_streams(single, examples(1), read_last, torch.ones(D))


def test_bad_input_is_refused():
    model, batch = Circuit([previous()]), examples(4)
    (head,) = ModelParts(model, batch).select(["head"])
    metric = logit_difference(0, 1)
    with pytest.raises(UserError, match=r"L0H0: expected a vector of 36 numbers, got 3"):
        steer(model, [batch], metric, [head], vector=torch.ones(3))
    with pytest.raises(UserError, match=r"row 1: expected a position from -10 to 9, got 10"):
        steer(model, [batch], metric, [head.at(10)])
    with pytest.raises(UserError, match=r"a metric for each of 2 batches.*got 1"):
        steer(model, [batch, batch], [metric], [head])
    with pytest.raises(UserError, match="evaluation mode"):
        steer(Circuit([previous()]).train(), [batch], metric, [head])
    with pytest.raises(UserError, match=f"tokens from 0 to {V - 1} as answers"):
        steer(model, [batch], logit_difference(V, 1), [head])
    with pytest.raises(
        UserError, match=r"log probability with L0H0 replaced: expected a finite number for row 1, got nan"
    ):
        steer(model, [batch], log_probability(0), [head], [float("nan")])
    with pytest.raises(UserError, match="got 0 parts and 3 factors"):
        steer(model, [batch], metric, [])
    with pytest.raises(UserError, match="got 1 parts and 0 factors"):
        steer(model, [batch], metric, [head], [])
