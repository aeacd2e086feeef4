"""Each score function against the equation of its paper, through all kernels and on a tape."""

import math

import pytest
import torch

from jarilab.attention import definition, kernels
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import geometry_of
from jarilab.attention.recurrent_attention import LuongAttention
from jarilab.attention.scores import SCORES, build_score
from jarilab.core.errors import UserError
from jarilab.encodings import compose
from jarilab.encodings.base import Site
from jarilab.inspect.record.capture import record
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

every_score = pytest.mark.parametrize("name", list(SCORES))
BATCH, QUERIES, KEYS, WIDTH = 2, 3, 4, 6


def dot(q, k, score):
    return sum(a * b for a, b in zip(q, k, strict=True))


def general(q, k, score):
    """q^T W_a k."""
    w_a = score.query.weight.t().tolist()
    return sum(q[i] * w_a[i][j] * k[j] for i in range(len(q)) for j in range(len(k)))


def concat(q, k, score):
    """v^T tanh(W_a [q; k])."""
    both, w_a, v = [*q, *k], score.pair.weight.tolist(), score.compare.v[0].tolist()
    return sum(v[a] * math.tanh(sum(w_a[a][i] * both[i] for i in range(len(both)))) for a in range(len(v)))


def additive(q, k, score):
    """v^T tanh(W q + U k)."""
    w, u, v = score.query.weight.tolist(), score.key.weight.tolist(), score.compare.v[0].tolist()
    return sum(
        v[a] * math.tanh(sum(w[a][i] * q[i] for i in range(len(q))) + sum(u[a][j] * k[j] for j in range(len(k))))
        for a in range(len(v))
    )


PAPERS = {"dot": dot, "general": general, "concat": concat, "additive": additive}


def call_of(name, encoding="none", dtype=torch.float64, keep=None, widths=(WIDTH, WIDTH)):
    """A score, its inputs, and the call they make."""
    score = build_score(name, *widths).to(dtype)
    x_q = torch.randn(BATCH, QUERIES, widths[0], dtype=dtype, requires_grad=True)
    x_k = torch.randn(BATCH, KEYS, widths[1], dtype=dtype, requires_grad=True)
    site = Site(score.d_model, 1, score.d_model, score.d_model, cross=True)
    mask = None if keep is None else Mask(keys=keep)
    built = compose.build(encoding, site).to(dtype)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter)
    geometry = geometry_of(built, Positions.sequence(QUERIES), Positions.sequence(KEYS), mask)
    q, k = score.queries(x_q).unsqueeze(1), score.keys(x_k).unsqueeze(1)
    return score, x_q, x_k, AttentionCall(q, k, x_k.unsqueeze(1), geometry, 1.0, score=score.compare)


@every_score
@pytest.mark.parametrize("widths", [(WIDTH, WIDTH), (3, WIDTH)], ids=str)
def test_a_score_is_the_papers(name, widths):
    if name == "dot" and widths[0] != widths[1]:
        return
    score, x_q, x_k, call = call_of(name, widths=widths)
    scores = definition.scores(call).detach()
    assert scores.shape == (BATCH, 1, QUERIES, KEYS)
    for b in range(BATCH):
        for i in range(QUERIES):
            for j in range(KEYS):
                expected = PAPERS[name](x_q[b, i].tolist(), x_k[b, j].tolist(), score)
                assert float(scores[b, 0, i, j]) == pytest.approx(expected, abs=1e-13)


def test_concat_and_additive_are_the_same_function():
    """With W_a = [W, U]: what the module says of them."""
    one, other = build_score("concat", 3, 5), build_score("additive", 3, 5)
    with torch.no_grad():
        one.pair.weight.copy_(torch.cat((other.query.weight, other.key.weight), 1))
        one.compare.v.copy_(other.compare.v)
    q, k = torch.randn(1, 2, 3), torch.randn(1, 4, 5)
    scores = [s.compare(s.queries(q).unsqueeze(1), s.keys(k).unsqueeze(1)) for s in (one, other)]
    torch.testing.assert_close(*scores)


@every_score
@pytest.mark.parametrize("encoding", ["none", "shaw", "t5", "shaw+t5"])
@pytest.mark.parametrize("kernel", ["auto", "explicit", "fused"])
def test_a_kernel_equals_the_definition(name, encoding, kernel):
    keep = torch.tensor([[True, True, False, True], [False] * 4])
    score, x_q, x_k, call = call_of(name, encoding, keep=keep)
    if kernel == "fused" and (score.compare is not None or "shaw" in encoding):
        with pytest.raises(UserError, match=r"^the fused kernel"):
            kernels.attend(call, kernel)
        return
    outputs = [kernels.attend(call, kernel), definition.output(call)]
    torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-12)
    owned = [x_q, x_k, *score.parameters()]
    cotangent = torch.randn_like(outputs[0])
    gradients = [torch.autograd.grad(y, owned, cotangent, retain_graph=True) for y in outputs]
    for fast, slow in zip(*gradients, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)


def test_a_score_that_is_no_product_takes_the_explicit_kernel():
    for name in SCORES:
        _, _, _, call = call_of(name)
        expected = "explicit" if name in ("concat", "additive") else "fused"  # no length is explicit in float64
        assert kernels.choose(call) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_with_dropout_uses_no_fused_kernel_on_a_cpu(dtype):
    q = torch.zeros(1, 1, 2048, 8, dtype=dtype)
    geometry = call_of("dot")[3].geometry
    assert kernels.choose(AttentionCall(q, q, q, geometry, 1.0)) == "fused"
    assert kernels.choose(AttentionCall(q, q, q, geometry, 1.0, dropout=0.1)) == "explicit"
    q = q.to("meta")
    assert kernels.choose(AttentionCall(q, q, q, geometry, 1.0, dropout=0.1)) == "fused"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_scores_use_the_fused_kernel(dtype):
    """As in generation. A few queries of many rows use the explicit kernel at any length. With gradients only the
    length decides."""
    geometry = call_of("dot")[3].geometry

    def chosen(keys, queries=1, **more):
        q, k = torch.zeros(1, 4, queries, 8, dtype=dtype, **more), torch.zeros(1, 4, keys, 8, dtype=dtype)
        return kernels.choose(AttentionCall(q, k, k, geometry, 1.0))

    assert chosen(16) == chosen(256) == "fused"
    assert chosen(257) == chosen(257, queries=8) == "explicit"
    assert chosen(257, queries=9) == ("explicit" if dtype is torch.bfloat16 else "fused")
    assert chosen(16, requires_grad=True) == "explicit"


def test_the_fused_kernel_refuses_a_score_when_a_model_is_built():
    message = "sum within a tanh; use kernel=explicit or auto, or score=dot or score=general"
    with pytest.raises(UserError, match=message):
        LuongAttention(8, "additive", kernel="fused")
    LuongAttention(8, "general", kernel="fused")


def test_dot_needs_equal_dimensions():
    with pytest.raises(UserError, match="one dimension, got 4 and 6; use score=general"):
        build_score("dot", 4, 6)


def test_an_unknown_score_names_the_nearest():
    with pytest.raises(
        UserError, match=r"^unknown score 'genral'; did you mean 'general'\? Known: additive, concat, dot"
    ):
        build_score("genral", 4, 4)


@pytest.mark.parametrize("name", ["concat", "additive"])
def test_rotary_encodings_need_a_product(name):
    message = rf"rotary\+t5 .*, got score={name}; use score=dot or score=general"
    with pytest.raises(UserError, match=message):
        LuongAttention(8, name, encoding="rotary+t5")


@every_score
@pytest.mark.parametrize("encoding", ["none", "t5", "shaw", "alibi"])
@torch.no_grad()
def test_luong_attention_equals_the_papers(name, encoding):
    """w = softmax(score), c = w h_1:m, h~ = tanh([h; c] W_concat), a row at a time."""
    attention = LuongAttention(WIDTH, name, encoding=encoding).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    h, outputs = torch.randn(1, QUERIES, WIDTH).double(), torch.randn(1, KEYS, WIDTH).double()
    keep = torch.tensor([[True, True, True, False]])
    source = attention.read(outputs, Positions.sequence(KEYS, frame="source"), keep)
    with record(attention) as tape:
        got = attention(h, source, Positions.sequence(QUERIES, frame="target"))
    call, w_concat = tape.recorded("attention").call, attention.combine.weight.t()
    for i in range(QUERIES):
        scores = [PAPERS[name](h[0, i].tolist(), outputs[0, j].tolist(), attention.score) for j in range(3)]
        added = definition.scores(call)[0, 0, i] - _product(call)[0, 0, i]  # of the encoding: its own tests hold it
        exponentials = [math.exp(s + float(a)) for s, a in zip(scores, added, strict=False)]
        context = sum(e / sum(exponentials) * outputs[0, j] for j, e in enumerate(exponentials))
        if "values" in call.geometry.encoding.hooks:
            weights = definition.weights(call)
            context = context + call.geometry.encoding.values(weights, call.geometry.relation)[0, 0, i]
        torch.testing.assert_close(got[0, i], (torch.cat((h[0, i], context)) @ w_concat).tanh())


def _product(call):
    return call.score(call.q, call.k) if call.score else torch.einsum("bhqe,bhke->bhqk", call.q, call.k)


@every_score
def test_a_tape_holds_what_the_score_needs(name):
    attention = LuongAttention(8, name)
    source = attention.read(torch.randn(2, 5, 8), Positions.sequence(5, frame="source"))
    with record(attention) as tape:
        attention(torch.randn(2, 3, 8), source, Positions.sequence(3, frame="target"))
    trust = tape.trust("attention")
    assert trust.rebuild_error < 1e-5
    assert trust.row_sum_error < 1e-5
    assert not tape.weights("attention").requires_grad
    call = tape.recorded("attention").call
    assert not call.q.requires_grad
    assert not call.k.requires_grad
    with torch.no_grad():
        attention.combine.weight.add_(1.0)
    tape.weights("attention")  # the map does not need that one
    with torch.no_grad():
        for parameter in attention.score.parameters():
            parameter.add_(1.0)
    if name in ("dot", "general"):
        tape.weights("attention")  # the recorded queries are mapped already
        return
    with pytest.raises(UserError, match=r"^the parameters of TanhSum have changed since attention was recorded"):
        tape.weights("attention")


def test_the_recorded_output_of_a_score_that_was_not_used_is_told():
    attention = LuongAttention(8, "additive")
    source = attention.read(torch.randn(2, 5, 8), Positions.sequence(5, frame="source"))
    attention.attend.register_forward_hook(lambda module, arguments, output: output + 0.1)
    with record(attention) as tape:
        attention(torch.randn(2, 3, 8), source, Positions.sequence(3, frame="target"))
    assert tape.trust("attention").rebuild_error > 1e-2


@pytest.mark.parametrize("queries", [1, 5, 9])
def test_products_of_few_queries_in_bfloat16_are_those_of_many(queries):
    """They are worked out the other way round, keys by queries."""
    q, k = torch.randn(3, 2, queries, 8, dtype=torch.bfloat16), torch.randn(3, 2, 20, 8, dtype=torch.bfloat16)
    geometry = call_of("dot")[3].geometry
    call = AttentionCall(q, k, k, geometry, 0.5)
    expected = 0.5 * torch.einsum("bhqe,bhke->bhqk", q.float(), k.float())
    torch.testing.assert_close(kernels._products(call, 0.5).float(), expected, atol=0.05, rtol=0.02)
