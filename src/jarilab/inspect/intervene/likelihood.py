"""Log-probabilities and losses of an answer, and divergences between distributions of the next token.

`written`, in all functions: the IDs that were written after each token of the last input, below 0 for none. These are
a tensor `(B, L)`, or a list for a batch of one. For classes, it is that of the text, of the image or of each object
query. A language model uses its next tokens instead of a list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.inspect.intervene.edit import Edit
from jarilab.inspect.intervene.interventions import operate
from jarilab.inspect.record.model_io import Inputs, scores_of
from jarilab.positions.coordinates import Tokens

IGNORED = -1
"""The label where nothing was written."""

Written = Sequence[int] | Int[Tensor, "B L"]


def log_probabilities(
    model: nn.Module, inputs: Inputs, edits: Sequence[Edit] = ()
) -> Float[Tensor, "B L V"]:
    """The log-probabilities of the next token in a forward with edits, in float64."""
    with torch.no_grad(), operate(model, edits):
        return log_softmax(model(*inputs))


def log_softmax(outputs: Any) -> Float[Tensor, "B L V"]:
    """The log-probabilities of a model's outputs, in float64."""
    return scores_of(outputs).double().log_softmax(-1)


def labels_of(inputs: Inputs, written: Written) -> Int[Tensor, "B L"]:
    """The ID that was written after each token, below 0 for none; for images, the classes.

    Raises UserError if `written` does not have the shape of the tokens.
    """
    last = inputs[-1]
    if not isinstance(last, Tokens):
        is_tensor = isinstance(written, Tensor)
        return written if is_tensor else torch.tensor([list(written)], device=last.pixels.device)
    ids = last.ids
    if isinstance(written, Tensor):
        labels = written.to(ids.device)
    elif len(inputs) == 1:  # a language model
        labels = torch.full_like(ids, IGNORED)
        labels[:, :-1] = ids[:, 1:]
        if last.keep is not None:
            labels[:, :-1].masked_fill_(~last.keep[:, 1:], IGNORED)
    else:
        labels = torch.tensor([list(written)], dtype=torch.long, device=ids.device)
    # One label a row is the class of a text.
    if labels.shape not in (ids.shape, (len(ids), 1)):
        raise UserError(
            f"expected {tuple(ids.shape)} numbers, got {tuple(labels.shape)}; take inputs and written from the same "
            "answer, with an ID after each token of the target"
        )
    return labels


def pick_labels(log_BLV: Tensor, labels_BL: Tensor) -> Float[Tensor, "B L"]:
    """The log-probability of each label, 0 where there is none. Raises UserError for labels of another shape."""
    if labels_BL.shape != log_BLV.shape[:2]:
        raise UserError(
            f"expected a label for each of {tuple(log_BLV.shape[:2])} places, got {tuple(labels_BL.shape)}; take "
            "inputs and written from the same answer"
        )
    index_BL1 = labels_BL.clamp_min(0).unsqueeze(-1)
    picked_BL = log_BLV.gather(-1, index_BL1).squeeze(-1)
    return picked_BL.masked_fill(labels_BL < 0, 0.0)


def losses(log_BLV: Tensor, labels_BL: Tensor) -> Float[Tensor, " B"]:
    """The mean cross-entropy of each row's labels, in nats."""
    count_B = (labels_BL >= 0).sum(1).clamp_min(1)
    return -pick_labels(log_BLV, labels_BL).sum(1) / count_B


def divergence(first_BLV: Tensor, second_BLV: Tensor, inputs: Inputs) -> float:
    """The mean of `divergences` over all places that are no padding."""
    each_BL = divergences(first_BLV, second_BLV)
    return float(mean_over(each_BL, inputs).clamp(0.0, math.log(2)))


def divergences(first_BLV: Tensor, second_BLV: Tensor) -> Float[Tensor, "B L"]:
    """The Jensen-Shannon divergence, in nats, of distributions given as log-probabilities."""
    middle_BLV = torch.logaddexp(first_BLV, second_BLV) - math.log(2)
    logs_2BLV = torch.stack((first_BLV, second_BLV))
    # A token without probability in both adds nothing.
    ratios_2BLV = (logs_2BLV - middle_BLV).nan_to_num(0.0, neginf=0.0)
    return 0.5 * (logs_2BLV.exp() * ratios_2BLV).sum((0, -1))


def mean_over(values_BL: Float[Tensor, "B L"], inputs: Inputs) -> Float[Tensor, ""]:
    """The mean over all places of the answer that are no padding."""
    keep = inputs[-1].keep if isinstance(inputs[-1], Tokens) else None
    has_padding = keep is not None and keep.shape == values_BL.shape
    return (values_BL[keep] if has_padding else values_BL).mean()
