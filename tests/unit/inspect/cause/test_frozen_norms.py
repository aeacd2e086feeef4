"""Norms with a constant scale: the same values, the gradient of a linear map, and no guesses."""

import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from jarilab.inspect.cause.frozen_norms import frozen_norms, is_affine, linear_map, scale_of
from jarilab.nn.norms import BatchNorm

D = 12


class ScaleNorm(nn.Module):
    """Divides by the length, without an epsilon."""

    def __init__(self, width: int):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.gain * x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)


NORMS = {
    "layer": lambda: nn.LayerNorm(D),
    "rms": lambda: nn.RMSNorm(D),
    "rms with a large epsilon": lambda: nn.RMSNorm(D, eps=0.3),
    "llama": lambda: LlamaRMSNorm(D),
    "gemma": lambda: Gemma2RMSNorm(D),
    "t5": lambda: T5LayerNorm(D),
    "length": lambda: ScaleNorm(D),
}


def random_norm(name: str) -> nn.Module:
    torch.manual_seed(0)
    norm = NORMS[name]()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm.double().eval()


def inputs(scale: float = 0.1) -> torch.Tensor:
    """Not centered, and small beside the square root of an epsilon of 0.3."""
    return scale * (torch.randn(2, 5, D, generator=torch.Generator().manual_seed(1)).double() + 0.5)


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_keeps_its_values_and_has_the_gradient_of_a_linear_map(name):
    norm = random_norm(name)
    model, x = nn.Sequential(norm), inputs().requires_grad_()
    with torch.no_grad():
        expected = norm(x)
    with frozen_norms(model) as frozen:
        y = model(x)
    assert torch.equal(y, expected)
    assert not frozen.nonlinear
    # y - b is x times the Jacobian: no gradient goes through the scale.
    probe = torch.randn_like(y)
    (gradient,) = torch.autograd.grad((y * probe).sum(), x)
    bias = norm(torch.zeros(1, D).double())
    torch.testing.assert_close((gradient * x).sum(-1), ((y - bias) * probe).sum(-1), rtol=1e-5, atol=1e-7)
    scale = scale_of(norm, x)
    folded = x / scale.of(x) @ linear_map(norm, x) + bias
    torch.testing.assert_close(folded, expected, rtol=1e-5, atol=1e-6)


def test_hooks_are_gone_after_the_block():
    model, x = nn.Sequential(nn.LayerNorm(D)).double(), inputs().requires_grad_()
    (before,) = torch.autograd.grad(model(x).square().sum(), x)
    with frozen_norms(model):
        (frozen,) = torch.autograd.grad(model(x).square().sum(), x)
    (after,) = torch.autograd.grad(model(x).square().sum(), x)
    assert torch.equal(before, after)
    assert not torch.allclose(before, frozen)


def test_a_batch_norm_is_affine_and_its_mean_is_a_constant():
    norm = BatchNorm(D).double().eval()
    norm.mean.normal_()
    norm.variance.uniform_(0.5, 2)
    x = inputs().requires_grad_()
    assert is_affine(norm, x)
    with frozen_norms(nn.Sequential(norm)) as frozen:
        y = nn.Sequential(norm)(x)
    ((_, bias, _),) = frozen.constants
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close((gradient * x).sum() + bias.sum() * 10, y.sum())


class Thresholded(nn.Module):
    def forward(self, x):
        return x * (x > x.mean(-1, keepdim=True))


@pytest.mark.parametrize("module", [Thresholded(), nn.GroupNorm(3, D), nn.Softmax(-1)])
def test_what_is_no_norm_is_not_taken_for_one(module):
    module = module.double()
    x = inputs()[0].requires_grad_()
    assert scale_of(module, x) is None
    with frozen_norms(nn.Sequential(module)) as frozen:
        nn.Sequential(module)(x)
    assert [path for path, _ in frozen.nonlinear] == ["0"]


def test_a_wrong_epsilon_is_noticed():
    norm = random_norm("rms with a large epsilon")
    assert scale_of(norm, inputs()).eps == 0.3
    norm.forward, right = lambda x: nn.functional.rms_norm(x, (D,), norm.weight, 0.3), norm.forward
    norm.eps = 1e-5
    assert scale_of(norm, inputs()) is None
    norm.forward = right


@pytest.mark.parametrize("activation", [nn.GELU(), nn.ReLU(), nn.SiLU(), nn.Tanh()])
def test_an_activation_keeps_its_ratio(activation):
    x = torch.cat([inputs(), torch.zeros(2, 1, D).double()], 1).requires_grad_()
    by_function = type("ByFunction", (nn.Module,), {"forward": lambda self, x: activation.forward(x)})()
    for model in (nn.Sequential(activation), nn.Sequential(by_function)):
        with frozen_norms(model):
            y = model(x)
        assert torch.equal(y, activation(x))
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close((gradient * x).sum(-1), y.sum(-1))


def test_a_sigmoid_is_not_made_linear():
    model = nn.Sequential(nn.Sigmoid())
    with frozen_norms(model) as frozen:
        model(inputs().requires_grad_())
    assert [path for path, _ in frozen.nonlinear] == ["0"]
