"""Comparison of tensors in a law, and the errors for a broken or skipped law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor

EXACT = 1e-5  # float64 with a few float32 constants, computed in another order
POSITIONS = 2e-3  # angles in float32 are off by 2e-4 at position 5,000, which is allowed
NOTICEABLE = 1e-2  # a difference that is no rounding error


class BrokenError(Exception):
    """The law does not hold."""


class SkippedError(Exception):
    """The law does not apply to this encoding or model."""


def max_difference(first: Tensor, second: Tensor) -> float:
    """The largest absolute difference."""
    difference = first.detach().double() - second.detach().double()
    return float(difference.abs().max())


def check_close(actual: Tensor, expected: Tensor, tolerance: float, what: str) -> float:
    """Compare two tensors and return the largest difference.

    It is relative to the largest expected number, if that is above 1. Raises BrokenError if it exceeds the tolerance.
    """
    if actual.shape != expected.shape:
        raise BrokenError(f"{what}: shape {tuple(actual.shape)} instead of {tuple(expected.shape)}")
    if not expected.numel():
        return 0.0
    if expected.isinf().any():
        raise BrokenError(
            f"{what}: is infinite; to hide keys, add a finite number such as -10,000, or give a Mask"
        )
    largest = float(expected.detach().abs().max())
    difference = max_difference(actual, expected) / max(1.0, largest)
    if not difference <= tolerance:
        raise BrokenError(f"{what}: off by {difference:.2g}, allowed {tolerance:g}")
    return difference


def check_all_close(
    actual: dict[str, Tensor], expected: dict[str, Tensor], how: str, tolerance: float = 0.0
) -> None:
    """Compare two sets of tensors, bit for bit by default. Raises BrokenError."""
    for hook, answer in expected.items():
        check_close(actual[hook], answer, tolerance, f"{hook} {how}")


def user_error_of(action: Callable[[], Any]) -> str | None:
    """The text of the UserError that `action` raises, or None."""
    try:
        action()
    except UserError as error:
        return str(error)
    return None


def unsaved_tensors(model: nn.Module) -> str:
    """A note about tensors that modules hold as plain attributes, which a state_dict omits."""
    paths = []
    for path, module in model.named_modules():
        names = [name for name, value in vars(module).items() if isinstance(value, Tensor)]
        paths += [f"{path}.{name}".removeprefix(".") for name in names]
    if not paths:
        return ""
    return f"; not in it, so that no checkpoint brings it back: {', '.join(paths[:3])}"
