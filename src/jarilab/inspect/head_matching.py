"""How far maps are from each other, and which head of one model goes with which of another."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jarilab.errors import UserError
from jarilab.shapes import Float, Tensor


@torch.no_grad()
def divergence(p: Float[Tensor, "H Q K"], q: Float[Tensor, "G Q K"]) -> Float[Tensor, "H G"]:
    """Jensen-Shannon divergence, in nats, of each head of one map from each of another: 0 to ln 2, mean over queries.

    Queries without keys are left out; NaN where there are no others. Raises UserError for maps of different shapes.
    """
    if p.shape[1:] != q.shape[1:]:
        raise UserError(
            f"expected maps of the same queries and keys, got {tuple(p.shape[1:])} and {tuple(q.shape[1:])}; "
            "give both models the same input"
        )
    rows_Q = (p.sum((0, -1)) > 0) & (q.sum((0, -1)) > 0)
    p, q = p[:, rows_Q].double(), q[:, rows_Q].double()
    entropy_GQ = _entropy(q)
    of_heads = []
    for one_QK in p:  # one head against all of the other's at a time, to bound the memory
        apart_GQ = _entropy((one_QK + q) / 2) - (_entropy(one_QK) + entropy_GQ) / 2
        of_heads.append(apart_GQ.clamp_min(0).mean(-1))
    return torch.stack(of_heads)


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
        pairs = sorted((h, g) for g, h in turned.pairs)
        return Matching(pairs, turned.distance)
    cost = divergence.double().tolist()
    pairs = sorted((h, g) for g, h in enumerate(_assigned(cost)) if h is not None)
    total = sum(cost[h][g] for h, g in pairs)
    return Matching(pairs, total / max(1, len(pairs)))


def _assigned(cost: list[list[float]]) -> list[int | None]:
    """For each column the row it goes to, of at least as many columns as rows. Rows come one by one; each takes the
    cheapest path to a free column, and the prices keep what was assigned before optimal (Jonker & Volgenant 1987)."""
    columns = range(len(cost[0]) if cost else 0)
    row_of: list[int | None] = [None] * len(columns)
    price_of_row = [0.0] * len(cost)
    price = [0.0] * len(columns)
    for start in range(len(cost)):
        before = [-1] * len(columns)  # the column before each on the way, -1 for the start
        least = [float("inf")] * len(columns)
        done: set[int] = set()
        row, came, reach = start, -1, 0.0
        while True:
            for j in columns:
                step = reach + cost[row][j] - price_of_row[row] - price[j]
                if j not in done and step < least[j]:
                    least[j], before[j] = step, came
            column = min((j for j in columns if j not in done), key=least.__getitem__)
            reach = least[column]
            owner = row_of[column]
            if owner is None:
                break
            done.add(column)
            row, came = owner, column
        price_of_row[start] += reach
        for j in done:
            price_of_row[row_of[j] or 0] += reach - least[j]
            price[j] -= reach - least[j]
        while column >= 0:
            came = before[column]
            row_of[column] = start if came < 0 else row_of[came]
            column = came
    return row_of
