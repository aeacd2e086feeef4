"""What an edit of a forward does to the answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import final

from torch import nn

from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.intervene.edit import Edit
from jarilab.inspect.intervene.likelihood import (
    Written,
    divergence,
    labels_of,
    log_probabilities,
    picked,
)
from jarilab.inspect.intervene.moved_positions import Places, displaced
from jarilab.inspect.record.model_io import Inputs


@final
@dataclass(frozen=True, eq=False)
class Effect:
    """What an edit did to an answer, the tokens before each being the original's.

    before, after: `(N,)`, the probability of each of the answer's tokens; log_before, log_after: the sum of their
    logarithms. divergence: Jensen-Shannon, in nats (ln 2 at most), between the distributions of the next token, the
    mean over all places of the answer, or of a language model's text.
    """

    before: Float[Tensor, " N"]
    after: Float[Tensor, " N"]
    log_before: float
    log_after: float
    divergence: float


def effect(
    model: nn.Module,
    inputs: Inputs,
    written: Written,
    edits: Sequence[Edit],
    placed: Inputs | Places | None = None,
) -> Effect:
    """Compare the forward with the edited one.

    written: what was written after each token of the last input; `(B, L)` numbers, below 0 where nothing was, or those
    of a batch of one. A language model's are the next of its tokens, whatever is given as a sequence.
    placed: for the edited forward, the same tokens at other places, see `moved`, or where an image's patches are.
    """
    labels = labels_of(inputs, written)
    before = log_probabilities(model, inputs)
    moving = displaced(model, placed) if isinstance(placed, Places) else nullcontext()
    edited = placed if isinstance(placed, tuple) else inputs
    with moving:
        after = log_probabilities(model, edited, edits)
    real = labels >= 0
    log_before = picked(before, labels)[real]
    log_after = picked(after, labels)[real]
    return Effect(
        before=log_before.exp(),
        after=log_after.exp(),
        log_before=float(log_before.sum()),
        log_after=float(log_after.sum()),
        divergence=divergence(before, after, inputs),
    )
