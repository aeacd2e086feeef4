"""Numbers that say what a map shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from jari.shapes import Float, Tensor


def equal_tokens(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """All pairs of places that hold the same token."""
    return [(i, j) for i in range(len(tokens)) for j in range(i + 1, len(tokens)) if tokens[i] == tokens[j]]


def equal_row_difference(weights: Float[Tensor, "H Q K"], tokens: Sequence[str]) -> list[float] | None:
    """Per head, the largest absolute difference between the attention rows of queries that hold the same token;
    None where no token stands twice. Exactly 0 means that the head cannot tell them apart."""
    pairs = equal_tokens(tokens)
    if not pairs:
        return None
    first, second = (torch.tensor(side) for side in zip(*pairs, strict=True))
    return (weights[:, first] - weights[:, second]).abs().amax((1, 2)).tolist()


def normalised_entropy(weights: Float[Tensor, "*B K"], allowed: int) -> Float[Tensor, "*B"]:
    """Entropy of each row over its largest possible value, log of the number of allowed keys: 1 is uniform."""
    plogp = torch.where(weights > 0, weights * weights.clamp_min(1e-300).log(), 0.0)
    return -plogp.sum(-1) / math.log(allowed) if allowed > 1 else torch.zeros(weights.shape[:-1])


def jacobian_trace(weights: Float[Tensor, "*B K"]) -> Float[Tensor, "*B"]:
    """1 - sum of p^2: the trace of the softmax's Jacobian diag(p) - p p^T, 0 where it is saturated."""
    return 1 - weights.square().sum(-1)
