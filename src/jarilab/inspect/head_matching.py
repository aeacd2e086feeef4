"""How far maps are from each other, and which head of one model goes with which of another."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.errors import UserError
from jarilab.shapes import Bool, Float, Tensor


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
    """The pairs of heads with the least divergence in all; exact (Hungarian method, by shortest augmenting paths).

    A difference between models means something only beside that of two seeds of the same model.
    Of different numbers of heads, those left over stay alone. Raises UserError for NaN and infinity.
    """
    if not bool(divergence.isfinite().all()):
        raise UserError(
            "heads can be matched by finite divergences only; leave maps without any keys out"
        )
    if divergence.shape[0] > divergence.shape[1]:
        turned = match_heads(divergence.t())
        pairs = [(h, g) for g, h in turned.pairs]
        return Matching(sorted(pairs), turned.distance)
    cost = divergence.double().tolist()
    assigned = enumerate(_assigned(cost))
    pairs = sorted((h, g) for g, h in assigned if h is not None)
    total = sum(cost[h][g] for h, g in pairs)
    return Matching(pairs, total / max(1, len(pairs)))


def _assigned(cost: list[list[float]]) -> list[int | None]:
    """For each column the row it goes to, of at least as many columns as rows. Rows come one by one; each takes the
    cheapest path to a free column, and the prices keep what was assigned before optimal (Jonker & Volgenant 1987)."""
    count = len(cost[0]) if cost else 0
    columns = range(count)
    row_of: list[int | None] = [None] * count
    price_of_row = [0.0] * len(cost)
    price = [0.0] * count
    for start in range(len(cost)):
        before = [-1] * count  # the column before each on the way, -1 for the start
        least = [float("inf")] * count
        done: set[int] = set()
        row, came, reach = start, -1, 0.0
        while True:
            free = [j for j in columns if j not in done]
            for j in free:
                step = reach + cost[row][j] - price_of_row[row] - price[j]
                if step < least[j]:
                    least[j] = step
                    before[j] = came
            column = min(free, key=least.__getitem__)
            reach = least[column]
            owner = row_of[column]
            if owner is None:
                break
            done.add(column)
            row, came = owner, column
        price_of_row[start] += reach
        for j in done:
            slack = reach - least[j]
            price_of_row[row_of[j] or 0] += slack
            price[j] -= slack
        while column >= 0:
            came = before[column]
            row_of[column] = start if came < 0 else row_of[came]
            column = came
    return row_of
