"""Calls that a function mode does not see as calls of plain tensors, made so.

They are under `torch.vmap`, under gradients of `torch.func`, of nested tensors, or inside multi-head attention.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn import functional

from jarilab.core.shapes import Bool, Tensor
from jarilab.inspect.record.calls import check_has_values
from jarilab.inspect.record.foreign_call import ForeignCall, versions_of

_functorch: Any = torch._C._functorch  # type: ignore[attr-defined]


def is_transforming() -> bool:
    """Whether a transform of `torch.func` is running."""
    return _functorch.peek_interpreter_stack() is not None


@contextmanager
def plain_call(call: ForeignCall, output: Tensor) -> Iterator[tuple[ForeignCall, Tensor]]:
    """The call and its output without wrappers, while no transform is active.

    The axes of `torch.vmap` are outermost in the batch.
    """
    with temporarily_clear_interpreter_stack():
        tensors = {name: getattr(call, name) for name in ("q", "k", "v", "mask")}
        tensors["explicit_weights"] = call.weights
        unwrapped = {
            name: _Unwrapped.of(each) for name, each in tensors.items() if each is not None
        }
        result = _Unwrapped.of(output)
        sizes = dict(result.sizes)
        for each in unwrapped.values():
            sizes |= each.sizes
        plain = replace(call, **{name: each.with_batch(sizes) for name, each in unwrapped.items()})
        versions = versions_of(plain.q, plain.k, plain.v, plain.mask, plain.weights)
        yield replace(plain, versions=versions), result.with_batch(sizes)


@dataclass(frozen=True, eq=False)
class _Unwrapped:
    """A plain tensor whose first axes are those of `torch.vmap`. sizes: theirs by level, outermost first."""

    tensor: Tensor
    sizes: dict[int, int]

    @staticmethod
    def of(tensor: Tensor) -> _Unwrapped:
        """The tensor behind its wrappers."""
        wrappers = []
        while _functorch.is_functorch_wrapped_tensor(tensor):
            # The axis counts those of the tensor inside this wrapper; -1 for gradients.
            wrappers.append((_functorch.maybe_get_level(tensor), _functorch.maybe_get_bdim(tensor)))
            tensor = _functorch.get_unwrapped(tensor)
        axes = list(range(tensor.ndim))
        vmapped = {level: axes.pop(axis) for level, axis in reversed(wrappers) if axis >= 0}
        sizes = {level: tensor.shape[axis] for level, axis in vmapped.items()}
        return _Unwrapped(tensor.detach().permute(*vmapped.values(), *axes), sizes)

    def with_batch(self, sizes: dict[int, int]) -> Tensor:
        """The tensor with the vmapped axes of all tensors merged into its first axis."""
        shape = self.tensor.shape[len(self.sizes) :]
        if not self.sizes and shape[0] == 1:
            return self.tensor.expand(math.prod(sizes.values()), *shape[1:])
        levels = sorted(sizes)
        outermost = [self.sizes.get(level, 1) for level in levels]
        expanded = self.tensor.reshape(*outermost, *shape)
        expanded = expanded.expand(*(sizes[level] for level in levels), *shape)
        return expanded.flatten(0, len(levels))


def padded(query: Tensor, key: Tensor, *others: Tensor) -> tuple[Bool[Tensor, "..."], list[Tensor]]:
    """Which keys a query may attend to, and the nested tensors padded with zeros."""
    is_query, is_key = (
        torch.nested.to_padded_tensor(torch.ones_like(each.detach()), 0.0)[..., 0] != 0
        for each in (query, key)
    )
    allowed = is_query.unsqueeze(-1) & is_key.unsqueeze(-2)
    tensors = (query, key, *others)
    return allowed, [torch.nested.to_padded_tensor(each.detach(), 0.0) for each in tensors]


def mask_with_values(mask: Any, device: torch.device) -> Tensor:
    """A mask whose values can be read: those of `torch.nn.attention.bias` are tensors without any."""
    biases: Any = sys.modules.get("torch.nn.attention.bias")  # to import it takes a second
    if biases is not None and isinstance(mask, biases.CausalBias):
        return mask._materialize(device)
    return mask.detach()


def as_recorded(tensor: Tensor) -> Tensor:
    """Detached, and a copy in inference mode.

    There PyTorch does not count writes, so the tape would not notice that a cache of fixed size is overwritten.
    """
    return tensor.clone() if tensor.is_inference() else tensor.detach()


def as_computed(tensor: Tensor) -> Tensor:
    """`as_recorded`, and in the dtype that autocast computes in."""
    check_has_values(tensor)
    device, recorded = tensor.device.type, as_recorded(tensor)
    if torch.is_autocast_enabled(device) and tensor.dtype is not torch.float64:
        return recorded.to(torch.get_autocast_dtype(device))
    return recorded


def _without_dispatch(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a Python function of PyTorch that runs its body instead of asking the active mode."""
    without = {**function.__globals__, "has_torch_function": lambda *_: False}
    return types.FunctionType(
        function.__code__, without, function.__name__, function.__defaults__, function.__closure__
    )


multi_head_attention_forward = _without_dispatch(functional.multi_head_attention_forward)
