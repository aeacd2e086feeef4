"""Activation patching: identities, circuits whose numbers are known, other ways to compute them, and bad input."""

import copy
import json

import pytest
import torch
import transformers
from torch import Tensor, nn

from helpers.any_models import any_model, output_projection
from helpers.circuits import TEMPERATURE, Circuit, V, examples, previous, silent
from jarilab.core.errors import UserError
from jarilab.inspect.cause import copies as copies_module
from jarilab.inspect.cause.answers import logit_difference, logit_over_mean
from jarilab.inspect.cause.copies import Copies
from jarilab.inspect.cause.parts import ModelParts, Part
from jarilab.inspect.cause.patching import exchange, patch
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.losses import logits_of
from jarilab.inspect.study.model_batches import batch_of

NAMES = ("llama", "gpt2", "jarilab decoder", "jarilab encoder", "jarilab", "t5")
ANSWERS, RIVALS = (3, 7, 11, 4), (5, 6, 9, 8)
METRICS = ("logit difference", "logit over mean")


def pair_of(name: str) -> tuple[nn.Module, Batch, Batch]:
    """A model in float64, and two batches of as many tokens."""
    model, clean = any_model(name, torch.float64)
    return model, clean, any_model(name, torch.float64, seed=3)[1]


def by_part(rows, direction="denoising", metric=METRICS[0], column="fraction") -> dict:
    """A column of some rows, by part and position."""
    chosen = [row for row in rows if (row["direction"], row["metric"]) == (direction, metric)]
    return {(row["part"], row["position"]): row[column] for row in chosen}


# Identities -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_everything_gives_one_and_nothing_gives_nothing(name):
    model, clean, corrupt = pair_of(name)
    parts = ModelParts(model, clean)
    streams = tuple(part for part in parts.streams() if part.site.split(".")[2] == "0" and not part.index)
    everything = (*parts.select(["head", "mlp"]), *streams)
    rows = patch(model, clean, corrupt, ANSWERS, RIVALS, groups=[streams, everything], controls=0)
    assert len(rows) == 2 * 2 * 2
    for row in patch(model, clean, corrupt, ANSWERS, RIVALS, groups=[()], controls=0):
        assert row["part"] == "nothing"
        assert row["change"] == row["fraction"] == 0.0, "bit-identical"
    for row in rows:
        assert row["fraction"] == pytest.approx(1.0, abs=1e-6), row
        assert row["examples"] == 4
        assert (row["fraction_low"] is None) == ("includes 0" in row["note"])
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.parametrize("kind", ["head", "attention", "mlp", "stream"])
def test_an_input_patched_with_itself_changes_nothing(kind):
    model, clean, _ = pair_of("llama")
    rows = patch(model, clean, clean, ANSWERS, RIVALS, kinds=[kind], controls=0)
    for row in rows:
        assert row["change"] == pytest.approx(0.0, abs=1e-12)
        assert row["fraction"] is None, "0 / 0"
        assert "no fraction" in row["note"]
        assert "differ by 0" in row["note"]


def test_the_stream_at_the_place_that_differs_is_the_whole_difference():
    model, clean, _ = pair_of("gpt2")
    ids = clean.kwargs["input_ids"].clone()
    ids[:, 4] = (ids[:, 4] + 1) % 40
    corrupt = Batch((), clean.kwargs | {"input_ids": ids}, clean.tokens, clean.valid, ids={"target": ids})
    rows = patch(model, clean, corrupt, ANSWERS, RIVALS, kinds=["stream"], positions=[3, 4, -1], controls=0)
    for direction in ("denoising", "noising"):
        fractions = by_part(rows, direction)
        assert fractions["L0 stream", 4] == pytest.approx(1.0, abs=1e-9)
        assert fractions["L0 stream", 3] == pytest.approx(0.0, abs=1e-12)
        assert fractions["L2 stream out", -1] == pytest.approx(1.0, abs=1e-9)
        assert abs(fractions["L2 stream", 4]) < 1.0, "the answer's position reads it before"


@pytest.mark.parametrize("name", ["llama", "gpt2", "jarilab decoder", "jarilab encoder", "t5"])
@pytest.mark.parametrize("together", [True, False])
def test_copies_equal_a_loop_by_hand(name, together, monkeypatch):
    if not together:
        monkeypatch.setattr(copies_module, "MAX_TOKENS", 1)
    model, clean, corrupt = pair_of(name)
    rows = patch(model, clean, corrupt, ANSWERS, RIVALS, positions=[None, 1], directions=["noising"], controls=0)
    changes = {metric: by_part(rows, "noising", metric, "change") for metric in METRICS}
    metrics = logit_difference(ANSWERS, RIVALS), logit_over_mean(ANSWERS)
    with torch.no_grad():
        base = [metric(clean.forward(model), clean).mean() for metric in metrics]
        for head in ModelParts(model, clean).heads[::3]:
            for position in (None, 1):
                outputs = by_hand(name, model, clean, corrupt, head, position)
                for metric, before in zip(metrics, base, strict=True):
                    expected = metric(outputs, clean).mean() - before
                    actual = changes[metric.name][head.short, position]
                    assert actual == pytest.approx(expected.item(), abs=1e-9), (head, position)
    assert max(map(abs, changes[METRICS[0]].values())) > 1e-3


def by_hand(name, model, clean, corrupt, head, position) -> Tensor:
    """Outputs for the clean input, with a head's slice of the input of W_O from the corrupt one."""
    projection = output_projection(name, model, head.site)
    inputs: list[Tensor] = []
    hook = projection.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    corrupt.forward(model)
    hook.remove()
    width = inputs[0].shape[-1] // 4
    places = slice(None) if position is None else slice(position, position + 1)
    columns = slice(head.index * width, (head.index + 1) * width)

    def change(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        z_BLF = args[0].clone()
        z_BLF[:, places, columns] = inputs[0][:, places, columns]
        return (z_BLF,)

    hook = projection.register_forward_pre_hook(change)
    try:
        return logits_of(clean.forward(model))
    finally:
        hook.remove()


def test_padded_rows_give_what_they_give_alone():
    model, clean, corrupt = pair_of("llama")
    tables = []
    for width in (9, 6):
        pair = []
        for batch in (clean, corrupt):
            ids, mask = (batch.kwargs[key][2:, :width] for key in ("input_ids", "attention_mask"))
            pair.append(batch_of({"input_ids": ids, "attention_mask": mask}))
        tables.append(patch(model, *pair, [3, 7], [5, 6], kinds=["head", "mlp"], positions=[None, 2, -1]))
    assert [row["part"] for row in tables[0]] == [row["part"] for row in tables[1]]
    for one, other in zip(*tables, strict=True):
        assert one["change"] == pytest.approx(other["change"], abs=1e-9)
        assert one["control"] == (None if other["control"] is None else pytest.approx(other["control"], abs=1e-7))


# Known circuits -------------------------------------------------------------------------------------------------------


class Threshold(Circuit):
    """Heads whose writing passes a step at `at`, from 0 to 1."""

    def __init__(self, heads, at: float):
        super().__init__(heads)
        self.at = at

    def forward(self, ids: Tensor) -> Tensor:
        return TEMPERATURE * (10 * (super().forward(ids) / TEMPERATURE - self.at)).clamp(0, 1)


def previous_tokens(rows: int = 32) -> tuple[Batch, Batch, list[int], list[int]]:
    """Inputs whose answer is the token before the last, and others with another one there."""
    clean = examples(rows)
    ids = clean.args[0].clone()
    ids[:, -2] = (ids[:, -2] + 1 + torch.arange(rows) % (V - 1)) % V
    corrupt = Batch((ids,), tokens=clean.tokens, ids={"target": ids})
    return clean, corrupt, clean.args[0][:, -2].tolist(), ids[:, -2].tolist()


@pytest.mark.parametrize(
    ("heads", "at", "denoising", "noising"),
    [
        pytest.param([previous(), previous(), silent()], 0.5, 0.91, 0.09, id="OR"),
        pytest.param([previous(0.5), previous(0.5), silent()], 0.7, 0.08, 0.92, id="AND"),
    ],
)
def test_or_and_and_differ_in_the_second_metric_only(heads, at, denoising, noising):
    clean, corrupt, answers, rivals = previous_tokens()
    rows = patch(Threshold(heads, at), clean, corrupt, answers, rivals)
    for head in ("L0H0", "L0H1"):
        for direction, expected in (("denoising", denoising), ("noising", noising)):
            assert by_part(rows, direction)[head, None] == pytest.approx(0.5, abs=0.001)
            assert by_part(rows, direction, METRICS[1])[head, None] == pytest.approx(expected, abs=0.01)
    assert {row["fraction"] for row in rows if row["part"] == "L0H2"} == {0.0}
    both = patch(Threshold(heads, at), clean, corrupt, answers, rivals, groups=[tuple(heads_of(rows)[:2])])
    for row in both:
        assert row["part"] == "L0H0 + L0H1"
        assert row["fraction"] == pytest.approx(1.0, abs=1e-6)


def heads_of(rows) -> list[Part]:
    heads = {row["part"]: Part("head", row["site"], row["index"], row["part"]) for row in rows}
    return list(heads.values())


def test_a_negative_head_has_a_negative_fraction():
    clean, corrupt, answers, rivals = previous_tokens()
    rows = patch(Circuit([previous(), previous(-0.6), silent()]), clean, corrupt, answers, rivals, controls=3)
    for direction in ("denoising", "noising"):
        for metric in METRICS:
            fractions = by_part(rows, direction, metric)
            assert fractions["L0H0", None] == pytest.approx(2.5, abs=0.01)
            assert fractions["L0H1", None] == pytest.approx(-1.5, abs=0.01)
    row = rows[0]
    assert row["fraction_low"] <= row["fraction"] <= row["fraction_high"]
    assert row["change_low"] <= row["change"] <= row["change_high"]
    assert row["donor"] - row["base"] == pytest.approx(row["change"] / row["fraction"])
    assert abs(row["control"]) < 1.8, "another row's token is rarely the answer"
    assert row["control_low"] <= row["control"] <= row["control_high"]


# Ratios and controls --------------------------------------------------------------------------------------------------


def test_the_fraction_is_a_ratio_of_means_over_batches():
    model, clean, corrupt = pair_of("gpt2")
    pairs, changes, differences = [], [], []
    for row in range(4):
        pair = [batch_of({"input_ids": batch.kwargs["input_ids"][row : row + 1, :6]}) for batch in (clean, corrupt)]
        pairs.append(pair)
        one, *_ = patch(model, *pair, ANSWERS[row], RIVALS[row])
        assert one["fraction_low"] is one["change_low"] is one["control"] is None, "one example"
        changes.append(one["change"])
        differences.append(one["donor"] - one["base"])
    cleans, corrupts = zip(*pairs, strict=True)
    done = []
    first, *_ = patch(
        model, cleans, corrupts, ANSWERS, torch.tensor(RIVALS), report=lambda *counts: done.append(counts)
    )
    assert first["change"] == pytest.approx(sum(changes) / 4, abs=1e-9)
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert first["fraction"] == pytest.approx(sum(changes) / sum(differences), abs=1e-9)
    assert first["examples"] == 4


def test_the_control_puts_the_third_input_in():
    model, clean, corrupt = pair_of("llama")
    third = any_model("llama", torch.float64, seed=4)[1]
    same = patch(model, clean, corrupt, 3, 5, third=clean, directions=["denoising"], controls=2)
    for metric in METRICS:
        rows = [row for row in same if row["metric"] == metric]
        assert sum(row["control"] is not None for row in rows) == 2
    with_control = [row for row in same if row["control"] is not None]
    assert all(row["control"] == pytest.approx(row["fraction"], abs=1e-12) for row in with_control)
    other = patch(model, clean, corrupt, 3, 5, third=third, directions=["denoising"], controls=2)
    assert any(row["control"] != pytest.approx(row["fraction"], abs=1e-3) for row in other if row["control"])


def test_two_models_on_the_same_input():
    model, clean, _ = pair_of("llama")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[1].self_attn.q_proj.weight.mul_(-2)
    rows = patch(model, clean, clean, ANSWERS, RIVALS, other=other, kinds=["attention", "stream"], controls=0)
    for direction in ("denoising", "noising"):
        fractions = by_part(rows, direction)
        assert fractions["L1 attention", None] == pytest.approx(1.0, abs=1e-9)
        assert fractions["L2 stream", None] == pytest.approx(1.0, abs=1e-9)
        for part in ("L0 attention", "L1 stream"):
            assert fractions[part, None] == pytest.approx(0.0, abs=1e-12)


# Bad input ------------------------------------------------------------------------------------------------------------


def test_inputs_that_do_not_match_are_refused():
    model, clean, corrupt = pair_of("gpt2")
    short = batch_of({"input_ids": corrupt.kwargs["input_ids"][:, :8]})
    with pytest.raises(UserError, match=r"row 1: expected the 9 tokens \(source\) of the clean input, got 8"):
        patch(model, clean, short, ANSWERS, RIVALS)
    with pytest.raises(UserError, match=r"expected 4 corrupt inputs.*got 2"):
        patch(model, clean, batch_of({"input_ids": corrupt.kwargs["input_ids"][:2]}), ANSWERS, RIVALS)
    left = Batch((), corrupt.kwargs, corrupt.tokens, {side: each.flip(1) for side, each in corrupt.valid.items()})
    with pytest.raises(UserError, match=r"padding.*corrupt"):
        patch(model, clean, left, ANSWERS, RIVALS)
    with pytest.raises(UserError, match=r"'clean': 1, 'corrupt': 2"):
        patch(model, clean, [corrupt, corrupt], ANSWERS, RIVALS)
    with pytest.raises(UserError, match=r"9 tokens .* got 8 in the third"):
        patch(model, clean, corrupt, ANSWERS, RIVALS, third=short)


def test_bad_questions_are_refused():
    model, clean, corrupt = pair_of("gpt2")
    with pytest.raises(UserError, match="L0H0, row 3: expected a position from -6 to 5, got 7"):
        patch(model, clean, corrupt, ANSWERS, RIVALS, positions=[7])
    with pytest.raises(UserError, match="row 3: expected a position from -6 to 5, got 6"):
        patch(model, clean, corrupt, ANSWERS, RIVALS, read_at=6)
    with pytest.raises(UserError, match=r"row 2: expected an answer of one token, got 2: \[7, 8\]"):
        patch(model, clean, corrupt, [3, [7, 8], 11, 4], RIVALS)
    with pytest.raises(UserError, match="row 1: expected an answer of one token, got 1"):
        patch(model, clean, corrupt, torch.tensor(ANSWERS)[:, None], RIVALS)
    with pytest.raises(UserError, match=r"tokens from 0 to 39 as answers, got .*40"):
        patch(model, clean, corrupt, 40, RIVALS)
    with pytest.raises(UserError, match="an answer for each of 4 examples, got 3"):
        patch(model, clean, corrupt, [3, 7, 11], RIVALS)
    with pytest.raises(UserError, match=r"row 2: expected a rival other than the answer, got 11 for both; name"):
        patch(model, clean, corrupt, ANSWERS, [5, 6, 11, 9])
    with pytest.raises(UserError, match=r"direction 'denoise'.*denoising"):
        patch(model, clean, corrupt, ANSWERS, RIVALS, directions=["denoise"])
    with pytest.raises(UserError, match="kind of part 'neuron'"):
        patch(model, clean, corrupt, ANSWERS, RIVALS, kinds=["neuron"])
    with pytest.raises(UserError, match="evaluation mode"):
        patch(copy.deepcopy(model).train(), clean, corrupt, ANSWERS, RIVALS)
    with pytest.raises(UserError, match=r"L9H0: expected vectors.*got no vectors"):
        patch(model, clean, corrupt, ANSWERS, RIVALS, groups=[Part("head", "decoder.9.self", 0, "L9H0")])
    with pytest.raises(UserError, match=r"L0H9: expected vectors.*got no vectors"):
        patch(model, clean, corrupt, ANSWERS, RIVALS, groups=[Part("head", "decoder.0.self", 9, "L0H9")])
    with pytest.raises(UserError, match=r"part or more to patch, got none; name"):
        patch(model, clean, corrupt, ANSWERS, RIVALS, kinds=[])
    for bad in ("Mary", 5.5, True, torch.tensor(5.5), [5.5, 1, 2, 3], [3, None, 1, 2], {1, 2, 3, 4}, b"abcd"):
        with pytest.raises(UserError, match=r"token ids as answers, got .*encode text with the tokenizer"):
            patch(model, clean, corrupt, bad, RIVALS)
        with pytest.raises(UserError, match="token ids as answers"):
            patch(model, clean, corrupt, ANSWERS, bad)
    with pytest.raises(UserError, match="token ids as answers, got None; pass"):
        patch(model, clean, corrupt, None, RIVALS)
    with pytest.raises(UserError, match=r"expected batches, got str; pass batch_of"):
        patch(model, {"input_ids": clean.kwargs}, corrupt, 3, 5)


def test_an_answer_may_be_a_tensor_without_axes():
    model, clean, corrupt = pair_of("gpt2")
    expected = patch(model, clean, corrupt, 3, 5, controls=0)
    assert patch(model, clean, corrupt, torch.tensor(3), torch.tensor(5), controls=0) == expected


def test_models_that_do_not_fit_are_refused():
    model, clean, corrupt = pair_of("gpt2")
    sizes = {"vocab_size": 40, "n_embd": 16, "n_head": 4, "n_positions": 32}
    deeper = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, n_layer=4)).eval()
    with pytest.raises(UserError, match=r"same parts.*L3H0"):
        patch(model, clean, corrupt, ANSWERS, RIVALS, other=deeper)
    wider = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes | {"n_embd": 32}, n_layer=3)).eval()
    with pytest.raises(UserError, match=r"L0H0: expected an output \(4, 9, 8\) to put in, got \(4, 9, 4\)"):
        patch(model, clean, corrupt, ANSWERS, RIVALS, other=wider)
    broken = copy.deepcopy(model)
    broken.lm_head.weight.data[5] = torch.nan
    with pytest.raises(UserError, match="logit difference: expected a finite number for row 1, got nan"):
        patch(broken, clean, corrupt, ANSWERS, RIVALS)
    bert, batch = any_model("bert")
    with pytest.raises(UserError, match=r"expected logits.*load the model with a head"):
        patch(bert, batch, batch, ANSWERS, RIVALS)


def test_patches_compute_only_the_positions_that_change(monkeypatch):
    model, clean, _ = pair_of("llama")
    ids = clean.kwargs["input_ids"][:1].clone()
    other = ids.clone()
    other[0, 6] = (other[0, 6] + 1) % 40
    rows = []

    def linear(x, weight, bias=None, linear=torch.nn.functional.linear):
        rows.append(x.numel() // x.shape[-1])
        return linear(x, weight, bias)

    run = Copies.run

    def counted(self, clean, copies, *args, **options):
        with monkeypatch.context() as patched:
            patched.setattr(torch.nn.functional, "linear", linear)
            return run(self, clean, copies, *args, **options)

    monkeypatch.setattr(Copies, "run", counted)
    patch(model, batch_of({"input_ids": ids}), batch_of({"input_ids": other}), 3, 5, directions=["noising"])
    # The last forward has all 12 heads. Position 6 and the two after it change; the answer is read at the last.
    *_, last = rows
    assert last == 12, "the unembedding, once for each copy"
    layers = rows[-(3 + 2 * 7 + 1) :]
    assert sum(layers) < 0.5 * 12 * 9 * len(layers), layers


# One input -----------------------------------------------------------------------------------------------------------


def score_of(batch: Batch):
    """The log-probability of the token before the last one of a batch, for any input."""
    answer = int(batch.args[0][0, -2])
    return lambda outputs, rows: outputs[:, -1].double().log_softmax(-1)[:, answer]


def test_the_head_that_copies_carries_all_of_the_difference_of_two_inputs():
    model, one, other = Circuit([previous(), silent()]), examples(1), examples(1, 5)
    score = score_of(one)
    rows = {(row["part"], row["position"]): row for row in exchange(model, one, score, other, controls=9)}
    with torch.no_grad():
        difference = float((score(model(*one.args), one) - score(model(*other.args), other))[0])
    head, decoy, together = (rows[name, None] for name in ("L0H0", "L0H1", "all heads"))
    assert difference > 5
    for row in (head, together):
        assert (row["noised"], row["restored"]) == pytest.approx((difference, difference), abs=1e-4)
        assert row["share"] == pytest.approx(1.0, abs=1e-5)
        assert row["passes"]
        assert row["control"] < difference / 2
    assert (decoy["noised"], decoy["restored"], decoy["passes"]) == (0.0, 0.0, False)


def test_the_stream_carries_the_difference_from_the_word_to_the_answer():
    model, clean = any_model("llama", torch.float64)
    ids = clean.kwargs["input_ids"][:1]
    changed = ids.clone()
    changed[0, 6] = (ids[0, 6] + 1) % 40
    one, other = (batch_of({"input_ids": each}) for each in (ids, changed))
    metric = logit_difference(3, 5)
    rows = exchange(model, one, metric, other, kinds=["head", "stream"], by_position=True, controls=1)
    shares = {(row["part"], row["position"]): row["share"] for row in rows if row["kind"] == "stream"}
    assert len(shares) == 4 * 9
    assert shares["L0 stream", 6] == pytest.approx(1.0, abs=1e-9)
    assert shares["L2 stream out", 8] == pytest.approx(1.0, abs=1e-6)
    assert {shares["L1 stream", place] for place in range(6)} == {0.0}, "no token before sees the changed one"


def test_parts_of_another_model_are_those_of_patch():
    model, clean = any_model("gpt2", torch.float64)
    ids = clean.kwargs["input_ids"][:1]
    one = batch_of({"input_ids": ids})
    torch.manual_seed(5)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.transformer.h[1].attn.c_attn.weight += 0.2 * torch.randn_like(other.transformer.h[1].attn.c_attn.weight)
    metric = logit_difference(3, 5)
    rows = exchange(model, one, metric, one, other, kinds=["head", "mlp"], controls=2)
    expected = patch(model, one, one, 3, 5, other=other, kinds=["head", "mlp"], controls=0)
    for name, direction, sign in (("noised", "noising", -1), ("restored", "denoising", 1)):
        changes = by_part(expected, direction, column="change")
        own = {(row["part"], row["position"]): sign * row[name] for row in rows if row["kind"] != "group"}
        assert own == pytest.approx(changes, abs=1e-9)
    by_name = {row["part"]: row for row in rows}
    assert [by_name[f"L0H{head}"]["noised"] for head in range(4)] == [0.0] * 4, "the two layers are equal"
    assert max(abs(by_name[f"L1H{head}"]["noised"]) for head in range(4)) > 1e-3
    alike = exchange(model, one, metric, one, copy.deepcopy(model), controls=1)
    assert {(row["noised"], row["restored"], row["share"]) for row in alike} == {(0.0, 0.0, None)}


def test_one_input_of_another_length_or_shape_is_refused():
    model, one = Circuit([previous()]), examples(1)
    shorter = Batch((one.args[0][:, 1:],), tokens=[{"target": one.tokens[0]["target"][1:]}])
    with pytest.raises(UserError, match=r"expected the 10 tokens \(target\) of the clean input, got 9"):
        exchange(model, one, score_of(one), shorter)
    with pytest.raises(UserError, match=r"same parts, got L0H1 \(decoder.0.cross\) in one of them only"):
        exchange(model, one, score_of(one), one, Circuit([previous(), silent()]))
    with pytest.raises(UserError, match="score: expected a finite number for row 1, got nan"):
        exchange(model, one, lambda outputs, rows: outputs[:, -1, 0] * torch.nan, one)
    with pytest.raises(UserError, match="evaluation mode"):
        exchange(model, one, score_of(one), one, Circuit([previous()]).train())
