"""The calls of one attention, step by step as `generate` takes them, as the call of one whole map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.record.heard import Heard, versions_of
from jarilab.inspect.record.recorded import Recorded


def joined(site: str, calls: Sequence[Recorded]) -> Recorded:
    """Queries one below the other over the keys of the last step; what an earlier step did not have yet is hidden from
    it. Raises UserError where the steps do not continue each other, and for an attention of jari."""
    if len(calls) == 1:
        return calls[0]
    steps = [recorded.held for recorded in calls if isinstance(recorded.held, Heard)]
    if len(steps) < len(calls):
        raise UserError(
            f"{site} is an attention of jari, whose encoding may say other things of a whole text than of its steps; "
            "record one forward over the text that was written"
        )
    _check_continues(site, steps)
    last = steps[-1]
    q = torch.cat([step.q for step in steps], 2)
    rows = max(len(step.q) for step in steps)
    added = torch.cat([_over(step, last.k.shape[2], rows) for step in steps], 2)
    whole = replace(
        last,
        q=q,
        added=added,
        causal=False,
        cross=steps[0].cross,
        proven=all(step.proven for step in steps),
        versions=versions_of(q, last.k, last.v, added),
        # A row of padding that saw all keys of its step does not see those of later steps.
        backward=not steps[0].cross,
    )
    output = torch.cat([recorded.output for recorded in calls], 2)
    return replace(calls[0], held=whole, output=output)


def _check_continues(site: str, steps: Sequence[Heard]) -> None:
    """Raises UserError where a step does not read the keys of the one before and its own."""
    last, read = steps[-1], 0
    for number, step in enumerate(steps):
        read += step.q.shape[2]
        keys = step.k.shape[2]
        expected = keys if steps[0].cross else read
        alike = len(step.k) == len(last.k) and keys == expected <= last.k.shape[2]
        pairs = ((step.k, last.k), (step.v, last.v))
        if not alike or not all(torch.equal(own, of[:, :, :keys]) for own, of in pairs):
            raise UserError(
                f"the calls of {site} do not continue each other: expected call {number} to have the first {expected} "
                "keys of the last, got others, as of another text, of beams that changed places, of a cache that "
                "forgets or has a fixed size, or of none (use_cache=False), where the last call is the whole map: "
                "index=-1; record one greedy generation with its usual cache, or look at each call by its index"
            )


def _over(step: Heard, keys: int, rows: int) -> Float[Tensor, "B H Q K"]:
    """What is added to the scores of a step, over the keys of the last one."""
    allowed, bias = step.allowed_and_bias()
    added = torch.zeros(1, 1, 1, 1, device=step.q.device) if bias is None else bias
    if allowed is not None:
        added = added.masked_fill(~allowed, float("-inf"))
    heads, queries, own = step.q.shape[1], step.q.shape[2], step.k.shape[2]
    whole = added.expand(rows, heads, queries, own)
    return functional.pad(whole, (0, keys - own), value=float("-inf"))
