"""Walks, the softmax lens and their text: compared with the model, autograd and the matrices."""

import math
import re
from dataclasses import replace

import pytest
import torch

import jarilab
import jarilab.api
import jarilab.inspect.explain.softmax
import jarilab.inspect.explain.walk_text
from helpers.inside import walk
from jarilab.attention import definition
from jarilab.attention.module import AttentionKernel
from jarilab.core.errors import UserError
from jarilab.explorer import open_explorer
from jarilab.inspect.explain.softmax import divisors_of, softmax_jacobian, softmax_lens
from jarilab.inspect.explain.steps import Step
from jarilab.inspect.explain.value_norms import value_norms_of
from jarilab.inspect.explain.walk import walk_of
from jarilab.inspect.explain.walk_text import lens_text, walk_text
from jarilab.inspect.measure.maps import equal_row_difference, equal_tokens
from jarilab.inspect.record.capture import record
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.recurrent import Recurrent
from jarilab.nn.init import initialise
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.tasks.base import Task
from jarilab.tasks.predictors.base import predictor_class

ENCODINGS = [
    "none",
    "sinusoidal",
    "learned",
    "rotary",
    "rotary:fraction=0.5,pairing=interleaved",
    "alibi",
    "shaw",
    "t5",
    "sinusoidal+rotary",
    "learned+shaw+t5",
    "rotary+alibi",
]
SITES = ["encoder.0", "encoder.1", "decoder.0.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross"]
QUERIES, KEYS = list("<12"), list("21+211")


def model_of(encoding, dtype=torch.float64, **options):
    model = EncoderDecoder(15, 15, d_model=16, n_heads=2, encoding=encoding, **options)
    initialise(model, 1)
    # Encodings and biases start near 0. Larger values make their effect visible.
    for name, parameter in model.named_parameters():
        if "encoding" in name or "bias" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    return model.to(dtype).eval()


def inputs(keep=None):
    source = Tokens(torch.tensor([[5, 4, 13, 5, 4, 4]]), Positions.sequence(6, frame="source"), keep)
    return source, Tokens(torch.tensor([[1, 4, 5]]), Positions.sequence(3, frame="target"))


def walk_at(encoding="rotary", site="encoder.0", head=0, keep=None, dtype=torch.float64, **options):
    queries = KEYS if site.startswith("encoder") else QUERIES
    keys = QUERIES if site.endswith("self") else KEYS
    model = model_of(encoding, dtype, **options)
    return walk(model, inputs(keep), site=site, head=head, queries=queries, keys=keys)


def step(walked, name):
    (single,) = [s for s in walked.steps if s.name == name]
    return single


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_walk_ends_at_the_output(encoding):
    for number, site in enumerate(SITES):
        head = number % 2
        walked = walk_at(encoding, site, head)
        assert walked.error < 1e-12
        assert (walked.site, walked.head) == (site, head)
        assert walked.encoding == ("none" if site.endswith("cross") else encoding)


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "post"},
        {"norm_kind": "batch"},
        {"scale": "none"},
        {"cross_encoding": "rotary"},
        {"kernel": "definition"},
        {"norm_kind": "rms", "gated": True, "bias": False, "activation": "silu", "embedding_scale": "none"},
        {"n_kv_heads": 1, "d_head": 6, "embedding_norm": True},
    ],
    ids=str,
)
def test_walks_of_other_models(options):
    for site in SITES:
        assert walk_at(site=site, **options).error < 1e-12


def test_walk_has_the_steps_that_were_computed():
    plain = {"bias": False, "embedding_scale": "none"}
    walked = walk_at("sinusoidal", embedding_norm=True, **plain)
    formulas = {s.name: s.formula for s in walked.steps}
    assert formulas["embedding"] == "E[token]"
    assert formulas["embedding norm"] == "norm before the first layer"
    assert formulas["Q"] == "input W_Q"
    assert formulas["output"] == "all heads side by side, W_O"
    (embedding,) = (s.formula for s in walk_at("rotary", embedding_norm=True).steps if s.name == "embedding")
    assert embedding == "norm(E[token] * sqrt(D))"


def test_float32_walk_ends_near_the_output():
    assert 0 < walk_at(dtype=torch.float32).error < 1e-5


def test_walk_with_another_output_raises(monkeypatch):
    right = definition.output
    monkeypatch.setattr(definition, "output", lambda call: right(call) + 1e-3)
    with pytest.raises(RuntimeError, match=r"the walk through encoder\.0 ends .* away from the model's own output"):
        walk_at()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_steps_equal_what_the_model_computed(encoding):
    model = model_of(encoding)
    walked = walk(model, inputs(), site="encoder.0", head=1, queries=KEYS, keys=KEYS)
    with record(model) as tape:
        model(*inputs())
    call = tape.recorded("encoder.0").call
    torch.testing.assert_close(step(walked, "weights").matrix, definition.weights(call)[0, 1])
    rotated = " rotated" if "rotary" in encoding else ""
    torch.testing.assert_close(step(walked, f"Q{rotated}").matrix, call.q[0, 1])
    torch.testing.assert_close(step(walked, f"K{rotated}").matrix, call.k[0, 1])
    torch.testing.assert_close(step(walked, "V").matrix, call.v[0, 1])
    scores = [s for s in walked.steps if s.name in ("scores", "+ bias")][-1]
    torch.testing.assert_close(scores.matrix, definition.scores(call)[0, 1])
    names = [s.name for s in walked.steps]
    assert ("embedding + position" in names) == ("sinusoidal" in encoding or "learned" in encoding)
    assert ("+ terms" in names) == ("shaw" in encoding)
    assert ("+ bias" in names) == ("t5" in encoding or "alibi" in encoding)
    assert names[-3:] == ["weights", "weights V", "output"]


def test_embedding_is_the_input_of_the_stack():
    walked = walk_at("sinusoidal")
    model = model_of("sinusoidal")
    torch.testing.assert_close(step(walked, "embedding").matrix, model.source_embedding(inputs()[0].ids)[0])
    normed = model.encoder.layers[0].attention_residual.norm(step(walked, "embedding + position").matrix)
    torch.testing.assert_close(step(walked, "input").matrix, normed)


@pytest.mark.parametrize("site", ["encoder.0", "encoder.1"])
def test_without_positions_equal_tokens_are_equal_in_every_step(site):
    for head in (0, 1):
        for one in walk_at("none", site, head).steps:
            assert len(one.equal) == len(equal_tokens(one.rows)) == 4
            assert set(one.equal.values()) == {0.0}, one.name


@pytest.mark.parametrize(
    ("encoding", "first"),
    [
        ("sinusoidal", "embedding + position"),
        ("learned", "embedding + position"),
        ("rotary", "Q rotated"),
        ("alibi", "+ bias"),
        ("t5", "+ bias"),
        ("shaw", "+ terms"),
    ],
)
def test_equal_tokens_differ_from_the_step_of_the_encoding_on(encoding, first):
    steps = walk_at(encoding).steps
    names = [s.name for s in steps]
    apart = [s.name for s in steps if max(s.equal.values()) > 1e-6]
    assert apart[0] == first
    later = {"weights", "weights V", "output"}
    assert later <= set(apart)
    assert all(set(s.equal.values()) == {0.0} for s in steps[: names.index(first)])


def test_cross_attention_has_both_sides():
    walked = walk_at(site="decoder.0.cross")
    assert (step(walked, "Q").rows, step(walked, "K").rows) == (QUERIES, KEYS)
    assert step(walked, "source").matrix.shape == (6, 16)
    assert step(walked, "scores").matrix.shape == (3, 6)
    assert step(walked, "K").formula == "source W_K + b_K"


def test_hidden_keys_are_null_in_json():
    keep = torch.tensor([[True] * 5 + [False]])
    walked = walk_at(keep=keep)
    assert (step(walked, "masked").matrix[:, 5] == -math.inf).all()
    assert (step(walked, "weights").matrix[:, 5] == 0).all()
    record_of = walked.as_dict()
    (masked,) = [s for s in record_of["steps"] if s["name"] == "masked"]
    assert [row[5] for row in masked["matrix"]] == [None] * 6
    assert "-inf" in walk_text(walked, "head")
    causal = step(walk_at(site="decoder.0.self"), "masked").matrix
    assert torch.equal(causal == -math.inf, torch.ones(3, 3).triu(1).bool())


def test_unknown_site_or_head_raises():
    with pytest.raises(UserError, match=r"unknown site 'encodr\.0'; did you mean 'encoder\.0'\? Known: decoder"):
        walk_at(site="encodr.0")
    for head in (2, -1):
        with pytest.raises(UserError, match=f"encoder.0 has the heads 0 to 1, got {head}"):
            walk_at(head=head)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_step_names_its_rows(encoding):
    for site in SITES[1:4]:
        walked = walk_at(encoding, site)
        sides = {s.name: s.side for s in walked.steps}
        of_keys = {"source", "K", "V", "K rotated"} if site.endswith("cross") else {"K", "V", "K rotated"}
        assert {name for name, side in sides.items() if side == "keys"} == of_keys & set(sides)
        assert {side for name, side in sides.items() if name not in of_keys} == {"queries"}
        assert [s["rows_are"] for s in walked.as_dict()["steps"]] == list(sides.values())
        for one in walked.steps:
            # Causal self-attention has as many queries as keys; the names differ.
            names = {"queries": QUERIES if "decoder" in site else KEYS, "keys": QUERIES if "self" in site else KEYS}
            assert one.rows == names[one.side]


@pytest.mark.parametrize("score", ["general", "concat"])
def test_every_step_of_a_recurrent_decoder_names_its_rows(score):
    model = Recurrent(15, 15, d_model=8, score=score)
    initialise(model, 1)
    walked = walk(model.double(), inputs(), site="decoder.0.cross", head=0, queries=QUERIES, keys=KEYS, step=1)
    for one in walked.steps:
        rows = {"queries": [QUERIES[1]], "keys": KEYS}
        assert one.side in ("queries", "keys", "parameter")
        assert one.rows == rows.get(one.side, one.rows)
        assert (one.side == "parameter") == (one.name in {"W_a", "W_a[:8]", "W_a[8:]", "v", "W_concat", "W_gen"})
        assert one.side != "parameter" or one.equal == {}


def test_walk_of_a_single_encoder_starts_at_its_input():
    encoder = jarilab.Encoder(16, 2, encoding="sinusoidal").double().eval()
    initialise(encoder, 1)
    x = torch.randn(1, 3, 16, dtype=torch.float64)
    walked = walk(encoder, (x,), site="1", head=1, queries=QUERIES, keys=QUERIES)
    assert (walked.encoding, walked.error < 1e-12) == ("sinusoidal", True)
    assert torch.equal(step(walked, "embedding").matrix, x[0])
    assert step(walked, "embedding").formula == "what the model makes of its input"
    assert step(walked, "embedding + position").formula == "embedding + sinusoidal"
    alone = jarilab.Attention(16, 2, encoding="rotary").double().eval()
    walked = walk(alone, (x,), site="attention", head=1, queries=QUERIES, keys=QUERIES)
    assert (walked.encoding, walked.steps[0].name) == ("Rotary", "input")


def test_walk_needs_activations_and_a_known_attention():
    model = model_of("rotary")
    with record(model) as tape:
        model(*inputs())
    with pytest.raises(UserError, match=r"record the forward with jarilab.record\(model, inside=True\)"):
        walk_of(tape, "encoder.0", 0, queries=KEYS, keys=KEYS)

    class OwnAttention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = AttentionKernel()

        def forward(self, call):
            return self.attend(call)

    call = tape.recorded("encoder.0").call
    with record(own_line := OwnAttention(), inside=True) as tape:
        own_line(call)
    for look in (
        lambda: walk_of(tape, "attention", 0, queries=KEYS, keys=KEYS),
        lambda: value_norms_of(tape, "attention", 0),
    ):
        with pytest.raises(
            UserError, match=r"attention is a OwnAttention: expected jarilab.Attention or .* with tape.weights"
        ):
            look()


def test_model_is_unchanged():
    model = model_of("rotary")
    walk(model, inputs(), site="decoder.0.self", head=0, queries=QUERIES, keys=QUERIES)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    "run", ["class", *(pytest.param(name, marks=pytest.mark.long) for name in ("rotary2d", "detection"))]
)
def test_walk_of_an_image_run_equals_its_page(image_runs, run):
    view = open_explorer([image_runs / run]).look("#3", live=False)["views"][0]
    tokens = {side: of_side["tokens"] for side, of_side in view["sides"].items()}
    for site in view["sites"]:
        walk_at = jarilab.api.walk(image_runs / run, "#3", site=site["site"], head=1)
        assert (walk_at.input, walk_at.answer) == ("#3", view["answer"])
        assert walk_at.walk.error < 1e-9
        weights = step(walk_at.walk, "weights")
        assert (weights.rows, weights.columns) == (tokens[site["queries"]], tokens[site["keys"]])
        assert weights.matrix.dtype == torch.float64
        assert list(weights.matrix.shape) == site["shape"]


@pytest.mark.parametrize(
    ("run", "caption"), [("painter", "a small red 3 top left"), pytest.param("folder", "light", marks=pytest.mark.long)]
)
def test_walk_of_a_painting_run_equals_its_page(painted_runs, run, caption):
    view = open_explorer([painted_runs / run]).look(caption, live=False)["views"][0]
    tokens = view["sides"]["target"]["tokens"]
    walk_at = jarilab.api.walk(painted_runs / run, f"{caption}\n")
    assert (walk_at.input, walk_at.answer) == (caption, view["answer"])
    assert (walk_at.walk.site, walk_at.walk.head) == ("decoder.0.self", 0)
    assert jarilab.api.walk(painted_runs / run, caption, site="decoder.1.self", head=1).walk.error < 1e-9
    weights = step(walk_at.walk, "weights")
    assert weights.rows == weights.columns == tokens
    assert weights.matrix.dtype == torch.float64
    shown = unpacked(view["sites"][0]["weights"])[0]
    assert torch.allclose(weights.matrix.float(), torch.from_numpy(shown).float(), atol=1e-4)
    assert step(walk_at.walk, "embedding").formula == "E[token] * sqrt(D)"


def test_unknown_predictor_raises():
    singing = type("Singing", (Task,), {"predictor": "songs"})
    with pytest.raises(UserError, match=r"unknown predictor 'songs'; Known: classes, continuation, detection"):
        predictor_class(singing)


# Measures ------------------------------------------------------------------------------------------------------------


def test_equal_tokens_are_all_pairs():
    assert equal_tokens("abab") == [(0, 2), (1, 3)]
    assert equal_tokens("aaa") == [(0, 1), (0, 2), (1, 2)]
    assert equal_row_difference(torch.rand(2, 3, 3), list("abc")) is None


def test_row_difference_is_per_head():
    same, other = [[0.1, 0.6, 0.3]] * 3, [[0.2, 0.7, 0.1], [0.4, 0.4, 0.2], [0.2, 0.6, 0.2]]
    assert equal_row_difference(torch.tensor([same, other]), list("aaa")) == pytest.approx([0.0, 0.3])
    assert equal_row_difference(torch.tensor([same, other]), list("aba")) == pytest.approx([0.0, 0.1])


# The softmax ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_softmax_jacobian_equals_autograd(scale):
    scores = scale * torch.randn(7, dtype=torch.float64)
    by_autograd = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
    by_formula = softmax_jacobian(scores.softmax(-1))
    torch.testing.assert_close(by_formula, by_autograd)
    assert by_formula.trace().item() == pytest.approx(1 - scores.softmax(-1).square().sum().item())


@pytest.mark.parametrize("encoding", ["none", "rotary", "alibi", "shaw"])
@pytest.mark.parametrize("site", ["encoder.0", "decoder.0.self"])
def test_lens_equals_autograd(encoding, site):
    """The derivatives of each query by autograd, through the encoding too."""
    model = model_of(encoding).requires_grad_(False)
    names = KEYS if site == "encoder.0" else QUERIES
    walked = walk(model, inputs(), site=site, head=1, queries=names, keys=names)
    call, place, width = walked.call, walked.call.geometry, 8
    bias = torch.zeros(1, 2, 1, 1) if place.bias is None else place.bias
    bias = bias.expand(1, 2, call.q.shape[2], call.k.shape[2])[0, 1]

    def scores_of(q, row, divisor):
        """The scores of one query that is `q`, whatever the encoding makes of it."""
        queries = torch.cat((call.q[:, :, :row], q.expand(1, 2, 1, width), call.q[:, :, row + 1 :]), 2)
        terms = place.encoding.terms(queries, call.k, place.relation)
        return (call.k[0, 1] @ q + (0 if terms is None else terms[0, 1, row])) / divisor + bias[row]

    for lens, divisor in zip(softmax_lens(call, 1), (1.0, math.sqrt(width), float(width)), strict=True):
        assert lens.divisor == divisor
        figures = []
        for row in range(len(walked.steps[0].rows)):
            seen = row + 1 if site.endswith("self") else 6
            if seen == 1:
                continue

            def weights(q, row=row, divisor=divisor, seen=seen):
                return scores_of(q, row, divisor)[:seen].softmax(-1)

            q = call.q[0, 1, row]
            p, scores = weights(q), scores_of(q, row, divisor)[:seen]
            by_scores = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)
            by_query = torch.autograd.functional.jacobian(weights, q)
            entropy = -(p * p.log()).sum() / math.log(seen)
            trace = 1 - p.square().sum()
            figures.append([entropy, p.max(), trace, by_scores.square().sum(), by_query.square().sum()])
        entropy, largest, trace, scores, query = torch.tensor(figures).mean(0).tolist()
        assert lens.entropy == pytest.approx(entropy)
        assert lens.largest == pytest.approx(largest)
        assert lens.trace == pytest.approx(trace)
        assert lens.jacobian == pytest.approx(math.sqrt(scores))
        assert lens.gradient == pytest.approx(math.sqrt(query))


def test_lens_takes_any_divisors():
    call = walk_at("shaw").call
    divisors = divisors_of(8)
    assert (len(divisors), divisors[8], divisors[16], divisors[24]) == (33, 1.0, math.sqrt(8), 8.0)
    assert (divisors[0], divisors[-1]) == pytest.approx((8**-0.5, 8**1.5))
    torch.testing.assert_close(torch.tensor(divisors).log().diff(), torch.full((32,), math.log(8) / 16))
    assert [divisor for divisor in divisors_of(1) if divisor == 1] == [1]
    every = softmax_lens(call, 1, divisors)
    assert [lens.divisor for lens in every] == divisors
    assert [every[i] for i in (8, 16, 24)] == softmax_lens(call, 1)
    assert [every[i].name for i in (0, 8, 16, 24, 32)] == ["0.3536", "1", "sqrt(8)", "8", "22.63"]
    assert softmax_lens(call, 1, [3.0])[0].name == "3"
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UserError, match=f"scores can be divided by a number above 0, got {wrong:g}"):
            softmax_lens(call, 1, [1.0, wrong])


@pytest.mark.parametrize("encoding", ["rotary", "shaw+t5"])
def test_long_lens_samples_queries(encoding, monkeypatch):
    model = model_of(encoding)
    target = torch.randint(15, (1, 40))
    with record(model) as tape:
        model(inputs()[0], target)
    call = tape.recorded("decoder.0.self").call
    assert {(lens.queries, lens.choosing) for lens in softmax_lens(call, 0)} == {(39, 39)}
    each = []
    for row in (1, 20, 39):
        alone = tape.recorded("decoder.0.self").call
        alone = replace(alone, geometry=replace(alone.geometry, allowed=alone.geometry.allowed.clone()))
        others = torch.arange(40) != row
        alone.geometry.allowed[:, :, others] = torch.arange(40) == 0
        (lens,) = softmax_lens(alone, 0, [2.0])
        assert (lens.queries, lens.choosing) == (1, 1)
        each.append(lens)
    monkeypatch.setattr(jarilab.inspect.explain.softmax, "MAX_DERIVATIVES", 39 * 40 * 8 - 1)
    monkeypatch.setattr(jarilab.inspect.explain.softmax, "SAMPLED_QUERIES", 3)
    (lens,) = softmax_lens(call, 0, [2.0])
    assert (lens.queries, lens.choosing) == (3, 39)
    assert lens.entropy == pytest.approx(sum(one.entropy for one in each) / 3)
    assert lens.gradient == pytest.approx(math.sqrt(sum(one.gradient**2 for one in each) / 3))


def test_saturated_softmax_has_small_derivatives():
    """One weight is 1 - 3e-15: differences of numbers near 1 would give the norms of their rounding."""
    walked = walk_at("none")
    products = torch.full((6, 6), math.log(3e-15 / 5), dtype=torch.float64).fill_diagonal_(0.0)
    q = torch.cat((products, torch.zeros(6, 2)), 1).expand(1, 2, 6, 8)
    k = torch.eye(6, 8, dtype=torch.float64).expand(1, 2, 6, 8)
    (lens,) = softmax_lens(replace(walked.call, q=q, k=k, v=k), 0, [1.0])
    # Of diag(p) - p p^T, with p_j = r / 5 for five: the corner is r, a row and a column -r / 5, the diagonal r / 5.
    assert lens.jacobian == pytest.approx(3e-15 * math.sqrt(1 + 2 / 5 + 1 / 5), rel=1e-6, abs=0)
    assert lens.gradient == pytest.approx(lens.jacobian, rel=0.1, abs=0)


def test_lens_of_a_recurrent_decoder():
    """An additive score: derivatives by autograd, one query at a time."""
    model = Recurrent(15, 15, d_model=8, score="additive", cross_encoding="shaw", input_feeding=False)
    initialise(model, 1)
    with record(model.double().eval()) as tape:
        model(*inputs())
    call = tape.recorded("decoder.0.cross").call
    (lens,) = softmax_lens(call, 0, [0.5])
    norms = []
    for row in range(3):

        def weights(q, row=row):
            scores = call.score(q.view(1, 1, 1, 8), call.k)
            place = call.geometry
            relation = place.encoding.relation(place.q_pos.slice(row, row + 1), place.k_pos)
            return ((scores + call.geometry.encoding.terms(q.view(1, 1, 1, 8), call.k, relation)) / 0.5).softmax(-1)

        norms.append(torch.autograd.functional.jacobian(weights, call.q[0, 0, row]).square().sum())
    assert lens.gradient == pytest.approx(torch.stack(norms).mean().sqrt().item())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_larger_divisor_makes_weights_more_even():
    entropies = [lens.entropy for lens in softmax_lens(walk_at().call, 0)]
    assert entropies == sorted(entropies)
    assert entropies[-1] <= 1


def test_lens_with_one_key_raises():
    keep = torch.tensor([[True] + [False] * 5])
    with pytest.raises(UserError, match="every query at this site may look at one key only, so there is nothing to"):
        softmax_lens(walk_at(keep=keep).call, 0)


# The text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_text_has_every_step_with_its_shape(encoding):
    walked = walk_at(encoding)
    text = walk_text(walked, "21+211 -> 232")
    assert text.startswith(f"21+211 -> 232    encoding {encoding}, encoder.0, head 0\n")
    for one in walked.steps:
        rows, columns = one.matrix.shape
        assert f"{one.name}: {one.formula}    ({rows} x {columns})" in text
    assert "(6 x 16)" in text
    assert "(6 x 8)" in text
    assert "(6 x 6)" in text
    assert "away from what the model itself computed." in text


def test_text_names_the_step_where_equal_tokens_differ():
    assert "Equal tokens first differ in: Q rotated." in walk_text(walk_at("rotary"), "")
    same = walk_text(walk_at("none"), "")
    assert "Equal tokens have the same row in every matrix" in same
    assert "'2' at 0 and at 3: the same row" in same
    assert "differ in" not in same


def test_text_fills_a_terminal_and_marks_the_query_that_is_followed():
    walked = walk_at("none")
    for columns in (50, 120):
        lines = walk_text(walked, "", columns).split("\n")
        table = [line for line in lines if re.match(r" *(> )?\S+( +-?\d+\.\d{4})+", line)]
        assert max(map(len, table)) <= columns
        assert max(len(re.findall(r"\d\.\d{4}", line)) for line in table) == {50: 3, 120: 11}[columns]
        start = lines.index("weights: softmax of each row    (6 x 6)")
        marks = [line.lstrip().startswith("> ") for line in lines[start + 2 : start + 8]]
        assert marks == [False] * 5 + [True]


def test_leading_space_is_visible_in_text():
    matrix = torch.zeros(3, 3)
    tokens = [" der", "der", " der"]
    one = Step("weights", "softmax of each row", matrix, "queries", tokens, tokens)
    assert list(one.equal) == ["'␣der' at 0 and at 2"]
    walked = replace(walk_at(), steps=[one])
    top, *rows = walk_text(walked, "").split("\n")[3:7]
    assert top.split() == [row.split()[0] for row in rows] == ["␣der", "der", "␣der"]


def test_numbers_in_the_text_are_those_of_the_matrix(monkeypatch):
    monkeypatch.setattr(jarilab.inspect.explain.walk_text, "MAX_COMPONENTS", 4)  # of vectors; maps have all columns
    walked = walk_at("none")
    lines = walk_text(walked, "").split("\n")
    start = lines.index("weights: softmax of each row    (6 x 6)")
    assert lines[start + 1].split() == KEYS
    for token, row, line in zip(KEYS, step(walked, "weights").matrix.tolist(), lines[start + 2 :], strict=False):
        assert line.split() == [token, *(f"{value:.4f}" for value in row)]
    assert "... 12 more" in lines[lines.index(next(line for line in lines if line.startswith("input:"))) + 2]


def test_lens_text_marks_the_divisor_of_the_model():
    text = lens_text(walk_at(), "21+211 -> 232")
    (own_line,) = [line for line in text.split("\n") if "<- the model's own" in line]
    assert own_line.split()[0] == "sqrt(8)"
    assert "The derivative at the query '1' (place 5); rows p_i, columns s_j:" in text


def test_walk_names_an_absent_divisor():
    lines = lens_text(walk_at(scale="none"), "21+211 -> 232").split("\n")
    (own_line,) = [line for line in lines if "<- the model's own" in line]
    assert own_line.split()[0] == "1"
    step = next(step for step in walk_at(scale="none").steps if step.name == "scores")
    assert step.formula == "not divided by sqrt(8), as this model was trained"
