"""Which kernel is chosen from which length on, and softmax over few keys."""

import pytest
import torch

import jarilab
from jarilab.attention import kernels
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask


def set_min_keys(monkeypatch, *, fused=None, blocks=None):
    """Choose the fused and the blocks kernel from these numbers of keys on, in float32 and bfloat16."""
    for name, keys in {"MIN_FUSED_KEYS": fused, "MIN_BLOCKS_KEYS": blocks}.items():
        if keys is not None:
            monkeypatch.setattr(kernels, name, {torch.float32: keys, torch.bfloat16: keys})


@pytest.mark.parametrize(("fused", "blocks"), [(0, 0), (10**9, 10**9), (0, 10**9)])
@pytest.mark.parametrize("encoding", ["none", "t5", "shaw"])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_attention_equals_its_definition_wherever_kernels_change(monkeypatch, fused, blocks, encoding, length):
    """Forward and gradient, of no token, of one and of five, under two masks; and bfloat16 is finite."""
    outputs, gradients = {}, {}
    set_min_keys(monkeypatch, fused=fused, blocks=blocks)
    for kernel in ("definition", "auto"):
        torch.manual_seed(1)
        attention = jarilab.Attention(8, 2, encoding=encoding, causal=True, kernel=kernel)
        x = torch.randn(2, length, 8, requires_grad=True)
        for mask in (Mask(causal=True), Mask(keys=torch.arange(length) < torch.tensor([[length], [3]]))):
            outputs[kernel] = attention(x, mask=mask)
            outputs[kernel].sum().backward()
        gradients[kernel] = x.grad
        with torch.autocast("cpu", torch.bfloat16):
            assert attention(x, mask=mask).isfinite().all()
    for results in (outputs, gradients):
        torch.testing.assert_close(results["auto"], results["definition"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "min_keys"),
    [("explicit", {"fused": 10}), ("fused", {"fused": 9}), ("blocks", {"fused": 9, "blocks": 9})],
)
def test_the_number_of_keys_decides_which_kernel_is_chosen(monkeypatch, kernel, min_keys):
    set_min_keys(monkeypatch, **min_keys)
    x = torch.randn(7, 9, 8)  # too many queries and scores for the shortcuts of few
    attention = jarilab.Attention(8, 2, encoding="t5")
    with jarilab.record(attention) as tape:
        attention(x)
    assert list(tape.kernels().values()) == [kernel]


@pytest.mark.parametrize("order", [[0, 2, 2, 2, 3], [4, 3, 2, 1, 0], [1, 2, 4, 5, 9]])
@pytest.mark.parametrize("kernel", ["auto", "fused", "explicit", "blocks"])
def test_a_causal_mask_compares_the_order_of_tokens(monkeypatch, order, kernel):
    set_min_keys(monkeypatch, fused=0)
    outputs, x = {}, torch.randn(2, 5, 8)
    places = Positions(torch.arange(5).unsqueeze(-1), torch.tensor(order))
    for name in (kernel, "definition"):
        torch.manual_seed(1)
        attention = jarilab.Attention(8, 2, encoding="rotary", causal=True, kernel=name)
        outputs[name] = attention(x, positions=places, mask=Mask(causal=True))
    torch.testing.assert_close(outputs[kernel], outputs["definition"], atol=1e-5, rtol=1e-5)


BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 8e-3}


def scores_of(keys, dtype, queries=3):
    generator = torch.Generator().manual_seed(keys)
    scores = 3 * torch.randn(2, 2, queries, keys, generator=generator, dtype=torch.float64)
    scores[0, 0, 0, 1:] = -torch.inf
    return scores.to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("keys", [1, 7, 15, 16, 17, 31, 32, 47, 48, 50, 63, 64, 80])
def test_softmax_equals_that_in_float64(keys, dtype):
    scores = scores_of(keys, dtype)
    direction = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    precise = scores.detach().double().requires_grad_()
    weights, expected = kernels.softmax(scores), precise.softmax(-1)
    weights.backward(direction)
    expected.backward(direction.double())
    assert weights.dtype is scores.grad.dtype is dtype
    torch.testing.assert_close(weights.double(), expected, atol=BOUNDS[dtype], rtol=0)
    torch.testing.assert_close(scores.grad.double(), precise.grad, atol=2 * BOUNDS[dtype], rtol=0)


def test_softmax_uses_float32_if_a_large_remainder_is_left():
    def function(keys, dtype=torch.bfloat16, queries=3):
        return kernels.softmax(scores_of(keys, dtype, queries)).grad_fn.name()

    in_float32 = kernels._SoftmaxInFloat32.__name__ + "Backward"
    assert [keys for keys in range(1, 130) if function(keys) == in_float32] == [*range(16, 32), *range(48, 64)]
    assert in_float32 not in (function(17, torch.float32), function(17, queries=1))
