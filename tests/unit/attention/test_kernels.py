"""The lengths from which each kernel is chosen."""

import pytest
import torch

import jarilab
from jarilab.attention import kernels
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
