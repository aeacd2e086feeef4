"""The share of the variance of scores that a label of each pair of query and key explains."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch

from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.measure.maps import Map, Scored, undefined

RIDGE = 1e-9  # makes a singular matrix solvable in float64; far below the figures that are shown


def explained(map: Map, label_QK: Tensor) -> Scored:
    """R^2 of the scores, fitted with a constant for each label, after subtracting the mean of each query.

    Chance is the value for random scores: fitted constants per free score.
    """
    free = int(map.count.clamp_min(1).sub(1).sum())
    if not free:
        return Scored(undefined(map), undefined(map))
    design = _design_of(map, label_QK)
    chance = design.fitted / free
    if chance >= 1:  # no two pairs have the same label, as between patches of different grids
        return Scored(undefined(map), undefined(map))
    centred_HC = map.centred_scores
    sums_HD = centred_HC.new_zeros(len(centred_HC), len(design.factor))
    sums_HD.index_add_(1, design.index, centred_HC)
    fitted_DH = torch.cholesky_solve(sums_HD.t(), design.factor)
    explained_H = (fitted_DH.t() * sums_HD).sum(-1)
    value_H = (explained_H / centred_HC.square().sum(-1)).clamp(0, 1)  # NaN for constant scores
    return Scored(value_H, torch.full_like(value_H, chance))


@dataclass(frozen=True, eq=False)
class _Design:
    """The part of a fit that depends on the labels of the allowed pairs alone.

    index: the label of each allowed pair. factor: the Cholesky factor of the normal equations. fitted: the
    constants that the scores determine.
    """

    allowed: Bool[Tensor, "Q K"]
    labels: Int[Tensor, "Q K"]
    index: Int[Tensor, " C"]
    factor: Float[Tensor, "D D"]
    fitted: int


_designs: deque[_Design] = deque(maxlen=4)
"""The last ones: most sites of a model have the same mask and the same labels."""


def _design_of(map: Map, label_QK: Tensor) -> _Design:
    from scipy.sparse.csgraph import connected_components

    for design in _designs:
        if torch.equal(design.allowed, map.allowed) and torch.equal(design.labels, label_QK):
            return design
    count_Q = map.count.clamp_min(1).double()
    labels, index_C = numbered(label_QK[map.allowed])
    count_QD = count_Q.new_zeros(len(count_Q), len(labels))
    count_QD.index_put_((map.row_of_pair, index_C), count_Q.new_ones(()), accumulate=True)
    share_QD = count_QD / count_Q.unsqueeze(-1)
    linked_DD = share_QD.t() @ count_QD
    # Least squares with the queries' constants eliminated.
    normal_DD = torch.diag(count_QD.sum(0) + RIDGE) - linked_DD
    factor_DD = torch.linalg.cholesky(normal_DD)
    # Only differences within a connected group of labels can be fitted.
    groups = connected_components((linked_DD > 0).numpy(), directed=False, return_labels=False)
    fitted = len(labels) - groups
    design = _Design(map.allowed, label_QK, index_C, factor_DD, fitted)
    _designs.append(design)
    return design


def numbered(labels: Int[Tensor, " *shape"]) -> tuple[Int[Tensor, " D"], Int[Tensor, " *shape"]]:
    """As `unique` with its inverse, without sorting where labels lie close together."""
    low, high = int(labels.min()), int(labels.max())
    if high - low > 4 * labels.numel():
        return labels.unique(return_inverse=True)
    from_low = labels - low
    is_there_L = torch.bincount(from_low.flatten(), minlength=high - low + 1) > 0
    number_L = is_there_L.cumsum(0) - 1
    return is_there_L.nonzero()[:, 0] + low, number_L[from_low]
