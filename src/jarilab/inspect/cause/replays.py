"""Linear parts that compute only what differs from a clean run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from jarilab.core.shapes import Float, Int, Tensor
from jarilab.inspect.record.model_io import repeat_batch
from jarilab.inspect.study.example import Batch
from jarilab.positions.coordinates import Tokens
from jarilab.positions.patches import Images

MAX_CHANGED = 0.75
"""Share of changed positions up to which they are computed alone."""


class LinearCall(NamedTuple):
    """A call of a linear part in a clean run.

    number: among the events. input: `(B, L, D)` if it was called with one tensor. version: of the input, which grows if
    the model writes into it.
    """

    number: int
    output: Any
    input: Tensor | None
    version: int

    @staticmethod
    def of(number: int, args: tuple[Any, ...], output: Any) -> LinearCall:
        """A call with these arguments."""
        if len(args) == 1 and isinstance(args[0], Tensor) and args[0].ndim == 3:
            return LinearCall(number, output, args[0], args[0]._version)
        return LinearCall(number, output, None, 0)

    @property
    def clean_input(self) -> Tensor | None:
        """The input, unless the model has written into it since."""
        is_intact = self.input is not None and self.input._version == self.version
        return self.input if is_intact else None

    def is_pointwise(self, module: nn.Module, tolerance: float) -> bool:
        """Whether the module gives the same for two positions alone."""
        x_BLD, output = self.clean_input, self.output
        if x_BLD is None or not isinstance(output, Tensor) or output.shape[:-1] != x_BLD.shape[:-1]:
            return False
        ends = torch.tensor([0, -1], device=x_BLD.device)
        try:
            alone = module(x_BLD.flatten(0, 1)[ends][None])[0]
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False
        expected = output.flatten(0, 1)[ends]
        has_shape = alone.shape == expected.shape
        return has_shape and torch.allclose(alone, expected, rtol=tolerance, atol=tolerance)


class Replay:
    """The forward of a linear part in a forward of copies.

    calls: of the clean run. sizes: rows of its batch, and copies. until: calls with lower numbers return their clean
    outputs. is_pointwise: whether other calls may compute only the positions whose input has changed.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        calls: Sequence[LinearCall],
        sizes: tuple[int, int],
        until: int,
        is_pointwise: bool,
    ):
        self._forward, self._remaining = forward, iter(calls)
        self._rows, self._copies = sizes
        self._until, self._is_pointwise = until, is_pointwise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = next(self._remaining, None)
        if call is None:
            return self._forward(*args, **kwargs)
        # The recorder then takes the output for a function of the module's inputs.
        with torch._C.DisableTorchFunction():
            if call.number < self._until:
                return tree_map_only(Tensor, self._repeat, call.output)
            if self._is_pointwise and len(args) == 1 and not kwargs:
                return self._at_changes(args[0], call)
        return self._forward(*args, **kwargs)

    def _repeat(self, tensor: Tensor) -> Tensor:
        has_rows = tensor.ndim > 0 and tensor.shape[0] % self._rows == 0
        return repeat(tensor, self._copies) if has_rows else tensor

    def _at_changes(self, x_RLD: Tensor, call: LinearCall) -> Tensor:
        clean_BLD = call.clean_input
        if clean_BLD is None or x_RLD.shape != (
            self._copies * len(clean_BLD),
            *clean_BLD.shape[1:],
        ):
            return self._forward(x_RLD)
        changed_CBL = (x_RLD.unflatten(0, (self._copies, -1)) != clean_BLD).any(-1)
        changed_RL = changed_CBL.flatten(0, 1)
        count = int(changed_RL.sum())
        if count > MAX_CHANGED * changed_RL.numel():
            return self._forward(x_RLD)
        output_RLN = repeat(call.output, self._copies)
        if count:
            output_RLN[changed_RL] = self._forward(x_RLD[changed_RL][None])[0]
        return output_RLN


def run_at(
    forward: Callable[..., Any], places_R: Int[Tensor, " R"], x: Tensor
) -> Float[Tensor, "R L N"]:
    """The output of a linear part at one position of each row, as if it were that of all positions."""
    rows_R = torch.arange(len(x), device=x.device)
    x_R1D = x[rows_R, places_R.to(x.device)][:, None]
    return forward(x_R1D).expand(-1, x.shape[1], -1)


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside the block, the module runs another forward."""
    earlier = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if earlier is not None:
            module.forward = earlier


def repeat(tensor: Tensor, copies: int) -> Tensor:
    """The rows of a tensor `copies` times."""
    return tensor.repeat(copies, *[1] * (tensor.ndim - 1))


def change_stream(arguments: Any, rows: int, change: Callable[[Tensor], Tensor]) -> Any:
    """Replace the first floating tensor `(rows, L, D)` among these by its change."""
    streams: list[Tensor] = []

    def replaced(tensor: Tensor) -> Tensor:
        is_vectors = tensor.ndim == 3 and len(tensor) == rows and tensor.is_floating_point()
        if streams or not is_vectors:
            return tensor
        streams.append(tensor)
        return change(tensor)

    return tree_map_only(Tensor, replaced, arguments)


def repeat_rows(batch: Batch, copies: int) -> Batch:
    """The batch `copies` times, one copy below the other."""

    def repeated_rows(value: Any) -> Any:
        if isinstance(value, Tokens | Images):
            return repeat_batch(value, copies)
        has_rows = value.ndim > 0 and value.shape[0] == len(batch)
        return repeat(value, copies) if has_rows else value

    with_rows = {name: getattr(batch, name) for name in ("args", "kwargs", "valid", "ids")}
    repeated = tree_map_only((Tensor, Tokens, Images), repeated_rows, with_rows)
    for name in ("tokens", "origins", "extras", "words"):
        repeated[name] = getattr(batch, name) * copies
    return replace(batch, **repeated, copies=batch.copies * copies)
