"""How far maps are from each other, and which head of one model goes with which of another."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor


@torch.no_grad()
def divergence(p: Float[Tensor, "H Q K"], q: Float[Tensor, "G Q K"]) -> Float[Tensor, "H G"]:
    """Jensen-Shannon divergence, in nats, of each head of one map from each of another: 0 to ln 2, mean over queries.

    Queries without keys are left out; NaN where there are no others. Raises UserError for maps of different shapes.
    """
    size_of_p, size_of_q = tuple(p.shape[1:]), tuple(q.shape[1:])
    if size_of_p != size_of_q:
        raise UserError(
            f"expected maps of the same queries and keys, got {size_of_p} and {size_of_q}; "
            "give both models the same input"
        )
    rows_Q = _with_keys(p) & _with_keys(q)
    p = p[:, rows_Q].double()
    q = q[:, rows_Q].double()
    entropy_GQ = _entropy(q)
    of_heads = []
    for one_QK in p:  # one head against all of the other's at a time, to bound the memory
        middle_GQ = _entropy((one_QK + q) / 2)
        mean_GQ = (_entropy(one_QK) + entropy_GQ) / 2
        apart_GQ = (middle_GQ - mean_GQ).clamp_min(0)
        of_heads.append(apart_GQ.mean(-1))
    return torch.stack(of_heads)


def _with_keys(weights: Float[Tensor, "H Q K"]) -> Bool[Tensor, " Q"]:
    return weights.sum((0, -1)) > 0


def _entropy(p: Float[Tensor, "*G Q K"]) -> Float[Tensor, "*G Q"]:
    return torch.special.entr(p).sum(-1)


@dataclass(frozen=True)
class Matching:
    """Which head of one model goes with which of another, and the mean divergence of the pairs."""

    pairs: list[tuple[int, int]]
    distance: float


def match_heads(divergence: Float[Tensor, "H G"]) -> Matching:
    """The pairs of heads with the least divergence in all; exact (scipy's `linear_sum_assignment`).

    A difference between models means something only beside that of two seeds of the same model.
    Of different numbers of heads, those left over stay alone. Raises UserError for NaN and infinity.
    """
    from scipy.optimize import linear_sum_assignment

    if not bool(divergence.isfinite().all()):
        raise UserError(
            "heads can be matched by finite divergences only; omit maps without any keys"
        )
    cost_HG = divergence.detach().double().cpu().numpy()
    heads, others = linear_sum_assignment(cost_HG)
    distance = cost_HG[heads, others].sum() / max(1, len(heads))
    pairs = zip(heads.tolist(), others.tolist(), strict=True)
    return Matching(list(pairs), float(distance))
