"""Linear layers whose outputs an earlier forward has computed for the same input, bit by bit.

    memory = LinearMemory()
    with memory.record():
        model(x)
    with memory.reuse(), operate(model, [HeadOff("encoder.5", 1)]):
        model(x)  # the linear layers up to the edit are not computed again

All other functions run, so that the outputs are those of the whole forward, whatever the model does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from jarilab.core.shapes import Tensor

MAX_BYTES = 2**28
"""Of inputs and outputs that are kept. Layers that do not fit are computed again."""
LINEAR = {functional.linear, torch.addmm}
"""What `nn.Linear` and the `Conv1D` of transformers call. A matrix product of less would cost as little as a lookup."""


class _Call(NamedTuple):
    args: tuple[Tensor | None, ...]
    versions: list[int]
    output: Tensor

    def is_of(self, args: tuple[Tensor | None, ...]) -> bool:
        """Whether these arguments have the bits that this call has read."""
        if len(args) != len(self.args) or self.versions != _versions(self.args):
            return False
        return all(_same_bits(*pair) for pair in zip(args, self.args, strict=True))


class LinearMemory:
    """The linear layers of one forward without gradients: their inputs and outputs.

    Valid until a tensor changes without a new version, as through its `data` or NumPy.
    """

    def __init__(self) -> None:
        self._calls: dict[int, list[_Call]] = {}
        self._bytes = 0

    def record(self) -> AbstractContextManager[Any]:
        """Inside the block, keep the inputs and outputs of linear layers."""
        return _LinearMode(self._compute_and_record)

    def reuse(self) -> AbstractContextManager[Any]:
        """Inside the block, linear layers return the recorded output of an equal input.

        Recorders and edits that begin inside the block see all functions as usual.
        """
        return _LinearMode(self._look_up)

    def _compute_and_record(self, func: Callable[..., Tensor], args: tuple[Any, ...]) -> Tensor:
        output = func(*args)
        # A slice keeps its whole storage.
        size = output.nbytes + sum(each.untyped_storage().nbytes() for each in _data(args))
        if self._bytes + size <= MAX_BYTES:
            self._bytes += size
            # The model may write into the output afterwards.
            call = _Call(args, _versions(args), output.clone())
            self._calls.setdefault(_weight(args), []).append(call)
        return output

    def _look_up(self, func: Callable[..., Tensor], args: tuple[Any, ...]) -> Tensor:
        for call in self._calls.get(_weight(args), ()):
            if call.is_of(args):
                return call.output.clone()
        return func(*args)


class _LinearMode(TorchFunctionMode):
    """Passes the linear layers that can be kept to a function."""

    def __init__(self, run: Callable[[Callable[..., Tensor], tuple[Any, ...]], Tensor]):
        super().__init__()
        self._run = run

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        is_linear = func in LINEAR and not kwargs and not torch.is_grad_enabled()
        if is_linear and all(map(_is_cacheable, args)) and _data(args):
            return self._run(func, args)
        return func(*args, **(kwargs or {}))


def _is_cacheable(value: Any) -> bool:
    if value is None or isinstance(value, nn.Parameter):
        return True
    return type(value) is Tensor and value.dtype is torch.float32 and not value.is_inference()


def _data(args: tuple[Any, ...]) -> list[Tensor]:
    """The arguments that are no parameters."""
    return [each for each in args if type(each) is Tensor]


def _weight(args: tuple[Any, ...]) -> int:
    return next((id(each) for each in reversed(args) if isinstance(each, nn.Parameter)), 0)


def _versions(args: tuple[Tensor | None, ...]) -> list[int]:
    return [each._version for each in args if each is not None]


def _same_bits(x: Tensor | None, y: Tensor | None) -> bool:
    if x is y:
        return True
    if type(x) is not Tensor or type(y) is not Tensor:
        return False
    # As integers: 0 equals -0, and NaN does not equal itself.
    is_alike = x.shape == y.shape and x.stride() == y.stride() and x.device == y.device
    return is_alike and torch.equal(x.view(torch.int32), y.view(torch.int32))
