"""Relevance of inputs: formulas computed in other ways, any model, padding, known faults of other tools, bad input."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import nn

import jarilab
from helpers import architectures
from helpers.circuits import Circuit, examples, previous
from helpers.relevance_models import NAMES, OneLayer, answer, logit, model_and_batch, row_alone
from helpers.small import initialised
from jarilab.attention import definition
from jarilab.core.errors import UserError
from jarilab.inspect.cause.answers import logit_over_mean
from jarilab.inspect.cause.integrated_gradients import integrate
from jarilab.inspect.cause.relevance import METHODS, InputRelevance
from jarilab.inspect.explain.value_norms import value_norms_of
from jarilab.inspect.intervene.interventions import change_outputs
from jarilab.inspect.record.capture import look_inside
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.model_batches import batch_of

OF_ATTENTION = [name for name in METHODS if name != "integrated_gradients"]
IDS = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 0]])


def relevance_of(name: str) -> InputRelevance:
    model, batch = model_and_batch(name)
    return InputRelevance(model, batch, answer)


# Formulas -------------------------------------------------------------------------------------------------------------


def test_one_layer_with_one_head_has_the_weight_times_its_gradient():
    model = OneLayer()
    relevance = InputRelevance(model, batch_of(IDS), logit(2))
    with jarilab.record(model) as tape:
        model(IDS)
    site = tape.sites[0]
    weights_BQK, v_BKE = tape.weights(site)[:, 0], tape.recorded(site).call.v[:, 0]
    expected = torch.zeros_like(weights_BQK)
    expected[:, -1] = (weights_BQK[:, -1] * (v_BKE @ model.read.weight[2])).clamp_min(0)
    (maps,) = relevance.maps("attention_gradient").values()
    assert torch.allclose(maps, expected, atol=1e-7)
    assert (expected[:, -1] == 0).any(), "negative evidence is dropped"
    assert (expected[:, -1] > 0).any()
    scores = relevance.of("attention_gradient").scores["target"]
    assert torch.allclose(scores, expected[:, -1], atol=1e-7)


def test_evidence_is_positive_in_each_head_before_the_mean_over_heads():
    model = OneLayer(heads=2)
    layer = InputRelevance(model, batch_of(IDS), logit(2))._layers[0]
    with torch.no_grad():
        g_E, v_BHKE = model.read.weight[2].unflatten(0, (2, -1)), layer.call.v
        by_head = layer.weights[:, :, -1] * torch.einsum("he,bhke->bhk", g_E, v_BHKE)
    assert torch.allclose(layer.positive_evidence()[:, -1], by_head.clamp_min(0).mean(1), atol=1e-7)
    assert not torch.allclose(layer.positive_evidence()[:, -1], by_head.mean(1).clamp_min(0), atol=1e-4)


@pytest.mark.parametrize("name", ["jarilab", "T5"])
def test_the_gradient_of_weights_is_that_of_small_changes_with_what_an_encoding_adds_to_values(name):
    model, batch = model_and_batch(name)
    model.double()
    relevance = InputRelevance(model, batch, answer)
    index, step, row = 2, 1e-4, 1
    layer = relevance._layers[index]
    query = int(relevance.reads[row].argmax()) if layer.site.queries == relevance.side else 1

    def answer_with(change: float) -> float:
        def edit(site, call, output):
            weights = definition.weights(call).clone()
            weights[row, 0, query, 0] += change
            return definition.weighted(call, weights).to(output.dtype)

        with torch.no_grad(), change_outputs(model, edit, [layer.site.name]):
            return float(answer(batch.forward(model), batch)[row])

    slope = (answer_with(step) - answer_with(-step)) / (2 * step)
    weights = layer.weights.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(definition.weighted(layer.call, weights), weights, layer.gradient)
    assert float(gradient[row, 0, query, 0]) == pytest.approx(
        slope, rel=1e-2 if name == "T5" else 1e-6
    )  # T5's softmax is in float32
    assert abs(slope) > 1e-4


def by_hand(relevance: InputRelevance) -> dict:
    """R - I by loops over rows of the batch and of R, as the paper writes it."""
    totals: dict = {}
    for row in range(len(relevance.batch)):
        total = {(side, side): torch.eye(length) for side, length in relevance.lengths.items()}
        for layer in relevance._layers:
            columns = []
            for key in range(layer.weights.shape[-1]):
                alone = torch.zeros_like(layer.weights)
                alone[..., key] = 1
                columns.append(definition.weighted(layer.call, alone)[row])  # the value, with what an encoding adds
            gradient = torch.einsum("hqw,khqw->hqk", layer.gradient[row], torch.stack(columns))
            evidence = (layer.weights[row] * gradient).clamp(min=0).mean(0)
            queries, keys = layer.sides
            if queries == keys:
                for sides in [each for each in total if each[0] == queries]:
                    total[sides] = total[sides] + evidence @ total[sides]
                continue
            shares = []
            for side in (queries, keys):
                rest = total[side, side] - torch.eye(len(total[side, side]))
                for index, sums in enumerate(rest.sum(1)):
                    rest[index] = rest[index] / sums if sums > 0 else 0.0
                shares.append(rest + torch.eye(len(rest)))
            update = shares[0].T @ evidence @ shares[1]
            total[layer.sides] = total.get(layer.sides, torch.zeros_like(update)) + update
        for sides, each in total.items():
            rest = each - torch.eye(len(each)) if sides[0] == sides[1] else each
            totals.setdefault(sides, []).append(rest)
    return {sides: torch.stack(each) for sides, each in totals.items()}


@pytest.mark.parametrize("name", ["Llama", "Bert", "T5", "jarilab"])
def test_relevance_is_that_of_loops(name):
    relevance = relevance_of(name)
    maps, expected = relevance.maps("attention_gradient"), by_hand(relevance)
    assert maps.keys() == expected.keys()
    for sides, each in maps.items():
        assert torch.allclose(each, expected[sides], rtol=1e-4, atol=1e-6), sides
        assert bool(each.isfinite().all())


@pytest.mark.parametrize("name", ["T5", "jarilab"])
def test_a_row_without_relevance_does_not_make_the_cross_relevance_nan_or_zero(name):
    model, batch = model_and_batch(name)
    relevance = InputRelevance(model, batch, lambda outputs, batch: getattr(outputs, "logits", outputs)[:, 2, 5])
    maps = relevance.maps("attention_gradient")
    assert not bool(maps["target", "target"][:, 3:].any()), "such rows divide 0 by 0"
    assert all(bool(each.isfinite().all()) for each in maps.values())
    assert bool((relevance.of("attention_gradient").scores["source"].sum(1) > 0).all())


@pytest.mark.parametrize("name", ["Llama", "GPT2", "T5", "jarilab"])
def test_rows_after_the_target_position_are_0(name):
    model, batch = model_and_batch(name)
    position = 2

    def early(outputs, batch):
        return getattr(outputs, "logits", outputs)[:, position, 5]

    relevance = InputRelevance(model, batch, early)
    for (queries, _), each in relevance.maps("attention_gradient").items():
        if queries == "target":
            assert not bool(each[:, position + 1 :].any())
            assert bool(each[:, position].any())
    scores = relevance.of("attention_gradient").scores["target"]
    assert not bool(scores[:, position + 1 :].any())


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_rollouts_sum_to_1(name):
    relevance = relevance_of(name)
    methods = ["gradient_rollout", *(["rollout"] if name in ("Bert", "ViT") else [])]
    for method in methods:
        maps = relevance.maps(method)
        for side, valid_BL in relevance.valid.items():
            sums_BL = sum(each.sum(-1) for (queries, _), each in maps.items() if queries == side)
            assert torch.allclose(sums_BL[valid_BL], torch.ones(()), atol=1e-5), (method, side)


def test_plain_rollout_is_the_product_of_matrices():
    relevance = relevance_of("ViT")
    product = torch.eye(relevance.lengths["source"])
    for layer in relevance._layers:
        product = (torch.eye(len(product)) + layer.weights[1].mean(0)) / 2 @ product
    assert torch.allclose(relevance.maps("rollout")["source", "source"][1], product, atol=1e-6)


@pytest.mark.parametrize("name", ["Llama", "T5", "jarilab"])
def test_plain_rollout_is_refused_by_name_for_a_decoder(name):
    with pytest.raises(UserError, match=r"decoder\.0.*gradient_rollout"):
        relevance_of(name).of("rollout")


def test_plain_rollout_is_refused_for_an_encoder_with_a_mask():
    model = initialised(nn.MultiheadAttention(8, 2, batch_first=True))
    mask = torch.zeros(5, 5, dtype=torch.bool)
    mask[2, 3] = True
    x = torch.randn(2, 5, 8)
    batch = Batch((x, x, x), {"attn_mask": mask, "need_weights": False}, [{}, {}])
    relevance = InputRelevance(model, batch, lambda outputs, batch: outputs[0].sum((1, 2)))
    assert [site.kind for site in relevance.sites.values()] == ["encoder"]
    with pytest.raises(UserError, match="rollout"):
        relevance.of("rollout")


def test_plain_rollout_is_refused_for_cross_attention_without_a_mask():
    model = initialised(nn.MultiheadAttention(8, 2, batch_first=True))
    batch = Batch((torch.randn(2, 3, 8), *[torch.randn(2, 5, 8)] * 2), {"need_weights": False}, [{}, {}])
    with pytest.raises(UserError, match="a cross attention"):
        InputRelevance(model, batch, lambda outputs, batch: outputs[0].sum((1, 2))).of("rollout")


def test_raw_attention_and_weighted_values_read_the_last_layer():
    relevance = relevance_of("Bert")
    last = relevance._layers[-1]
    row = last.weights[:, :, 0]
    assert torch.allclose(relevance.of("attention").scores["source"], row.mean(1) * relevance.valid["source"])
    out_DHW = relevance.model.encoder.layer[1].attention.output.dense.weight.unflatten(1, (4, -1))
    norms_BHK = torch.einsum("bhkw,dhw->bhkd", last.call.v, out_DHW).norm(dim=-1)
    assert torch.allclose(relevance.of("value_weighted").scores["source"], (row * norms_BHK).sum(1), atol=1e-5)


def test_weighted_values_are_those_of_one_head_with_what_an_encoding_adds():
    relevance = relevance_of("jarilab")
    inputs = relevance.batch.args
    for sides, map_BQK in relevance.maps("value_weighted").items():
        site = [layer.site.name for layer in relevance._layers if layer.sides == sides][-1]
        one = tuple(replace(each, ids=each.ids[:1], keep=None) for each in inputs)
        expected = sum(value_norms_of(look_inside(relevance.model, one), site, head) for head in range(2))
        assert torch.allclose(map_BQK[0], expected, atol=1e-5), sides


def test_weighted_values_need_an_output_projection():
    relevance = InputRelevance(OneLayer(), batch_of(IDS), logit(2))
    with pytest.raises(UserError, match=r"W_O after .*use value_zeroing"):
        relevance.of("value_weighted")
    with pytest.raises(UserError, match=r"outside of one.*value_weighted"):
        relevance.of("value_zeroing")


def test_weighted_values_need_a_projection_of_the_heads_in_their_order():
    model, batch = model_and_batch("Bert")

    class Reversed(nn.Module):
        """Reads the numbers of all heads in another order."""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x, *args):
            return self.inner(x.flip(-1), *args)

    output = model.encoder.layer[1].attention.output
    model.encoder.layer[1].attention.output = Reversed(output)
    with pytest.raises(UserError, match=r"reads all heads side by side.*recorded output"):
        InputRelevance(model, batch, answer).of("value_weighted")


def test_weighted_values_know_the_output_projection_of_pytorch():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = initialised(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    relevance = InputRelevance(model, batch_of(torch.randn(2, 5, 8)), lambda outputs, batch: outputs[:, 0, 1])
    layer = relevance._layers[-1]
    out_DHW = model.layers[1].self_attn.out_proj.weight.unflatten(1, (2, -1))
    norms_BHK = torch.einsum("bhkw,dhw->bhkd", layer.call.v, out_DHW).norm(dim=-1)
    expected = (layer.weights[:, :, 0] * norms_BHK).sum(1)
    assert torch.allclose(relevance.of("value_weighted").scores["source"], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["Llama", "Bert", "T5", "jarilab"])
def test_value_zeroing_is_a_forward_with_one_value_of_0_in_the_last_layer(name):
    model, batch = model_and_batch(name)
    relevance, key = InputRelevance(model, batch, answer), 1
    paths = {
        "Llama": "model.layers.1",
        "Bert": "encoder.layer.1",
        "T5": "decoder.block.1",
        "jarilab": "decoder.layers.1",
    }
    after: list = []

    def keep(module, args, output):
        after.append(output if torch.is_tensor(output) else output[0])

    model.get_submodule(paths[name]).register_forward_hook(keep)
    for sides, map_BQK in relevance.maps("value_zeroing").items():
        site = [layer.site.name for layer in relevance._layers if layer.sides == sides][-1]
        if sides[0] != relevance.side:
            continue
        after.clear()

        def edit(site, call, output):
            weights = definition.weights(call).clone()
            weights[..., key] = 0
            return definition.weighted(call, weights)

        with torch.no_grad():
            batch.forward(model)
            with change_outputs(model, edit, [site]):
                batch.forward(model)
        clean, changed = (each.double() for each in after)
        expected = 1 - nn.functional.cosine_similarity(clean, changed, dim=-1)
        assert torch.allclose(map_BQK[..., key].double(), expected, rtol=1e-3, atol=1e-7), sides
        assert float(expected.max()) > 1e-4


def test_value_zeroing_of_a_head_that_writes_nothing_is_0_and_no_equal_share():
    model, batch = model_and_batch("Llama")
    nn.init.zeros_(model.model.layers[1].self_attn.o_proj.weight)
    relevance = InputRelevance(model, batch, logit_over_mean(5))
    assert relevance.reads.argmax(1).tolist() == [6, 4]
    assert not bool(relevance.of("value_zeroing").scores["target"].any()), "not even by rounding"
    assert float(relevance.of("value_weighted").scores["target"].max()) == 0
    assert float(relevance.of("attention").scores["target"].max()) > 0.1
    assert float(relevance.of("attention_gradient").scores["target"].max()) > 0
    with pytest.raises(UserError, match=r"decoder\.1\.self.*0 in row 0.*answers"):
        InputRelevance(model, batch, answer)


def test_layers_that_share_weights_are_layers_of_their_own():
    model, inputs = architectures.of_text("Albert")
    relevance = InputRelevance(initialised(model), batch_of(inputs), answer)
    assert len(relevance.sites) == 1
    expected = by_hand(relevance)["source", "source"]
    assert torch.allclose(relevance.maps("attention_gradient")["source", "source"], expected, rtol=1e-4, atol=1e-6)
    assert len(relevance._layers) == 2
    with pytest.raises(UserError, match=r"encoder\.0 ran 2 times"):
        relevance.of("value_zeroing")


# What an answer reads -------------------------------------------------------------------------------------------------


def test_the_rows_that_an_answer_reads_are_found_by_its_gradient():
    model, batch = model_and_batch("Bert")
    assert InputRelevance(model, batch, answer).reads[:, 0].tolist() == [1.0, 1.0]

    def pooled(outputs, batch):
        keep = batch.valid["source"].unsqueeze(-1)
        return ((outputs.last_hidden_state * keep).sum(1) / keep.sum(1))[:, 5]

    reads = InputRelevance(model, batch, pooled).reads
    assert reads.sum(1).tolist() == pytest.approx([1.0, 1.0])
    assert reads[1].tolist() == pytest.approx([0.2] * 5 + [0.0] * 2)
    assert InputRelevance(*model_and_batch("Llama"), answer).reads.argmax(1).tolist() == [6, 4]


@pytest.mark.parametrize("method", OF_ATTENTION)
@pytest.mark.parametrize("name", NAMES)
def test_a_padded_row_has_the_relevance_that_it_has_alone(name, method):
    model, batch = model_and_batch(name)
    if method == "rollout" and name not in ("Bert", "ViT"):
        pytest.skip("refused")
    together = InputRelevance(model, batch, answer).of(method)
    alone = InputRelevance(model, row_alone(batch, 1), answer).of(method)
    assert together.scores.keys() == alone.scores.keys()
    for side, scores_BL in together.scores.items():
        valid_L = together.valid[side][1]
        assert torch.allclose(scores_BL[1][valid_L], alone.scores[side][0], atol=1e-5), side
        assert not bool(scores_BL[1][~valid_L].any())
        assert bool(scores_BL.isfinite().all())
        assert scores_BL.abs().sum() > 0


def test_rows_have_the_tokens_that_the_model_saw():
    model, batch = model_and_batch("Llama")
    rows = InputRelevance(model, batch, answer, special=[9]).of("attention").rows(1)
    assert [row["token"] for row in rows] == ["9", "44", "12", "80", "3"], "special tokens are shown too"
    assert [row["position"] for row in rows] == [0, 1, 2, 3, 4]
    assert {row["sequence"] for row in rows} == {"target"}
    assert sum(row["relevance"] for row in rows) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("row", [9, -3, "1", 0.5])
def test_a_row_that_is_not_there_is_refused(row):
    relevance = InputRelevance(OneLayer(), batch_of(IDS), logit(2)).of("attention")
    assert relevance.rows(-1) == relevance.rows(1)
    with pytest.raises(UserError, match=r"expected a row from -2 to 1, got .*; choose"):
        relevance.rows(row)


def test_a_copied_token_supports_its_own_answer_and_not_its_rivals():
    model = Circuit([previous()])
    batch = examples(8)
    ids = batch.args[0]
    position, rows = 5, torch.arange(8)
    copied, rival = ids[:, position - 1], (ids[:, position - 1] + 1) % 12

    def contrast(sign):
        def difference(outputs, batch):
            at = outputs[:, position]
            return sign * (at[rows, copied] - at[rows, rival])

        return difference

    # The recorder cannot follow how these models place tokens in the stream, and takes keys for another sequence.
    right = InputRelevance(model, batch, contrast(1)).of("attention_gradient").scores["source"]
    assert right.argmax(1).tolist() == [position - 1] * 8
    wrong = InputRelevance(model, batch, contrast(-1)).of("attention_gradient").scores["source"]
    assert not bool(wrong[:, position - 1].any())


# Integrated gradients -------------------------------------------------------------------------------------------------


class MidpointGradients:
    """What `captum.attr.IntegratedGradients` does, for an environment without captum."""

    def __init__(self, forward):
        self.forward = forward

    def attribute(self, inputs, baselines, n_steps, internal_batch_size, return_convergence_delta):
        assert return_convergence_delta
        sums, rows = [torch.zeros_like(each) for each in inputs], len(inputs[0])
        at_once = max(1, internal_batch_size // rows)
        for first in range(0, n_steps, at_once):
            shares = [(step + 0.5) / n_steps for step in range(first, min(first + at_once, n_steps))]
            points = [
                torch.cat([start + share * (end - start) for share in shares]).requires_grad_()
                for start, end in zip(baselines, inputs, strict=True)
            ]
            gradients = torch.autograd.grad(self.forward(*points).sum(), points)
            for number, each in enumerate(gradients):
                sums[number] += each.unflatten(0, (-1, rows)).sum(0)
        attributions = [
            (end - start) * each / n_steps for start, end, each in zip(baselines, inputs, sums, strict=True)
        ]
        with torch.no_grad():
            change = self.forward(*inputs) - self.forward(*baselines)
        return tuple(attributions), sum(each.sum((1, 2)) for each in attributions) - change


@pytest.fixture(autouse=True)
def captum(monkeypatch):
    """Captum itself if it is installed."""
    try:
        import captum.attr  # noqa: F401
    except ImportError:
        package, attr = ModuleType("captum"), ModuleType("captum.attr")
        attr.IntegratedGradients = MidpointGradients
        monkeypatch.setitem(sys.modules, "captum", package)
        monkeypatch.setitem(sys.modules, "captum.attr", attr)


@pytest.mark.parametrize("baseline", ["mean", "zero", "pad"])
@pytest.mark.parametrize("name", ["Llama", "GPT2", "Bert", "T5", "jarilab"])
def test_integrated_gradients_add_up_to_the_change_of_the_answer(name, baseline):
    model, batch = model_and_batch(name)
    relevance = InputRelevance(model, batch, answer, special=[5])
    result = relevance.of("integrated_gradients", baseline=baseline, pad=0, steps=200)
    total = sum(each.sum(1) for each in result.scores.values())
    assert set(result.scores) == set(relevance.lengths)

    # Where embeddings are 0, RMSNorm is not smooth: the gap says so.
    is_rough = baseline == "zero" and name in ("Llama", "T5")
    assert (float(result.gap.abs().max()) < 0.02) != is_rough
    assert float(total.abs().min()) > 0
    for side, scores in result.scores.items():
        special = (batch.ids[side] == 5) | ~batch.valid[side]
        assert not bool(scores[special].any()), "special tokens and padding are equal in both"
        assert bool(scores[~special].any())


def test_the_gap_of_completeness_is_that_of_the_answers_at_both_ends():
    model, batch = model_and_batch("Bert")
    result = InputRelevance(model, batch, answer, special=[5]).of("integrated_gradients", baseline="zero")
    special = (batch.ids["source"] == 5) | ~batch.valid["source"]

    def only_special(module, args, output):
        return output * special.unsqueeze(-1)

    with torch.no_grad():
        end = answer(batch.forward(model), batch)
        model.embeddings.word_embeddings.register_forward_hook(only_special)
        start = answer(batch.forward(model), batch)
    assert torch.allclose(result.scores["source"].sum(1) - result.gap, end - start, atol=1e-5)
    assert float((end - start).abs().min()) > 1e-3


def test_integrated_gradients_of_a_linear_model_are_exact():
    class Sum(OneLayer):
        def forward(self, ids):
            return self.read(self.embed(ids)).cumsum(1)

    model = Sum()
    keep = {"target": torch.ones_like(IDS, dtype=torch.bool)}
    scores, gap = integrate(model, batch_of(IDS), logit(2), {"target": IDS}, keep, baseline="zero", steps=3)
    expected = model.embed(IDS) @ model.read.weight[2]
    assert torch.allclose(scores["target"], expected, atol=1e-5)
    assert float(gap.abs().max()) < 1e-4


def test_equal_ids_of_source_and_target_have_attributions_of_their_own():
    model, batch = model_and_batch("T5")
    batch = batch_of({**batch.kwargs, "decoder_input_ids": batch.kwargs["input_ids"].clone()})
    result = InputRelevance(model, batch, answer).of("integrated_gradients", steps=100)
    assert all(bool(each.any()) for each in result.scores.values())
    assert not torch.allclose(result.scores["source"], result.scores["target"])
    assert float(result.gap.abs().max()) < 0.02


def test_an_attribution_of_0_is_refused():
    model, batch = model_and_batch("GPT2")
    ids = {int(each) for each in batch.ids["target"].unique()}
    with pytest.raises(UserError, match=r"0 for all tokens of row 0.*'mean'"):
        InputRelevance(model, batch, answer, special=ids).of("integrated_gradients")


def test_integrated_gradients_name_what_they_miss(monkeypatch):
    model, batch = model_and_batch("ViT")
    with pytest.raises(UserError, match=r"ids of the source.*ViTModel"):
        InputRelevance(model, batch, answer).of("integrated_gradients")
    relevance = relevance_of("jarilab")
    with pytest.raises(UserError, match=r"padding token.*None.*pad=ID"):
        relevance.of("integrated_gradients", baseline="pad")
    with pytest.raises(UserError, match="zeros"):
        relevance.of("integrated_gradients", baseline="zeros")
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(UserError, match="captum"):
        relevance.of("integrated_gradients")


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (lambda outputs, batch: outputs[:, -1], "each of 2 rows"),
        (lambda outputs, batch: outputs[:, -1, 0] * float("nan"), "finite number.*nan"),
        (lambda outputs, batch: outputs[:, -1, 0].detach(), "gradient"),
        (lambda outputs, batch: outputs[:, -1, 0] * 0, "0 in row 0"),
    ],
)
def test_answers_that_cannot_be_explained_are_refused(bad, expected):
    with pytest.raises(UserError, match=expected):
        InputRelevance(OneLayer(), batch_of(IDS), bad)


def test_models_that_do_not_relate_whole_sequences_are_refused():
    model, inputs = architectures.of_images("Swin", **architectures.IMAGES["Swin"])
    with pytest.raises(UserError, match="windows"):
        InputRelevance(model, batch_of(inputs), lambda outputs, batch: outputs.pooler_output[:, 0])
    with pytest.raises(UserError, match="training mode"):
        InputRelevance(OneLayer().train(), batch_of(IDS), logit(2))
    with pytest.raises(UserError, match="attention_gradient"):
        relevance_of("Llama").of("attention_gradent")


def test_gradients_are_computed_without_gradients_around():
    model, batch = OneLayer(), batch_of(IDS)
    expected = InputRelevance(model, batch, logit(2)).of("attention_gradient").scores["target"]
    with torch.no_grad():
        actual = InputRelevance(model, batch, logit(2)).of("attention_gradient").scores["target"]
    assert torch.equal(actual, expected)
