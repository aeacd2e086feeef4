"""Norms with a constant scale for the gradient: a score is then linear in what each part writes.

The outputs of the forward stay bit-identical. A norm divides by a scale s(x), the root of the mean square of its input
or of its input less the mean. With b its output for zeros, (y - b) s(x) is linear in x, and

    y + (y - b) (s(x) / s(x).detach() - 1)

has the value of y and the gradient of that linear map. An activation f outside the layers, as of BERT's head, keeps
its ratio f(u) / u in the same sense.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.cause.parts import ACTIVATIONS

EPSILONS = ("eps", "variance_epsilon", "epsilon", "norm_eps")
"""What norms call the number that they add to the mean square."""

ELEMENTWISE = {
    functional.gelu,
    functional.relu,
    functional.silu,
    functional.tanh,
    torch.relu,
    torch.tanh,
    Tensor.relu,
    Tensor.tanh,
}
"""Activations with f(0) = 0 that models call as functions."""


@dataclass(frozen=True)
class NormScale:
    """What a norm divides its input by. is_centered: whether it first subtracts the mean. eps: of the mean square."""

    is_centered: bool
    eps: float

    def of(self, x: Float[Tensor, "*L D"]) -> Float[Tensor, "*L 1"]:
        """The scale of each vector, in float32 or better."""
        x = x if x.dtype is torch.float64 else x.float()
        x = x - x.mean(-1, keepdim=True) if self.is_centered else x
        return (x.square().mean(-1, keepdim=True) + self.eps).sqrt()


@torch.no_grad()
def scale_of(norm: nn.Module, x: Float[Tensor, "*L D"]) -> NormScale | None:
    """The scale of a norm for inputs such as `x`; None if it is no norm.

    Checked numerically: the output times the scale is additive.
    """
    inputs = _summed_inputs(x)
    eps = next((getattr(norm, name) for name in EPSILONS if hasattr(norm, name)), 0.0)
    if eps is None:  # the default of torch.nn.RMSNorm
        eps = torch.finfo(x.dtype).eps
    try:
        bias_D = zero_output(norm, inputs[0])
        outputs = [norm.forward(each) - bias_D for each in inputs]
        if _is_additive(outputs):
            return None
        for is_centered in (False, True):
            scale = NormScale(is_centered, float(eps))
            products = zip(outputs, map(scale.of, inputs), strict=True)
            # In the dtype of the model, whose rounding sets the tolerance.
            if _is_additive([(y_ND * s_N1).to(y_ND.dtype) for y_ND, s_N1 in products]):
                return scale
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    return None


@torch.no_grad()
def is_affine(module: nn.Module, x: Float[Tensor, "*L D"]) -> bool:
    """Whether a module of vectors is a linear map plus a constant, checked numerically for inputs such as `x`."""
    inputs = _summed_inputs(x)
    try:
        bias_D = zero_output(module, inputs[0])
        return _is_additive([module.forward(each) - bias_D for each in inputs])
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False


@torch.no_grad()
def zero_output(module: nn.Module, x: Float[Tensor, "*L D"]) -> Float[Tensor, " N"]:
    """The output for zeros with as many axes as `x`: the bias of a norm or of a linear map."""
    zeros = x.new_zeros(*[1] * (x.ndim - 1), x.shape[-1])
    return module.forward(zeros).flatten()


def _summed_inputs(x: Tensor) -> list[Tensor]:
    """Sums of vectors of two kinds, and both: some of `x` with noise, and other noise of the same sizes."""
    rows_ND = x.detach().reshape(-1, x.shape[-1])[-4:]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 4, x.shape[-1], generator=generator) + 0.5  # with a mean
    first_ND, second_ND = noise.to(rows_ND)
    size_N1 = rows_ND.float().square().mean(-1, keepdim=True).sqrt().to(rows_ND)
    size_N1 = torch.where(size_N1 > 0, size_N1, torch.ones_like(size_N1))
    other_ND = torch.cat([second_ND[: len(rows_ND)] * size_N1, second_ND])
    shape = (*[1] * (x.ndim - 2), -1, x.shape[-1])
    one, other = torch.cat([rows_ND, first_ND]).view(shape), other_ND.view(shape)
    return [one + other, one, other]


def _is_additive(outputs: list[Tensor]) -> bool:
    """Whether the first output is the sum of the others, within the rounding of their dtype."""
    total, first, second = (each.double().flatten(0, -2) for each in outputs)
    tolerance = 1e-4 if outputs[0].dtype in (torch.float32, torch.float64) else 3e-2
    size_N1 = torch.stack([total, first, second]).abs().amax((0, 2))[:, None]
    return bool(((total - first - second).abs() <= tolerance * size_N1 + 1e-12).all())


# Forwards -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class FrozenNorms:
    """What ran with a constant scale.

    constants: path, output for zeros, and output of each norm and affine module without a matrix. nonlinear: path and
    output of each module that could not be made linear. scales: by path of a norm.
    """

    constants: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    nonlinear: list[tuple[str, Tensor]] = field(default_factory=list)
    scales: dict[str, NormScale | None] = field(default_factory=dict)

    def output(self, path: str, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The output of a module without a matrix, with the gradient of a linear map."""
        if type(module).__module__ in ACTIVATIONS:
            if bool(zero_output(module, x).any()):
                self.nonlinear.append((path, y))
                return y
            return _with_ratio(x, y)
        if path not in self.scales:
            self.scales[path] = scale_of(module, x)
        scale = self.scales[path]
        if scale is None and not is_affine(module, x):
            self.nonlinear.append((path, y))
            return y
        bias = zero_output(module, x)
        if scale is not None:
            ratio = scale.of(x)
            y = y + (y - bias) * (ratio / ratio.detach() - 1).to(y.dtype)
        if bool(bias.any()):
            self.constants.append((path, bias, y))
        return y


@contextmanager
def frozen_norms(model: nn.Module, skipped: Collection[str] = ()) -> Iterator[FrozenNorms]:
    """Inside the block, norms have a constant scale for the gradient. skipped: paths of modules to leave alone."""
    frozen = FrozenNorms()

    def hook(path: str, module: nn.Module, args: tuple[Any, ...], y: Any) -> Tensor | None:
        x = args[0] if args else None
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.shape != y.shape:
            return None
        is_followed = y.requires_grad and x.requires_grad and x.ndim > 1
        return frozen.output(path, module, x, y) if is_followed else None

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            if path and path not in skipped and has_no_matrix(module):
                hooks.enter_context(module.register_forward_hook(partial(hook, path)))
        hooks.enter_context(_FrozenActivations())
        yield frozen


def has_no_matrix(module: nn.Module) -> bool:
    """Whether a module has no parts and no matrix, as norms, activations and dropout."""
    is_leaf = next(module.children(), None) is None
    return is_leaf and all(each.ndim < 2 for each in module.parameters())


class _FrozenActivations(TorchFunctionMode):
    """While active, activations that are called as functions keep their ratio f(u) / u for the gradient."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y = func(*args, **(kwargs or {}))
        if func in ELEMENTWISE and args and isinstance(y, Tensor) and y.requires_grad:
            return _with_ratio(args[0], y)
        return y


def _with_ratio(u: Tensor, y: Tensor) -> Tensor:
    """The value of y, with y / u as the gradient."""
    ratio = torch.where(u == 0, 0.0, y / u).detach()
    return y.detach() + (u - u.detach()) * ratio


def linear_map(norm: nn.Module, x: Float[Tensor, "*L D"]) -> Float[Tensor, "D D"]:
    """The matrix N of a norm without its scale and bias: n(x) = x N / s(x) + b.

    Gamma is folded into it, and the mean is subtracted if the norm subtracts it. s is 1 for an affine map.
    """
    scale = scale_of(norm, x)
    map_DD = matrix_of(norm, x)
    unit_DD = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return map_DD if scale is None else map_DD * scale.of(unit_DD).to(x.dtype)


@torch.no_grad()
def matrix_of(module: nn.Module, x: Float[Tensor, "*L N"]) -> Float[Tensor, "N M"]:
    """The outputs for unit vectors less those for zeros: the matrix of an affine module, in whatever order it keeps it.

    x: an input of the module.
    """
    unit_NN = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    rows = unit_NN.view(*[1] * (x.ndim - 2), *unit_NN.shape)
    return module.forward(rows).flatten(0, -2) - zero_output(module, x)
