"""Which edit made an output, so that a recorder after the edit knows the weights that were used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch.overrides import handle_torch_function, has_torch_function

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.inspect.record.layout import share_memory


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


def copy_edit(output: Tensor, changed: Tensor) -> None:
    """Say that the edit that made `output`, if any, also made `changed`."""
    edit = edit_of(output)
    if edit is not None:
        remember_edit(changed, edit)


def replace_output(changed: Tensor, output: Tensor) -> None:
    """Tell the function modes around this one that `changed` stands in the place of `output`."""
    if has_torch_function((changed, output)):
        handle_torch_function(replace_output, (changed, output), changed, output)


class _NoGradient(torch.autograd.Function):
    """Rows that an edit computed from detached tensors; raises UserError where they need a gradient."""

    @staticmethod
    def forward(ctx: Any, changed: Tensor, output: Tensor) -> Tensor:
        return changed.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        if any(bool(each.any()) for each in gradients):
            raise UserError(
                "expected an edit that hides whole queries or heads, whose gradient is 0, got one that changes weights "
                "of another library's attention, whose gradient is not computed; edit under torch.no_grad(), or "
                "differentiate a model of jari"
            )
        return None, None


def refuse_gradient(changed: Tensor, output: Tensor) -> Tensor:
    """`changed` itself; where `output` has a gradient and `changed` has none, one that refuses its gradient."""
    if torch.is_grad_enabled() and output.requires_grad and not changed.requires_grad:
        with torch._C.DisableTorchFunction():
            return cast(Tensor, _NoGradient.apply(changed, output))
    return changed


def no_edit(place: str) -> UserError:
    """The error for an edit of calls that are recorded as plain ones."""
    return UserError(
        f"expected an edit of plain tensors, got an attention {place}; run the edited model on a plain batch, or "
        "record this forward without edits"
    )
