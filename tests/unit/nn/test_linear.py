"""`nn.linear` against PyTorch's linear layer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from jarilab.attention.module import Attention
from jarilab.nn.sublayers import FeedForward, Linear

INPUTS: dict[str, Callable[[], Tensor]] = {
    "one token": lambda: torch.randn(5),
    "tokens": lambda: torch.randn(3, 5),
    "a batch": lambda: torch.randn(4, 5, 5),
    "nothing": lambda: torch.randn(2, 0, 5),
    "transposed": lambda: torch.randn(4, 5, 5).transpose(1, 2),
    "the same row": lambda: torch.randn(1, 1, 5).expand(4, 5, 5),
}


@pytest.mark.parametrize("made", INPUTS.values(), ids=INPUTS.keys())
@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16", "autocast"])
def test_output_and_gradients_equal_pytorchs(made: Callable[[], Tensor], precision: str) -> None:
    torch.manual_seed(1)
    dtype = torch.float32 if precision == "autocast" else getattr(torch, precision)
    fast, reference = Linear(5, 7).to(dtype), nn.Linear(5, 7).to(dtype)
    reference.load_state_dict(fast.state_dict())
    x = made().to(dtype)
    before = x.clone()
    results = []
    for module in (fast, reference):
        into = x.detach().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            y = module(into)
        y.float().square().sum().backward()
        assert torch.equal(x, before)
        results.append([y, into.grad, *(parameter.grad for parameter in module.parameters())])
    for one, other in zip(*results, strict=True):
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("device", "dtype", "autocast", "rows", "afterwards"),
    [
        ("cpu", torch.float32, False, 17, True),
        ("cpu", torch.float32, False, 16, False),
        ("cpu", torch.float32, True, 17, False),
        ("cpu", torch.bfloat16, False, 17, False),
        ("meta", torch.float32, False, 17, False),
    ],
    ids=str,
)
def test_the_bias_is_added_afterwards_only_in_float32_on_a_cpu_to_many_rows(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: torch.dtype, autocast: bool, rows: int, afterwards: bool
) -> None:
    called_without_bias: list[bool] = []
    linear = functional.linear

    def recorded(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        called_without_bias.append(bias is None)
        return linear(x, weight, bias)

    monkeypatch.setattr(functional, "linear", recorded)
    module = Linear(5, 7).to(device, dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        module(torch.empty(rows, 5, device=device, dtype=dtype))
    assert called_without_bias == [afterwards]


def test_attention_and_feed_forward_use_it() -> None:
    modules: list[Any] = [*Attention(8, 2).children(), *FeedForward(8, 16).children()]
    assert [type(module) for module in modules if isinstance(module, nn.Linear)] == [Linear] * 6


def test_queries_keys_and_values_of_one_product_get_their_biases() -> None:
    torch.manual_seed(1)
    attention, x = Attention(8, 2), torch.randn(2, 3, 8)
    parts = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        for number, part in enumerate(parts):
            part.bias.fill_(number + 1.0)
    calls: list[Any] = []
    attention.attend.register_forward_pre_hook(lambda _, inputs: calls.append(inputs[0]))
    attention(x)
    for heads, part in zip((calls[0].q, calls[0].k, calls[0].v), parts, strict=True):
        torch.testing.assert_close(heads.transpose(1, 2).flatten(-2), functional.linear(x, part.weight, part.bias))
