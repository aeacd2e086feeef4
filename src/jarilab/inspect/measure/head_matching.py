"""The divergence between maps, and the best pairing of the heads of two models."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor

MAX_CELLS = 2**20
"""Weights that are compared at a time."""


@torch.no_grad()
def divergence(p: Float[Tensor, "H Q K"], q: Float[Tensor, "G Q K"]) -> Float[Tensor, "H G"]:
    """Jensen-Shannon divergence between each head of two maps, in nats, 0 to ln 2; mean over queries.

    Queries without keys are left out; NaN if there are no others. Raises UserError for maps of different shapes.
    """
    p_shape, q_shape = tuple(p.shape[1:]), tuple(q.shape[1:])
    if p_shape != q_shape:
        raise UserError(
            f"expected maps of the same queries and keys, got {p_shape} and {q_shape}; "
            "give both models the same input"
        )
    rows_Q = (p.sum((0, -1)) > 0) & (q.sum((0, -1)) > 0)
    return divergence_of_rows(p[:, rows_Q], q[:, rows_Q]).mean(-1)


@torch.no_grad()
def divergence_of_rows(
    p: Float[Tensor, "H Q K"], q: Float[Tensor, "G Q K"]
) -> Float[Tensor, "H G Q"]:
    """Jensen-Shannon divergence between the rows of each head of two maps, in nats."""
    p, q = p.double(), q.double()
    # A few heads at a time, to bound the memory.
    heads = max(1, MAX_CELLS // max(1, q.numel()))
    parts = [row_divergence(part_HQK.unsqueeze(1), q) for part_HQK in p.split(heads)]
    return torch.cat(parts)


def row_divergence(
    p: Float[Tensor, "*#H Q K"], q: Float[Tensor, "*#H Q K"]
) -> Float[Tensor, "*H Q"]:
    """Jensen-Shannon divergence between the rows of two maps, in nats."""
    mean = (_entropy(p) + _entropy(q)) / 2
    return (_entropy((p + q) / 2) - mean).clamp_min(0)


def _entropy(p: Float[Tensor, "*G Q K"]) -> Float[Tensor, "*G Q"]:
    return torch.special.entr(p).sum(-1)


@dataclass(frozen=True)
class Matching:
    """Pairs of heads of two models, and the mean divergence of the pairs."""

    pairs: list[tuple[int, int]]
    distance: float


def match_heads(divergence: Float[Tensor, "H G"]) -> Matching:
    """The pairs of heads with the smallest total divergence, exact (scipy's `linear_sum_assignment`).

    Compare the result with that of two seeds of the same model. If one model has more heads, some stay without a pair.
    Raises UserError for NaN and infinity.
    """
    from scipy.optimize import linear_sum_assignment

    if not bool(divergence.isfinite().all()):
        raise UserError("expected finite divergences, got NaN or infinity; omit maps without keys")
    cost_HG = divergence.detach().double().cpu().numpy()
    heads, others = linear_sum_assignment(cost_HG)
    distance = cost_HG[heads, others].sum() / max(1, len(heads))
    pairs = zip(heads.tolist(), others.tolist(), strict=True)
    return Matching(list(pairs), float(distance))
