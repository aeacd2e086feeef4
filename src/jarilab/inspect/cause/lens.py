"""The logit lens: what the model would answer if each layer were its last (nostalgebraist 2020).

    lens = logit_lens(ModelParts(model, batch), batch)
    lens.logits                             # (S, B, L, V): streams, rows, positions, tokens

The model's own final norm and unembedding run on the residual stream of each layer, with the norm's scale for that
stream. For contributions of parts, the scale of the last stream is kept instead: see `contributions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.cause.answers import checked
from jarilab.inspect.cause.copies import Copies, Group
from jarilab.inspect.cause.forward_notes import ForwardNotes
from jarilab.inspect.cause.parts import ModelParts, Part, is_within
from jarilab.inspect.intervene.interventions import check_evaluating
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.losses import Loss, logits_of
from jarilab.inspect.study.measure_table import interval_columns
from jarilab.inspect.study.tables import rows_of


@dataclass(frozen=True, eq=False)
class LogitLens:
    """What `read` returned for the logits from the stream that enters each layer, and from what leaves the last.

    logits: stacked, `(S, B, *L, V)` if `read` returns them as they are. warning: why early streams cannot be read like
    the last one; empty if they can.
    """

    streams: list[Part]
    logits: Tensor
    warning: str


@torch.no_grad()
def logit_lens(
    parts: ModelParts, batch: Batch, read: Callable[[Tensor], Tensor] = lambda logits: logits
) -> LogitLens:
    """The logits at each layer of the stack that is read last; the last of them are the model's own.

    read: keeps of the logits `(B, *L, V)` of a stream what is needed; all of them take much memory.
    Raises UserError for a model in training mode, without logits, or without a norm after its last layer.
    """
    check_evaluating(parts.model)
    copies = Copies(parts)
    clean = copies.run_clean(batch)
    final = logits_of(clean.outputs)
    ran = [part for part in parts.streams() if part.event in clean.events]
    name = type(parts.model).__name__
    if final is None or not ran:
        raise UserError(
            f"expected a model with layers and logits, got {name} with the outputs {type(clean.outputs).__name__}; "
            "load the model with its head"
        )
    warning = _warning(parts, batch)
    last = max(ran, key=lambda part: clean.events.index(part.event))
    stack = next(stack for stack, layers in parts.layers.items() if last.site in layers)
    streams = [part for part in ran if is_within(part.site, stack)]
    values = {part.short: copies.values(clean, part)[0] for part in streams}
    groups: list[Group] = [(replace(last, short=part.short),) for part in streams]
    results = []
    logits_BLV = final
    for numbers in copies.forwards(clean, groups):
        chosen = [groups[number] for number in numbers]
        outputs = logits_of(copies.run(clean, chosen, lambda part, call, x: values[part.short]))
        assert outputs is not None
        for logits_BLV in outputs.unflatten(0, (len(chosen), -1)):
            results.append(read(logits_BLV))
    if not torch.allclose(logits_BLV, final, rtol=1e-4, atol=1e-4):
        raise UserError(
            f"expected the logits of {name} from its last residual stream, got others; it reads more than this stream, "
            "so its lens would be wrong"
        )
    return LogitLens(streams, torch.stack(results), warning)


def _warning(parts: ModelParts, batch: Batch) -> str:
    """What limits the lens of this model. Raises UserError for a model without a final norm that is not post-norm."""
    notes = ForwardNotes(parts, batch)
    stream, before = notes.left
    name = type(parts.model).__name__
    if stream is not None and notes.norm_of(stream) is not None:
        return (
            f"{name} is a post-norm model: every layer normalizes the residual stream, so earlier streams are not in "
            "the form that its unembedding was trained on"
        )
    if not any(call.is_norm for call in notes.norms[before:]):
        raise UserError(
            f"expected a norm between the last layer of {name} and its logits, got none, so its lens would read "
            "streams of any size; use contributions or patching"
        )
    return ""


def lens_rows(model: nn.Module, batches: Sequence[Batch], answer: Loss) -> list[dict[str, Any]]:
    """A row for each residual stream: the mean of `answer` over the examples, with its 95 % interval.

    answer: any metric of logits and batch, one number a row. warning: as in `LogitLens`.
    Raises UserError as `logit_lens`, and without a batch.
    """
    if not batches:
        raise UserError("expected a batch of examples or more, got none; pass examples")
    parts = ModelParts(model, batches[0])
    lenses = [
        logit_lens(parts, batch, partial(_score, answer=answer, batch=batch)) for batch in batches
    ]
    values = torch.cat([lens.logits for lens in lenses], 1)
    columns = interval_columns("value", values.T.cpu().numpy(), 0)
    return [
        part.columns | row | {"warning": lenses[0].warning}
        for part, row in zip(lenses[0].streams, rows_of(columns), strict=True)
    ]


def _score(logits: Tensor, *, answer: Loss, batch: Batch) -> Float[Tensor, " B"]:
    return checked(answer(logits, batch), "logit lens", batch)
