"""The attention calls of generation steps, merged into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.record.foreign_call import ForeignCall, versions_of


def merge_generation_steps(site: str, steps: Sequence[ForeignCall]) -> ForeignCall:
    """One call with the queries of all steps over the keys of the last step.

    Keys that an earlier step did not have are hidden from it. Raises UserError if a step does not continue the one
    before it.
    """
    _check_steps_continue(site, steps)
    first, last = steps[0], steps[-1]
    q = torch.cat([step.q for step in steps], 2)
    batch = max(len(step.q) for step in steps)
    mask = torch.cat([_pad_mask(step, last.k.shape[2], batch) for step in steps], 2)
    return replace(
        last,
        q=q,
        mask=mask,
        is_causal=False,
        is_cross=first.is_cross,
        verified=all(step.verified for step in steps),
        versions=versions_of(q, last.k, last.v, mask),
        # Padded rows attend to all keys of their step and to no later ones, so the mask cannot tell.
        backward_only=not first.is_cross,
    )


def _check_steps_continue(site: str, steps: Sequence[ForeignCall]) -> None:
    """Raises UserError unless each step reads the keys of the step before and its own."""
    last, queries = steps[-1], 0
    for index, step in enumerate(steps):
        queries += step.q.shape[2]
        keys = step.k.shape[2]
        expected = keys if steps[0].is_cross else queries
        fits = len(step.k) == len(last.k) and keys == expected <= last.k.shape[2]
        pairs = ((step.k, last.k), (step.v, last.v))
        if not fits or not all(torch.equal(early, late[:, :, :keys]) for early, late in pairs):
            raise UserError(
                f"the calls of {site} do not continue each other: expected call {index} to have the first {expected} "
                "keys of the last call, got others. Causes are another text, a beam search that reorders its beams, a "
                "cache that forgets or has a fixed size, or no cache (use_cache=False), where the last call has the "
                "whole map: index=-1. Record one greedy generation with its usual cache, or pass the index of a call"
            )


def _pad_mask(step: ForeignCall, keys: int, batch: int) -> Float[Tensor, "B H Q K"]:
    """The mask of a step as numbers, with minus infinity for keys that it does not have."""
    allowed, bias = step.allowed_and_bias()
    mask = torch.zeros(1, 1, 1, 1, device=step.q.device) if bias is None else bias
    if allowed is not None:
        mask = mask.masked_fill(~allowed, float("-inf"))
    heads, queries, step_keys = step.q.shape[1], step.q.shape[2], step.k.shape[2]
    expanded = mask.expand(batch, heads, queries, step_keys)
    return functional.pad(expanded, (0, keys - step_keys), value=float("-inf"))
