"""PositionEncoding in attention of one's own equals jarilab.Attention, or refuses."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import jarilab
from jarilab import PositionEncoding, UserError
from jarilab.attention.heads import split_heads
from jarilab.encodings.base import registry

D, H, E = 32, 4, 8
OF_ONE_AXIS = [name for name in registry.names() if 1 in registry.spec(name).target.axes]
AT_INPUT = {"sinusoidal", "learned", "scaled_sinusoidal", "sinusoidal_mae"}
SPECS = [name for name in OF_ONE_AXIS if name not in AT_INPUT and name != "shaw"] + [
    "shaw:clip=3",
    "rotary+t5",
]


def twins(spec: str, causal: bool = True):
    """jarilab.Attention and a PositionEncoding with its parameters."""
    torch.manual_seed(0)
    module = jarilab.Attention(D, H, encoding=spec, causal=causal).double().eval()
    for parameter in module.encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    encoding = PositionEncoding(spec, H, E, causal=causal).double().eval()
    encoding.encoding.load_state_dict(module.encoding.state_dict())
    return module, encoding


def projected(module, encoding, x, positions=None):
    """Queries, keys and values of an attention, not rotated."""
    at = encoding.inject(x, positions) if "inject" in encoding.encoding.hooks else x
    q, k = (split_heads(each(at), H, E) for each in (module.query, module.key))
    return q, k, split_heads(module.value(x), H, E)


def joined(module, y):
    return module.out(y.transpose(1, 2).flatten(-2))


@pytest.mark.parametrize("spec", SPECS)
@torch.no_grad()
def test_attention_equals_jarilabs(spec):
    """With padding, with offset positions, and step by step with unrotated keys in a cache."""
    module, encoding = twins(spec)
    x = torch.randn(2, 9, D, dtype=torch.float64)
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[1, 6:] = False
    right = module(x, mask=jarilab.Mask(causal=True, keys=keep))
    q, k, v = projected(module, encoding, x)
    own = joined(module, encoding.attention(q, k, v, keep[:, None, None], x=x))
    assert torch.allclose(own, right, atol=1e-6)
    positions = torch.arange(5, 14)
    offset = jarilab.Positions.sequence(9, 5)
    right = module(x, positions=offset, mask=jarilab.Mask(causal=True))
    q, k, v = projected(module, encoding, x, offset)
    own = encoding.attention(q, k, v, positions=positions, key_positions=positions, x=x)
    assert torch.allclose(joined(module, own), right, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS)
@torch.no_grad()
def test_a_step_with_a_cache_equals_the_last_query(spec):
    module, encoding = twins(spec)
    x = torch.randn(2, 9, D, dtype=torch.float64)
    q, k, v = projected(module, encoding, x)
    last = encoding.attention(q[:, :, 7:], k, v, x=x)
    assert torch.allclose(last, encoding.attention(q, k, v, x=x)[:, :, 7:], atol=1e-6)


@pytest.mark.parametrize("queries", [1, 3])
@torch.no_grad()
def test_queries_are_the_last_of_the_keys_wherever_these_are(queries):
    q, k, v = torch.randn(3, 2, H, 3, E)
    q, keys = q[:, :, -queries:], torch.tensor([[100, 105, 106], [7, 8, 90]])
    places = {"positions": keys[:, -queries:], "key_positions": keys}
    rotary, alibi = (PositionEncoding(spec, H, E, causal=True) for spec in ("rotary", "alibi"))
    torch.testing.assert_close(rotary.attention(q, k, v, key_positions=keys), rotary.attention(q, k, v, **places))
    torch.testing.assert_close(rotary.rotate(q, k, key_positions=keys), rotary.rotate(q, k, **places))
    assert torch.equal(alibi.bias(queries, 3, key_positions=keys), alibi.bias(queries, 3, **places))
    grid = jarilab.Positions.grid(1, 3)
    plane, last = PositionEncoding("rotary2d", H, E), grid.slice(3 - queries, 3)
    expected = plane.attention(q, k, v, positions=last, key_positions=grid)
    torch.testing.assert_close(plane.attention(q, k, v, key_positions=grid), expected)


@pytest.mark.parametrize("spec", OF_ONE_AXIS)
@torch.no_grad()
def test_parts_alone_equal_attention_or_are_refused(spec):
    encoding = PositionEncoding(spec if spec != "shaw" else "shaw:clip=3", H, E, causal=True).double().eval()
    q, k, v = torch.randn(3, 2, H, 7, E, dtype=torch.float64)
    hooks = encoding.encoding.hooks
    plain = functional.scaled_dot_product_attention
    if hooks == {"rotate"}:
        own = plain(*encoding.rotate(q, k), v, is_causal=True)
        assert torch.allclose(own, encoding.attention(q, k, v), atol=1e-6)
    else:
        with pytest.raises(UserError, match=r"nothing but rotate, got .*; use "):
            encoding.rotate(q, k)
    if hooks == {"bias"}:
        own = plain(q, k, v, encoding.bias(7, 7).double(), scale=encoding.scale)
        assert torch.allclose(own, encoding.attention(q, k, v), atol=1e-6)
    else:
        with pytest.raises(UserError, match=r"nothing but bias, got .*; use "):
            encoding.bias(7, 7)


@pytest.mark.parametrize("spec", ["rotary2d", "table2d:rows=2,columns=3", "sinusoidal2d:where=inject"])
@torch.no_grad()
def test_patches_of_an_image_equal_jarilabs(spec):
    module, encoding = twins(spec, causal=False)
    x, grid = torch.randn(2, 6, D, dtype=torch.float64), jarilab.Positions.grid(2, 3)
    q, k, v = projected(module, encoding, x, grid)
    own = encoding.attention(q, k, v, positions=grid)  # keys, too
    assert torch.allclose(joined(module, own), module(x, positions=grid), atol=1e-6)
    assert torch.equal(own, encoding.attention(q, k, v, positions=grid, key_positions=grid))
    with pytest.raises(UserError, match=r"expected positions of 2 axes, got none; pass .*Positions\.grid\(rows"):
        encoding.attention(q, k, v)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("spec", ["alibi", "t5", "kerple"])
@torch.no_grad()
def test_score_mod_equals_the_bias(spec):
    from torch.nn.attention.flex_attention import flex_attention

    encoding = PositionEncoding(spec, H, 16, causal=True).eval()
    q, k, v = torch.randn(3, 1, H, 6, 16)
    own = flex_attention(q, k, v, score_mod=encoding.score_mod(6, 6))
    assert torch.allclose(own, encoding.attention(q, k, v), atol=1e-5)
    with pytest.raises(UserError, match=r"distance alone, got fire.*use enc\.bias"):
        PositionEncoding("fire", H, 16, causal=True).score_mod(6, 6)


@torch.no_grad()
def test_masks_of_any_shape_equal_sdpa():
    encoding = PositionEncoding("none", H, E)
    q, k, v = torch.randn(3, 2, H, 5, E)
    plain = functional.scaled_dot_product_attention
    of_heads = torch.rand(1, H, 5, 5) > 0.4
    of_heads[0, 0, 2] = False  # a row that one head hides whole
    least = torch.finfo(torch.float32).min
    for mask in (
        of_heads,
        torch.rand(5, 5) > 0.3,
        torch.randn(2, 1, 5, 5),
        torch.randn(H, 5, 5),
        torch.zeros(2, 1, 1, 5).masked_fill(torch.tensor([0, 0, 0, 1, 1]) > 0, least),
    ):
        assert torch.allclose(encoding.attention(q, k, v, mask), plain(q, k, v, mask).nan_to_num(), atol=1e-6)
    shared = plain(q, k[:, :2], v[:, :2], enable_gqa=True)
    assert torch.allclose(encoding.attention(q, k[:, :2], v[:, :2], enable_gqa=True), shared, atol=1e-6)


@torch.no_grad()
def test_cross_attention_has_positions_of_both_sides():
    torch.manual_seed(0)
    module = jarilab.Attention(D, H, encoding="rotary", cross=True).eval()
    encoding = PositionEncoding("rotary", H, E, cross=True)
    x, source = torch.randn(2, 4, D), torch.randn(2, 9, D)
    q = split_heads(module.query(x), H, E)
    k, v = (split_heads(each(source), H, E) for each in (module.key, module.value))
    assert torch.allclose(joined(module, encoding.attention(q, k, v)), module(x, source), atol=1e-6)


def test_layers_share_what_the_encoding_shares():
    deberta = PositionEncoding.layers("deberta", 3, H, E)
    assert deberta[0].encoding.table is deberta[2].encoding.table
    assert [each.encoding.hooks for each in PositionEncoding.layers("rotary,none", 2, H, E)] == [{"rotate"}, set()]
    assert PositionEncoding.layers("shaw:clip=3,values=false", 2, H, E)[1].encoding.clip == 3


@torch.no_grad()
def test_input_encodings_work_once_they_were_added():
    encoding = PositionEncoding("sinusoidal", H, E)
    q = k = v = torch.randn(1, H, 3, E)
    with pytest.raises(UserError, match=r"sinusoidal adds positions to the input.*enc\.embed"):
        encoding.attention(q, k, v)
    assert not torch.equal(encoding.embed(torch.zeros(1, 3, D)), torch.zeros(1, 3, D))
    assert torch.allclose(encoding.attention(q, k, v), functional.scaled_dot_product_attention(q, k, v), atol=1e-6)
    first, second = PositionEncoding.layers("sinusoidal", 2, H, E)
    first.embed(torch.zeros(1, 3, D))
    assert torch.equal(second.attention(q, k, v), encoding.attention(q, k, v))


@pytest.mark.usefixtures("unchecked")
def test_keys_and_values_without_the_rows_of_queries_are_refused():
    q = torch.randn(2, H, 5, E)
    for k, v in ((q[0], q[0]), (q.repeat(2, 1, 1, 1), q)):
        with pytest.raises(UserError, match=r"expected keys .*got \(2, 4, 5, 8\)"):
            PositionEncoding("rotary", H, E).attention(q, k, v)


@pytest.mark.parametrize("spec", ["none", "t5"])
def test_one_row_stands_for_all(spec):
    q, k = torch.randn(3, H, 5, E), torch.randn(1, H, 5, E)
    enc = PositionEncoding(spec, H, E)
    for one, other in ((q, k), (k, q)):
        whole = enc.attention(one.expand(3, -1, -1, -1), other.expand(3, -1, -1, -1), other.expand(3, -1, -1, -1))
        torch.testing.assert_close(enc.attention(one, other, other), whole)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda enc, q: enc.attention(q, q, q), r"reads the attention's input: expected x .* got nothing; pass x="),
        (lambda enc, q: enc.attention(q[..., :4], q, q), r"expected queries \(B, 4, Q, 8\), got"),
        (lambda enc, q: enc.attention(q, q[:, :2], q[:, :2]), r"expected 4 heads of keys.*enable_gqa=True"),
        (lambda enc, q: enc.attention(q, q[:, :, :2], q[:, :, :2]), r"as many queries as keys, got 5 and 2"),
        (lambda enc, q: enc.attention(q, q, q, torch.ones(3, 3)), r"attn_mask to expand to .* got \(3, 3\)"),
        (
            lambda enc, q: enc.attention(q, q, q, torch.ones(2, 1, 1, 5).long()),
            r"boolean .* got torch.int64; .*\.bool\(\)",
        ),
        (
            lambda enc, q: enc.attention(q, q, q[:, :, :2]),
            r"keys and values of equal numbers of rows, heads and tokens",
        ),
        (lambda enc, q: enc.attention(q, q, q, positions=torch.arange(4)), r"positions of 5 tokens, got 4"),
        (lambda enc, q: enc.attention(q, q, q, positions=torch.ones(3, 5).long()), r"2 rows of 5 tokens, got 3 of 5"),
        (lambda enc, q: enc.embed(q[0]), r"has embed, got forgetting; use enc\.attention"),
        (lambda enc, q: PositionEncoding("xpos", H, E), "causal"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(UserError, match=message):
        call(PositionEncoding("forgetting", H, E, causal=True), torch.randn(2, H, 5, E))
