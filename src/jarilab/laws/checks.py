"""How a law compares, and how it says that it does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor

EXACT = 1e-5  # float64 with a few float32 constants, computed in another order
POSITIONS = 2e-3  # angles in float32 are off by 2e-4 at position 5,000, which is allowed
NOTICEABLE = 1e-2  # a difference that nobody could take for rounding


class BrokenError(Exception):
    """The law does not hold."""


class SkippedError(Exception):
    """The law says nothing about this encoding."""


def apart(first: Tensor, second: Tensor) -> float:
    """The largest difference."""
    difference = first.detach().double() - second.detach().double()
    return float(difference.abs().max())


def near(found: Tensor, expected: Tensor, tolerance: float, what: str) -> float:
    """The largest difference, relative to the largest expected number where that is above 1. Raises BrokenError."""
    if found.shape != expected.shape:
        raise BrokenError(f"{what}: shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
    if not expected.numel():
        return 0.0
    largest = float(expected.detach().abs().max())
    difference = apart(found, expected) / max(1.0, largest)
    if not difference <= tolerance:
        raise BrokenError(f"{what}: off by {difference:.2g}, allowed {tolerance:g}")
    return difference


def near_all(
    found: dict[str, Tensor], expected: dict[str, Tensor], how: str, tolerance: float = 0.0
) -> None:
    """The same answers, by default bit for bit. Raises BrokenError."""
    for hook, answer in expected.items():
        near(found[hook], answer, tolerance, f"{hook} {how}")


def complaint(action: Callable[[], Any]) -> str | None:
    """The text of the UserError that it raises, or None."""
    try:
        action()
    except UserError as error:
        return str(error)
    return None


def unstored(model: nn.Module) -> str:
    """Tells of tensors that modules hold as plain attributes, which a state_dict passes over."""
    found = []
    for path, module in model.named_modules():
        names = [name for name, held in vars(module).items() if isinstance(held, Tensor)]
        found += [f"{path}.{name}".removeprefix(".") for name in names]
    if not found:
        return ""
    return f"; not in it, so that no checkpoint brings it back: {', '.join(found[:3])}"
