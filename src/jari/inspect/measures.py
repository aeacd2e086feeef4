"""Numbers that say what a map shows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jari.shapes import Float, Tensor


def equal_tokens(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """All pairs of places that hold the same token."""
    return [(i, j) for i in range(len(tokens)) for j in range(i + 1, len(tokens)) if tokens[i] == tokens[j]]


def row_difference(matrix: Float[Tensor, "*H R C"], first: Tensor | int, second: Tensor | int) -> Tensor:
    """Elementwise absolute differences between rows, at the resolution of float32.

    A matrix product leaves the last bit of equal rows different where they fall into different tiles of it. Computed in
    float64 and compared in float32, rows that are equal in theory are equal exactly. Two hidden scores are equal.
    """
    rows = matrix.float()
    return (rows[..., first, :] - rows[..., second, :]).nan_to_num(0.0).abs()


def equal_row_difference(weights: Float[Tensor, "H Q K"], tokens: Sequence[str]) -> list[float] | None:
    """Per head, the largest absolute difference between the attention rows of queries that hold the same token;
    None where no token stands twice. Exactly 0 means that the head cannot tell them apart."""
    pairs = equal_tokens(tokens)
    if not pairs:
        return None
    first, second = (torch.tensor(side) for side in zip(*pairs, strict=True))
    return row_difference(weights, first, second).amax((1, 2)).tolist()
