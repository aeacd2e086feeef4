"""The effect of edits on an answer, and the importance of each head to it.

`written`, in all functions: see `jarilab.inspect.intervene.likelihood`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import final

import torch
from torch import nn
from torch.nn import functional

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.intervene.edit import Edit
from jarilab.inspect.intervene.edits import Cut
from jarilab.inspect.intervene.interventions import (
    change_outputs,
    check_evaluating,
    operate_on_copies,
)
from jarilab.inspect.intervene.likelihood import (
    Written,
    divergence,
    labels_of,
    log_probabilities,
    log_softmax,
    losses,
    mean_over,
    pick_labels,
)
from jarilab.inspect.intervene.moved_positions import PositionEdit, move_patches
from jarilab.inspect.record.capture import record
from jarilab.inspect.record.model_io import Inputs, repeat_batch


@final
@dataclass(frozen=True, eq=False)
class Effect:
    """The probabilities of an answer before and after an edit, given the original's tokens.

    before, after: `(N,)`, the probability of each token of the answer. log_before, log_after: the sums of their
    logarithms. divergence: Jensen-Shannon, in nats (at most ln 2), between the distributions of the next token; mean
    over all places of the answer, or of a language model's text.
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
    placed: Inputs | PositionEdit | None = None,
) -> Effect:
    """Compare a forward with the edited one.

    placed: for the edited forward, the same tokens at other positions, see `move_tokens`, or a change of the positions
    of patches.
    """
    labels = labels_of(inputs, written)
    before = log_probabilities(model, inputs)
    moving = move_patches(model, placed) if isinstance(placed, PositionEdit) else nullcontext()
    edited_inputs = placed if isinstance(placed, tuple) else inputs
    with moving:
        after = log_probabilities(model, edited_inputs, edits)
    has_label = labels >= 0
    log_before = pick_labels(before, labels)[has_label]
    log_after = pick_labels(after, labels)[has_label]
    return Effect(
        before=log_before.exp(),
        after=log_after.exp(),
        log_before=float(log_before.sum()),
        log_after=float(log_after.sum()),
        divergence=divergence(before, after, inputs),
    )


# Largest weights ----------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, eq=False)
class Erasure:
    """The effect of hiding the largest weights, and random ones, the mean over `draws` (Serrano and Smith 2019).

    largest, random: the change of the answer's log-probability. largest_flips, random_flips: the share of places
    where the likeliest token changes.
    """

    largest: float
    random: float
    largest_flips: float
    random_flips: float
    draws: int


def erasure(
    model: nn.Module,
    inputs: Inputs,
    written: Written,
    site: str,
    head: int | None,
    k: int,
    draws: int = 10,
    seed: int = 0,
    *,
    at_once: int | None = None,
) -> Erasure:
    """Hide from every query its `k` most attended keys, and `k` random keys instead.

    Weights that matter to the answer do more harm than random ones. A query with `k` keys or fewer loses all of them.
    at_once: copies of the input in one forward; `draws` and two by default.
    """
    if draws < 1:
        raise UserError(f"expected 1 or more random draws, got {draws}")
    labels = labels_of(inputs, written)
    cuts = [Cut(site, head, k)]
    cuts += [Cut(site, head, k, "random", seed + draw) for draw in range(draws)]
    edits: list[list[Edit]] = [[], *([cut] for cut in cuts)]
    before, *after = _log_probabilities_of_copies(model, inputs, edits, at_once or len(edits))
    changes, flips = [], []
    for logs in after:
        change_BL = pick_labels(logs, labels) - pick_labels(before, labels)
        changes.append(float(change_BL.sum()))
        flipped_BL = before.argmax(-1) != logs.argmax(-1)
        flips.append(float(mean_over(flipped_BL.double(), inputs)))
    return Erasure(
        largest=changes[0],
        random=sum(changes[1:]) / draws,
        largest_flips=flips[0],
        random_flips=sum(flips[1:]) / draws,
        draws=draws,
    )


@torch.no_grad()
def _log_probabilities_of_copies(
    model: nn.Module, inputs: Inputs, edits: Sequence[Sequence[Edit]], at_once: int
) -> list[Float[Tensor, "B L V"]]:
    logs: list[Tensor] = []
    for first in range(0, len(edits), at_once):
        batch_edits = edits[first : first + at_once]
        copies = [repeat_batch(batch, len(batch_edits)) for batch in inputs]
        with operate_on_copies(model, batch_edits):
            logs_RLV = log_softmax(model(*copies))
        logs += logs_RLV.chunk(len(batch_edits))
    return logs


# Heads --------------------------------------------------------------------------------------------------------------


def importance(
    model: nn.Module, inputs: Inputs, written: Written
) -> dict[str, Float[Tensor, " H"]]:
    """The first-order effect of each head on the loss (Michel et al. 2019).

    The mean over the batch of `|<Att_h, dL/dAtt_h>|`, L2-normalised for each site. L: the mean cross-entropy of the
    answer.
    """
    check_evaluating(model)
    labels = labels_of(inputs, written)
    # Gates of 1, `(B, H, 1, 1)`, that multiply the output of each head: their gradient is `<Att_h, dL/dAtt_h>`.
    gates: dict[str, Tensor] = {}

    def apply_gate(site: str, call: AttentionCall, output: Tensor) -> Tensor:
        if site not in gates:
            gates[site] = output.new_ones(*output.shape[:2], 1, 1).requires_grad_()
        return output * gates[site]

    # cuDNN has no gradient of a recurrence in evaluation.
    no_cudnn = torch.backends.cudnn.flags(enabled=False)
    with torch.enable_grad(), no_cudnn, change_outputs(model, apply_gate):
        loss_B = losses(log_softmax(model(*inputs)), labels)
        gradients = torch.autograd.grad(loss_B.sum(), list(gates.values()))
    importances = {}
    for site, gradient_BH11 in zip(gates, gradients, strict=True):
        importance_H = gradient_BH11.flatten(1).abs().mean(0)
        importances[site] = functional.normalize(importance_H, dim=0)
    return importances


def ablation(model: nn.Module, inputs: Inputs, written: Written) -> dict[str, Float[Tensor, " H"]]:
    """The rise of the loss of `importance`, in nats, with each head off, as with `HeadOff`.

    Runs one forward for each site, on a copy of the batch for each head and one with all heads on.
    """
    check_evaluating(model)
    labels, loss_increases = labels_of(inputs, written), {}
    with torch.no_grad(), record(model) as tape:
        model(*inputs)
    for site in tape.sites:
        heads = tape.calls[site][0].call.q.shape[1]
        copies = heads + 1
        with torch.no_grad(), _each_head_off(model, site, heads):
            log_RLV = log_softmax(model(*(repeat_batch(batch, copies) for batch in inputs)))
        loss_R = losses(log_RLV, labels.repeat(copies, 1))
        loss_C = loss_R.unflatten(0, (copies, -1)).mean(1)
        loss_increases[site] = loss_C[:-1] - loss_C[-1]
    return loss_increases


def _each_head_off(model: nn.Module, site: str, heads: int) -> AbstractContextManager[None]:
    """Set the output of head i to zero in copy i of the batch, and of none in the last copy."""

    def zero_heads(site: str, call: AttentionCall, output: Tensor) -> Tensor:
        output = output.unflatten(0, (heads + 1, -1)).clone()
        for head in range(heads):
            output[head, :, head] = 0.0
        return output.flatten(0, 1)

    return change_outputs(model, zero_heads, [site])
