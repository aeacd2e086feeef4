"""Parts of scores against formulas, and norms of weighted values against a loop."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.inside import parts
from jarilab.attention.module import Attention
from jarilab.core.errors import UserError
from jarilab.encodings.compose import build
from jarilab.encodings.formulas.absolute import sinusoidal_embed
from jarilab.inspect.explain.score_parts import rotated_together
from jarilab.inspect.explain.value_norms import value_norms_of
from jarilab.inspect.measure.maps import equal_tokens, row_difference
from jarilab.inspect.record.capture import look_inside, record
from jarilab.models.decoder import LanguageModel
from jarilab.models.encoder_decoder import EncoderDecoder
from jarilab.models.recurrent import Recurrent
from jarilab.models.stacks import Encoder
from jarilab.nn.init import initialise
from jarilab.positions.coordinates import Positions, Tokens

WAVE = f"{Path(__file__).parents[3] / 'helpers' / 'toy_encodings.py'}:Wave"
ORIGINS = ["content . content", "content . position", "position . content", "position . position"]
PAIRS = ["pair 0, a turn in 6.283", "pair 1, a turn in 62.83", "pair 2, a turn in 628.3", "pair 3, a turn in 6283"]
HALF = ["pair 0, a turn in 6.283", "pair 1, a turn in 628.3", "not turned"]
NAMES = {
    "none": ["q . k"],
    "sinusoidal": ORIGINS,
    "learned:positions=9": ORIGINS,
    "rotary": PAIRS,
    "rotary:fraction=0.5,pairing=interleaved": HALF,
    "alibi": ["q . k", "bias"],
    "t5": ["q . k", "bias"],
    "shaw": ["q . k", "terms"],
    "sinusoidal+learned+rotary": ORIGINS,
    "learned+shaw+t5": [*ORIGINS, "terms", "bias"],
    "rotary+alibi": [*PAIRS, "bias"],
    WAVE: ORIGINS,
    f"sinusoidal+{WAVE}": ORIGINS,
}
SITES = ["encoder.0", "encoder.1", "decoder.0.self", "decoder.1.self", "decoder.0.cross", "decoder.1.cross"]
EQUAL = equal_tokens(list("21+211"))
WORD = torch.tensor([[5, 4, 13, 5, 4, 4]])


def with_large_parameters(model, dtype=torch.float64):
    """A model with large biases, encodings and gains."""
    initialise(model, 1)
    for name, parameter in model.named_parameters():
        if any(word in name for word in ("encoding", "bias", "norm")):
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    return model.to(dtype).eval()


def model_of(encoding, dtype=torch.float64, **options):
    return with_large_parameters(EncoderDecoder(15, 15, d_model=16, n_heads=2, encoding=encoding, **options), dtype)


def inputs():
    keep = torch.tensor([[True] * 5 + [False]])
    return Tokens(WORD, Positions.sequence(6, frame="source"), keep), torch.tensor([[1, 4, 5]])


def scores_of(model, inputs, site, head):
    with record(model) as tape:
        model(*inputs)
    return tape.scores(site)[0, head]


def check(model, inputs, site, head, names=None):
    """Compare the sum of the parts with the scores."""
    result = parts(model, inputs, site, head)
    scores = scores_of(model, inputs, site, head)
    assert names is None or result.names == names
    assert len(result.names) == len(set(result.names)) == len(result.matrices)
    assert all(matrix.shape == scores.shape and matrix.dtype == scores.dtype for matrix in result.matrices)
    difference = (sum(result.matrices) - scores).abs().max().item()
    assert difference < 1e-11
    assert result.error == pytest.approx(difference, abs=1e-13)
    return dict(zip(result.names, result.matrices, strict=True))


# The sum -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", NAMES, ids=lambda spec: spec.replace(WAVE, "wave"))
def test_parts_add_up_to_the_scores(encoding):
    model = model_of(encoding)
    for site in SITES[:4]:
        check(model, inputs(), site, 1, NAMES[encoding])
    added = ORIGINS if {"sinusoidal", "learned"} & set(encoding.replace(":", "+").split("+")) else ["q . k"]
    for site in SITES[4:]:
        check(model, inputs(), site, 0, added)


@pytest.mark.parametrize(
    "options",
    [
        {"norm_kind": "batch"},
        {"norm_kind": "rms"},
        {"scale": "none"},
        {"bias": False, "n_kv_heads": 1, "d_head": 6},
        {"embedding_norm": True},
    ],
    ids=str,
)
def test_parts_of_other_layers_add_up(options):
    model = model_of("sinusoidal+shaw", **options)
    for buffer in model.buffers():
        buffer.uniform_(0.5, 2.0)
    for site in SITES[:4]:
        check(model, inputs(), site, 1, [*ORIGINS, "terms"])


@pytest.mark.parametrize("encoding", NAMES, ids=lambda spec: spec.replace(WAVE, "wave"))
def test_parts_of_a_language_model_add_up(encoding):
    model = with_large_parameters(LanguageModel(15, d_model=16, n_heads=2, encoding=encoding))
    for site in ("decoder.0.self", "decoder.1.self"):
        check(model, (WORD,), site, 0, NAMES[encoding])


@pytest.mark.parametrize("score", ["dot", "general", "concat", "additive"])
@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("cross", ["none", "t5", "shaw", "rotary+shaw+alibi"])
def test_parts_of_a_recurrent_decoder_add_up(score, feeding, cross):
    product = score in ("dot", "general")
    if "rotary" in cross and not product:
        return
    model = with_large_parameters(
        Recurrent(15, 15, d_model=8, score=score, input_feeding=feeding, cross_encoding=cross)
    )
    names = {
        "none": [],
        "t5": ["bias"],
        "shaw": ["terms"],
        "rotary+shaw+alibi": ["terms", "bias"],
    }[cross]
    first = PAIRS if "rotary" in cross else ["q . k"] if product else ["score"]
    check(model, inputs(), "decoder.0.cross", 0, first + names)


def test_cross_encoding_is_a_part_of_its_own():
    model = model_of("none", cross_encoding="t5")
    result = check(model, inputs(), "decoder.0.cross", 1, ["q . k", "bias"])
    encoding = model.decoder.cross_encoding.by_layer[0]
    bias = encoding.bias(Positions.sequence(3, frame="target"), Positions.sequence(6, frame="source"))[1]
    torch.testing.assert_close(result["bias"], bias)


def test_only_one_side_may_have_positions():
    of_source = model_of("none", encoder_encoding="sinusoidal")
    check(of_source, inputs(), "decoder.1.cross", 0, ["content . content", "content . position"])
    of_target = model_of("none", decoder_encoding="sinusoidal")
    check(of_target, inputs(), "decoder.1.cross", 0, ["content . content", "position . content"])
    check(of_target, inputs(), "encoder.1", 0, ["q . k"])


def test_float32_adds_up_less_exactly():
    result = parts(model_of("sinusoidal", torch.float32), inputs(), "encoder.1", 0)
    assert 0 < result.error < 1e-4
    assert all(matrix.dtype == torch.float32 for matrix in result.matrices)


def test_parts_that_do_not_add_up_raise(monkeypatch):
    model = model_of("rotary")
    right = parts(model, inputs(), "encoder.0", 0)
    monkeypatch.setattr("jarilab.inspect.explain.score_parts.rotated_together", lambda *_: {"pair": [0, 4]})
    with pytest.raises(RuntimeError, match=r"the parts of head 0 at encoder\.0 add up to something .* away from its"):
        parts(model, inputs(), "encoder.0", 0)
    assert right.error < 1e-12


def test_unknown_site_or_head_raises():
    with pytest.raises(UserError, match=r"unknown site 'encodr\.0'; did you mean 'encoder\.0'"):
        parts(model_of("none"), inputs(), "encodr.0", 0)
    with pytest.raises(UserError, match=r"encoder\.0 has the heads 0 to 1, got 2"):
        parts(model_of("none"), inputs(), "encoder.0", 2)
    with pytest.raises(UserError, match=r"encoder\.0 has the heads 0 to 1, got 2"):
        value_norms_of(look_inside(model_of("none"), inputs()), "encoder.0", 2)


def test_model_is_unchanged():
    model = model_of("sinusoidal")
    parts(model, inputs(), "decoder.0.cross", 0)
    value_norms_of(look_inside(model, inputs()), "decoder.0.cross", 0)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


# Content and position ------------------------------------------------------------------------------------------------


def test_position_parts_equal_the_formula():
    """The paper's formula with the layer's parameters, one pair of tokens at a time."""
    model, head, width = model_of("sinusoidal"), 1, 8
    result = check(model, inputs(), "encoder.0", head)
    layer, encoding = model.encoder.layers[0], model.encoder.encoding.by_layer[0]
    embedded = model.source_embedding(WORD)[0].detach()
    table = torch.stack([torch.from_numpy(sinusoidal_embed(encoding, p)) for p in range(6)])
    norm, rows = layer.attention_residual.norm, slice(head * width, (head + 1) * width)
    for i in range(6):
        for j in range(6):
            sides = []
            for at, linear in ((i, layer.attention.query), (j, layer.attention.key)):
                deviation = torch.sqrt((embedded[at] + table[at]).var(unbiased=False) + norm.eps)
                position = (table[at] - table[at].mean()) / deviation * norm.weight
                content = (embedded[at] - embedded[at].mean()) / deviation * norm.weight + norm.bias
                sides.append((linear(content)[rows], (linear.weight @ position)[rows]))
            expected = [q @ k / math.sqrt(width) for q in sides[0] for k in sides[1]]
            for name, value in zip(ORIGINS, expected, strict=True):
                torch.testing.assert_close(result[name][i, j], value)


def test_zero_table_has_no_position_part():
    model = model_of("learned:positions=9+rotary")
    nn.init.zeros_(model.encoder.encoding.parts[0][0].table)
    for site in ("encoder.0", "encoder.1"):
        result = check(model, inputs(), site, 0)
        assert result["content . content"].abs().max() > 0.1
        assert not any(result[name].any() for name in ORIGINS[1:])
    assert check(model, inputs(), "decoder.1.self", 0)["position . position"].any()


def test_content_does_not_depend_on_position_in_the_first_layer():
    """Without the norm's divisor, equal tokens have equal content and equal positions equal position parts."""
    model = model_of("learned:positions=9")
    layer, tokens = model.encoder.layers[0], WORD
    placed = model.encoder.encoding.embed(model.source_embedding(tokens), Positions.sequence(6))[0]
    nn.init.zeros_(layer.attention_residual.norm.bias)
    nn.init.zeros_(layer.attention.query.bias)
    nn.init.zeros_(layer.attention.key.bias)
    result = check(model, inputs(), "encoder.0", 0)
    deviation = torch.sqrt(placed.var(-1, unbiased=False) + 1e-5)
    content = result["content . content"] * deviation[:, None] * deviation
    positions = result["position . position"] * deviation[:, None] * deviation
    for i, j in EQUAL:
        assert row_difference(content, i, j).max() < 1e-6
        assert row_difference(positions, i, j).max() > 1e-2


def test_post_norm_stack_is_split_in_its_first_attention_only():
    model = model_of("sinusoidal+shaw", norm="post")
    result = check(model, inputs(), "encoder.0", 0, [*ORIGINS, "terms"])
    check(model, inputs(), "decoder.0.self", 0, [*ORIGINS, "terms"])
    encoding, attention = model.encoder.encoding.by_layer[0], model.encoder.layers[0].attention
    table = torch.stack([torch.from_numpy(sinusoidal_embed(encoding.parts[0], p)) for p in range(6)])
    q, k = (table @ linear.weight[:8].t() for linear in (attention.query, attention.key))
    torch.testing.assert_close(result["position . position"], q @ k.t() / math.sqrt(8))
    for site in ("encoder.1", "decoder.1.self"):
        with pytest.raises(
            UserError, match=r"cannot be split after it: expected its first self-attention, got .*\.layers\.1"
        ):
            parts(model, inputs(), site, 0)
    for site in ("decoder.0.cross", "decoder.1.cross"):
        check(model, inputs(), site, 0, ["q . k"])
        assert "cannot be told apart here" in parts(model, inputs(), site, 0).about
    check(model_of("rotary", norm="post"), inputs(), "encoder.1", 0, PAIRS)


def test_parts_of_a_single_attention_and_encoder():
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    check(with_large_parameters(Attention(16, 2, encoding="rotary+t5")), (x,), "attention", 1, [*PAIRS, "bias"])
    encoder = with_large_parameters(Encoder(16, 2, encoding="sinusoidal"))
    for site in ("0", "1"):
        check(encoder, (x,), site, 1, ORIGINS)


def test_without_positions_equal_tokens_have_equal_rows_in_every_part():
    model = model_of("none")
    for site in SITES[:2]:
        (matrix,) = check(model, inputs(), site, 1).values()
        for i, j in EQUAL:
            assert row_difference(matrix, i, j).max() == 0.0


# Components that rotate together -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pairing", "partner"), [("half", 2), ("interleaved", 1)])
def test_parts_of_pairs_equal_the_rotation_formula(pairing, partner):
    model = model_of(f"rotary:fraction=0.5,pairing={pairing}")
    result = check(model, inputs(), "encoder.0", 1, HALF)
    attention, head = model.encoder.layers[0].attention, slice(8, 16)
    x = model.encoder.layers[0].attention_residual.norm(model.source_embedding(WORD))[0]
    q, k = (linear(x)[:, head].detach() for linear in (attention.query, attention.key))
    apart = torch.arange(6)[:, None] - torch.arange(6)
    for pair, name in enumerate(HALF[:2]):
        real = pair if pairing == "half" else 2 * pair
        # Su et al. 2021, equation 12, as complex numbers: Re[q k* exp(1j (m - n) theta)].
        as_complex = [torch.complex(side[:, real], side[:, real + partner]) for side in (q, k)]
        angle = apart * 10000.0 ** (-pair / 2)
        product = as_complex[0][:, None] * as_complex[1].conj() * torch.polar(torch.ones_like(angle), angle)
        torch.testing.assert_close(result[name], product.real.double() / math.sqrt(8), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(result["not turned"], q[:, 4:] @ k[:, 4:].t() / math.sqrt(8))


def test_two_rotations_join_their_components():
    site = Attention(16, 2).site
    both = build("rotary+rotary:pairing=interleaved", site)
    q = torch.zeros(1, 2, 3, 8)
    assert list(rotated_together(both, Positions.sequence(3), q, 0).values()) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert rotated_together(both, Positions.sequence(3), q, 1).keys() == {
        "components 0, 1, 4, 5",
        "components 2, 3, 6, 7",
    }
    once = build("rotary:base=16+rotary:base=16", site)
    assert next(iter(rotated_together(once, Positions.sequence(3), q, 1))) == "pair 0, a turn in 3.142"
    assert list(rotated_together(build(WAVE, site), Positions.sequence(3), q, 0)) == ["not turned"]


def test_the_first_token_alone_has_the_same_parts():
    check(
        with_large_parameters(LanguageModel(15, d_model=16, n_heads=2, encoding="rotary")),
        (WORD[:, :1],),
        "decoder.0.self",
        0,
        PAIRS,
    )


# Norms of weighted values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["sinusoidal", "shaw", "shaw:keys=false+t5"])
@pytest.mark.parametrize("site", ["encoder.0", "decoder.1.self", "decoder.1.cross"])
def test_value_norms_equal_a_loop(encoding, site):
    """A loop over pairs; summed over keys and heads, with the bias of W_O, it is the attention's output."""
    model, outputs = model_of(encoding), []
    path = (
        site.replace("encoder.", "encoder.layers.", 1)
        if site.startswith("encoder")
        else site.replace(".", ".layers.", 1)
    )
    path = path.replace(".self", ".self_attention").replace(".cross", ".cross_attention")
    attention = model.get_submodule(path if "_attention" in path else f"{path}.attention")
    attention.register_forward_hook(lambda m, a, y: outputs.append(y[0].detach()))
    with record(model) as tape:
        model(*inputs())
    call, weights = tape.recorded(site).call, tape.weights(site)[0]
    tables = [m.value_table for m in call.geometry.encoding.modules() if hasattr(m, "value_table")]
    total = attention.out.bias.detach().expand(call.q.shape[2], -1).clone()
    for head in (0, 1):
        out, lengths = (
            attention.out.weight[:, 8 * head : 8 * head + 8].detach(),
            value_norms_of(look_inside(model, inputs()), site, head),
        )
        assert lengths.shape == weights[head].shape
        for i in range(lengths.shape[0]):
            for j in range(lengths.shape[1]):
                v = call.v[0, head, j] + sum(table[j - i + 16].detach() for table in tables)
                brought = weights[head, i, j] * (out @ v)
                total[i] += brought
                assert lengths[i, j].item() == pytest.approx(brought.norm().item(), abs=1e-13)
    torch.testing.assert_close(total, outputs[0])


@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("cross", ["none", "shaw"])
def test_value_norms_of_a_recurrent_decoder(feeding, cross):
    model = with_large_parameters(Recurrent(15, 15, d_model=8, input_feeding=feeding, cross_encoding=cross))
    with record(model) as tape:
        model(*inputs())
    weights, v = tape.weights("decoder.0.cross")[0, 0], tape.calls["decoder.0.cross"][0].call.v[0, 0]
    (combine,) = [m.combine.weight.detach() for m in model.modules() if hasattr(m, "combine")]
    (table,) = [m.value_table for m in model.modules() if hasattr(m, "value_table")] or [torch.zeros(33, 8)]
    lengths = value_norms_of(look_inside(model, inputs()), "decoder.0.cross", 0)
    assert lengths.shape == (3, 6)
    assert not lengths[:, 5].any()
    for i in range(3):
        for j in range(6):
            brought = weights[i, j] * (combine[:, 8:] @ (v[j] + table[j - i + 16].double()))
            assert lengths[i, j].item() == pytest.approx(brought.norm().item(), abs=1e-13)
