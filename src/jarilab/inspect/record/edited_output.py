"""Which edit made an output, so that a recorder after the edit knows the weights that were used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.inspect.record.sites import share_memory


class UsedWeights(NamedTuple):
    """The weights of a call, and the keys that each query may attend to; None if it may attend to all."""

    weights: Float[Tensor, "B H Q K"]
    allowed: Bool[Tensor, "#B #H #Q K"] | None


WeightEdit = Callable[[AttentionCall], UsedWeights]
"""Computes the weights of a call after an edit."""


class _LastEdit(threading.local):
    """The last edited output of a thread, and the edit that made it."""

    output: Tensor | None = None
    edit: WeightEdit | None = None


_last = _LastEdit()


def remember_edit(output: Tensor, edit: WeightEdit) -> None:
    """Say that `edit` made this output, which the model continues with."""
    _last.output, _last.edit = output, edit


def forget_edit() -> None:
    """Release the last output."""
    _last.output = _last.edit = None


def edit_of(output: Tensor) -> WeightEdit | None:
    """The edit that made this output or a view of it; None if it is the kernel's own."""
    if _last.output is None or not share_memory(output, _last.output):
        return None
    return _last.edit


def no_edit(place: str) -> UserError:
    """The error for an edit of calls that are recorded as plain ones."""
    return UserError(
        f"expected an edit of plain tensors, got an attention {place}; run the edited model on a plain batch, or "
        "record this forward without edits"
    )
