"""How far a map can be believed: weights are compared with what the model put out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.record.calls import blocks

SMALLEST = 1e-30
"""What an output is taken to be at least, where a difference is measured by it."""


@dataclass(frozen=True)
class Trust:
    """How far a map can be believed; all are largest absolute differences, over the whole batch.

    row_sum_error: of a row's sum from 1 (from 0 for a query without keys). masked_weight: the weight on hidden keys,
    exactly 0. rebuild_error: of weights times values from the recorded output, relative to its largest value.
    dropout: the share of weights that was dropped while recording; a map then is what was meant, not what was used.
    """

    row_sum_error: float
    masked_weight: float
    rebuild_error: float
    dropout: float


def trust_of(call: AttentionCall, output: Float[Tensor, "B H Q W"]) -> Iterator[Trust]:
    """That of each block of rows."""
    size = max(largest(output), SMALLEST)
    for rows, of_rows in blocks(call):
        weights_BHQK = definition.weights(of_rows)
        rebuilt = definition.weighted(of_rows, weights_BHQK)
        recorded = output[:, :, rows].to(weights_BHQK.dtype)
        yield Trust(
            row_sum_error=_row_sum_error(of_rows, weights_BHQK),
            masked_weight=_masked_weight(of_rows, weights_BHQK),
            rebuild_error=largest(rebuilt - recorded) / size,
            dropout=call.dropout,
        )


def _row_sum_error(call: AttentionCall, weights_BHQK: Tensor) -> float:
    sums = weights_BHQK.sum(-1, keepdim=True)
    has_key = call.geometry.has_key
    expected = torch.ones_like(sums)
    if has_key is not None:
        expected = has_key.expand_as(sums).to(sums)
    return largest(sums - expected)


def _masked_weight(call: AttentionCall, weights_BHQK: Tensor) -> float:
    allowed = call.geometry.allowed
    return 0.0 if allowed is None else largest(weights_BHQK.masked_fill(allowed, 0.0))


def largest(x: Tensor) -> float:
    """The largest absolute number."""
    return float(x.abs().max()) if x.numel() else 0.0
