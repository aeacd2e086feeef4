"""The linear map against PyTorch's."""

import pytest
import torch
from torch import nn

from jari.linear import Linear


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 0, 5)], ids=str)
@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16", "autocast"])
def test_it_is_the_linear_map_of_pytorch_with_its_gradients(shape: tuple[int, ...], precision: str) -> None:
    torch.manual_seed(1)
    dtype = torch.float32 if precision == "autocast" else getattr(torch, precision)
    ours, theirs = Linear(5, 7).to(dtype), nn.Linear(5, 7).to(dtype)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(shape, dtype=dtype)
    found = []
    for module in (ours, theirs):
        into = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            y = module(into)
        y.float().square().sum().backward()
        assert torch.equal(into, x)
        found.append([y, into.grad, *(parameter.grad for parameter in module.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
