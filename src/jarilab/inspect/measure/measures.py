"""Numbers that say what a map shows, each beside what chance would give."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.measure.maps import Map, Scored

DRAWS = 256  # of random picks, for the chance of the commonest offset
RIDGE = 1e-9  # keeps a singular matrix solvable in float64; far above round-off, far below any figure shown
CONSTANT = 1e-12  # a variance over the mean square below this is the round-off of float32


def equal_tokens(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """All pairs of places that hold the same token."""
    pairs = itertools.combinations(range(len(tokens)), 2)
    return [(i, j) for i, j in pairs if tokens[i] == tokens[j]]


def row_difference(
    matrix: Float[Tensor, "*H R C"], first: Tensor | int, second: Tensor | int
) -> Tensor:
    """Elementwise absolute differences between rows, at the resolution of float32.

    A matrix product leaves the last bit of equal rows different where they fall into different tiles of it. Computed in
    float64 and compared in float32, rows that are equal in theory are equal exactly. Two hidden scores are equal.
    """
    rows = matrix.float()
    difference = rows[..., first, :] - rows[..., second, :]
    return difference.nan_to_num(0.0).abs()


def equal_row_difference(
    weights: Float[Tensor, "H Q K"], tokens: Sequence[str]
) -> list[float] | None:
    """Per head, the largest absolute difference between the attention rows of queries that hold the same token;
    None where no token stands twice. Exactly 0 means that the head cannot tell them apart."""
    pairs = equal_tokens(tokens)
    if not pairs:
        return None
    first_P, second_P = torch.tensor(pairs).unbind(1)
    difference_HPK = row_difference(weights, first_P, second_P)
    return difference_HPK.amax((1, 2)).tolist()


# The measures --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """One number a head. label: for people. about: its definition in one sentence. range: where it lies, if bounded."""

    name: str
    label: str
    about: str
    range: tuple[float, float] | None
    of: Callable[[Map], Scored]


Value = Callable[[Map], Tensor]


def beside_even(value: Value) -> Callable[[Map], Scored]:
    """Chance is the same measure of a head that looks at all allowed keys alike."""

    def of(map: Map) -> Scored:
        value_H = value(map)
        chance_H = value(map.even).expand_as(value_H)
        return Scored(value_H, chance_H)

    return of


def mass(target: Callable[[Map], Tensor]) -> Value:
    """The weight on the target keys `(Q, K)`, the mean over the queries that have one. NaN where none has."""

    def of(map: Map) -> Tensor:
        target_QK = target(map) & map.allowed
        mass_HQ = (map.weights * target_QK).sum(-1)
        return _mean(mass_HQ, target_QK.any(-1))

    return of


def undefined(map: Map) -> Float[Tensor, " H"]:
    """NaN for every head."""
    return map.weights.new_full((len(map.weights),), float("nan"))


def _mean(values_HQ: Tensor, rows_Q: Tensor) -> Tensor:
    """NaN where there are no rows."""
    return values_HQ[:, rows_Q].mean(-1)


def _within(value: Value) -> Value:
    """Of a sequence that looks at itself; between two sequences it means nothing."""
    return lambda map: value(map) if map.same else undefined(map)


# How sharp -----------------------------------------------------------------------------------------------------------


def _entropy(map: Map) -> Tensor:
    largest_Q = map.count.clamp_min(2).to(map.weights.dtype).log()
    entropy_HQ = torch.special.entr(map.weights).sum(-1)
    return _mean(entropy_HQ / largest_Q, map.count > 1)


def _effective_keys(map: Map) -> Tensor:
    entropy_HQ = torch.special.entr(map.weights).sum(-1)
    return _mean(entropy_HQ.exp(), map.count > 0)


def _confidence(map: Map) -> Tensor:
    return _mean(map.weights.amax(-1), map.count > 0)


# Where to ------------------------------------------------------------------------------------------------------------


def _distance(map: Map) -> Tensor:
    away_QK = torch.cdist(map.q_at, map.k_at, compute_mode="donot_use_mm_for_euclid_dist")
    away_QK = away_QK.to(map.weights.dtype)
    if map.apart is None:
        away_HQ = (map.weights * away_QK).sum(-1)
        return _mean(away_HQ, map.count > 0)
    near_QK = map.allowed & ~map.apart
    smallest = torch.finfo(map.weights.dtype).tiny
    share_HQ = (map.weights * near_QK).sum(-1).clamp_min(smallest)
    near_away_QK = away_QK.masked_fill(~near_QK, 0.0)
    away_HQ = (map.weights * near_away_QK).sum(-1)
    return _mean(away_HQ / share_HQ, near_QK.any(-1))


def _line(map: Map) -> Tensor:
    """True where tokens follow each other on a line; an image's rows end."""
    return torch.tensor(map.q_at.shape[-1] == 1).expand_as(map.ahead)


def _just_before(map: Map) -> Tensor:
    before_QK = map.ahead == -1
    return before_QK & _line(map)


def _sink(map: Map) -> Tensor:
    seen_K = map.allowed.any(0)
    if not bool(seen_K.any()):
        return undefined(map)
    never = torch.iinfo(torch.int64).max
    order_K = map.k_order.masked_fill(~seen_K, never)
    first = int(order_K.argmin())
    rows_Q = map.count > 0
    if map.same:
        rows_Q = rows_Q & (map.ahead[:, first] <= 0)
    return _mean(map.weights[:, :, first], rows_Q)


def _commonest(map: Map) -> tuple[Tensor, Tensor]:
    """Per head, the offset at which most queries that have a choice have their largest weight, and their share."""
    rows_Q = map.count > 1
    if not bool(rows_Q.any()):
        return undefined(map), undefined(map)
    # Weights that are equal in theory differ in their last bits; a query with several largest ones counts in parts.
    weights_HQK = map.weights[:, rows_Q].float()
    weights_HQK = weights_HQK.masked_fill(~map.allowed[rows_Q], -1.0)
    largest_HQK = weights_HQK == weights_HQK.amax(-1, keepdim=True)
    picks_HQK = largest_HQK / largest_HQK.sum(-1, keepdim=True)
    offsets, index_QK = map.offset[rows_Q].unique(return_inverse=True)
    picked_HD = picks_HQK.new_zeros(len(picks_HQK), len(offsets))
    picked_HD.index_add_(1, index_QK.flatten(), picks_HQK.flatten(1))
    shares_HD = picked_HD / int(rows_Q.sum())
    most_H, which_H = shares_HD.to(map.weights.dtype).max(-1)
    return offsets[which_H].to(most_H.dtype), most_H


def _positional(map: Map) -> Scored:
    _, value_H = _commonest(map)
    chance_H = torch.full_like(value_H, _luckiest(map))
    return Scored(value_H, chance_H)


def _luckiest(map: Map) -> float:
    """The share of the commonest offset where every query picks an allowed key at random.

    Not that of even weights: the commonest offset is chosen after the fact, so that of few queries it has a large share
    by luck alone. A mean over draws from a fixed seed.
    """
    rows_Q = map.count > 1
    allowed_QK = map.allowed[rows_Q]
    count_Q1 = allowed_QK.sum(-1, keepdim=True)
    if not len(count_Q1):
        return float("nan")
    offsets_C = map.offset[rows_Q][allowed_QK]
    offsets, index_C = offsets_C.unique(return_inverse=True)
    generator = torch.Generator().manual_seed(0)
    luck_QN = torch.rand(len(count_Q1), DRAWS, generator=generator)
    last_Q1 = count_Q1 - 1
    which_QN = (luck_QN * count_Q1).long().minimum(last_Q1)
    before_Q1 = count_Q1.cumsum(0) - count_Q1
    nth_QN = before_Q1 + which_QN
    index_NQ = index_C[nth_QN].t()
    ones_NQ = torch.ones_like(luck_QN).t()
    picked_ND = torch.zeros(DRAWS, len(offsets))
    picked_ND.scatter_add_(1, index_NQ, ones_NQ)
    commonest_N = picked_ND.amax(-1)
    return float(commonest_N.mean() / len(count_Q1))


def _offset(map: Map) -> Scored:
    on_a_line = map.q_at.shape[-1] == 1
    value_H = undefined(map)
    if on_a_line:
        value_H, _ = _commonest(map)
    chance_H = torch.full_like(value_H, float("nan"))
    return Scored(value_H, chance_H)


# Which tokens --------------------------------------------------------------------------------------------------------


def _equal(map: Map) -> Tensor:
    """Where a key holds the query's token."""
    names = {*map.queries, *map.keys}
    numbers = {name: number for number, name in enumerate(names)}
    token_Q = torch.tensor([numbers[name] for name in map.queries])
    token_K = torch.tensor([numbers[name] for name in map.keys])
    return token_Q.unsqueeze(-1) == token_K


def _equal_elsewhere(map: Map) -> Tensor:
    """Other places than the query's own that hold its token."""
    elsewhere_QK = map.ahead != 0
    return _equal(map) & elsewhere_QK


def _after_equal(map: Map) -> Tensor:
    """Keys just after an earlier place of the query's token."""
    before_QK = map.ahead < 0
    earlier_QK = _equal(map) & map.allowed & before_QK
    next_K1 = map.k_order.unsqueeze(-1) + 1
    follows_KK = next_K1 == map.k_order
    return earlier_QK.float() @ follows_KK.float() > 0


# What explains the scores --------------------------------------------------------------------------------------------


def _explained(map: Map, label_QK: Tensor) -> Scored:
    """R^2 of the scores over allowed keys by a free number for each label, with a constant for each query left aside:
    the softmax does not see it. Chance is what scores without any order would give: the numbers fitted over the scores
    that are free."""
    allowed_QK = map.allowed
    free = int(map.count.clamp_min(1).sub(1).sum())
    if not free:
        return Scored(undefined(map), undefined(map))
    scores_HQK = map.scores.double().masked_fill(~allowed_QK, 0.0)
    count_Q = map.count.clamp_min(1).double()
    means_HQ = scores_HQK.sum(-1) / count_Q
    centred_HQK = scores_HQK - means_HQ.unsqueeze(-1)
    centred_HC = centred_HQK[:, allowed_QK]
    total_H = centred_HC.square().sum(-1)
    size_H = scores_HQK.square().sum((-2, -1))

    labels, index_C = label_QK[allowed_QK].unique(return_inverse=True)
    row_C = allowed_QK.nonzero()[:, 0]
    often_QD = count_Q.new_zeros(len(count_Q), len(labels))
    often_QD.index_put_((row_C, index_C), count_Q.new_ones(()), accumulate=True)
    share_QD = often_QD / count_Q.unsqueeze(-1)
    linked_DD = share_QD.t() @ often_QD
    # Least squares with the queries' constants eliminated.
    often_D = often_QD.sum(0)
    normal_DD = torch.diag(often_D + RIDGE) - linked_DD
    sums_DH = centred_HC.new_zeros(len(labels), len(centred_HC))
    sums_DH.index_add_(0, index_C, centred_HC.t())
    factor_DD = torch.linalg.cholesky(normal_DD)
    fitted_DH = torch.cholesky_solve(sums_DH, factor_DD)
    explained_H = (fitted_DH * sums_DH).sum(0)
    value_H = (explained_H / total_H).clamp(0, 1)
    constant_H = total_H <= CONSTANT * size_H
    value_H = value_H.masked_fill(constant_H, float("nan"))
    fitted = len(labels) - _components(linked_DD > 0)
    chance = fitted / free
    if chance >= 1:  # places between the patches of an image: no two pairs lie the same way
        return Scored(undefined(map), undefined(map))
    return Scored(value_H, torch.full_like(value_H, chance))


def _components(linked_DD: Tensor) -> int:
    """Into how many groups links divide the labels. Only differences within a group can be fitted."""
    left_D = torch.ones(len(linked_DD), dtype=torch.bool)
    count = 0
    while bool(left_D.any()):
        first = int(left_D.int().argmax())
        reached_D = linked_DD[first]
        while not torch.equal(further_D := linked_DD[reached_D].any(0), reached_D):
            reached_D = further_D
        left_D = left_D & ~reached_D
        count += 1
    return count


# The table -----------------------------------------------------------------------------------------------------------

SHARE = (0.0, 1.0)

MEASURES = {
    measure.name: measure
    for measure in (
        Measure(
            "entropy",
            "entropy",
            "How evenly a query spreads its weight: entropy over its largest value, the logarithm of the number of "
            "keys it may look at (Clark et al. 2019); mean over queries with at least two keys.",
            SHARE,
            beside_even(_entropy),
        ),
        Measure(
            "effective_keys",
            "effective keys",
            "How many keys a query looks at in effect: the exponential of its entropy, mean over queries.",
            None,
            beside_even(_effective_keys),
        ),
        Measure(
            "confidence",
            "confidence",
            "The largest weight of a query, mean over queries (Voita et al. 2019).",
            SHARE,
            beside_even(_confidence),
        ),
        Measure(
            "distance",
            "distance",
            "The distance from a query's place to a key's, weighted; mean over queries. In an image, in patches, in "
            "a straight line, over what has a place.",
            None,
            beside_even(_within(_distance)),
        ),
        Measure(
            "previous",
            "previous token",
            "The weight on the token just before the query, mean over queries that may look at it.",
            SHARE,
            beside_even(_within(mass(_just_before))),
        ),
        Measure(
            "positional",
            "positional",
            "The share of queries whose largest weight is at the commonest offset (Voita et al. 2019); of queries with "
            "at least two keys. Chance: of keys picked at random.",
            SHARE,
            _positional,
        ),
        Measure(
            "offset",
            "commonest offset",
            "The place of the key minus that of the query, in tokens, at which most queries have their largest weight; "
            "-1 is the token just before. An image's is no single number.",
            None,
            _offset,
        ),
        Measure(
            "duplicate",
            "duplicate token",
            "The weight on other places that hold the query's token, mean over queries that may look at one.",
            SHARE,
            beside_even(_within(mass(_equal_elsewhere))),
        ),
        Measure(
            "induction",
            "induction",
            "The weight on tokens that followed an earlier place of the query's token, mean over queries that have one "
            "(Olsson et al. 2022).",
            SHARE,
            beside_even(_within(mass(_after_equal))),
        ),
        Measure(
            "sink",
            "sink",
            "The weight on the first key, mean over the queries from there on (Gu et al. 2024).",
            SHARE,
            beside_even(_sink),
        ),
        Measure(
            "self",
            "itself",
            "The weight on the query's own place, mean over queries.",
            SHARE,
            beside_even(_within(mass(lambda map: map.ahead == 0))),
        ),
        Measure(
            "offset_share",
            "explained by offset",
            "The share of the variance of a query's scores, before the softmax, that the offset between key and query "
            "explains by itself (R^2). Chance: of scores at random, which few tokens make large.",
            SHARE,
            lambda map: _explained(map, map.offset),
        ),
        Measure(
            "key_share",
            "explained by key",
            "The share of the variance of a query's scores, before the softmax, that the key explains by itself, "
            "whichever the query (R^2). Chance: of scores at random, which few tokens make large.",
            SHARE,
            lambda map: _explained(map, map.k_order.expand_as(map.ahead)),
        ),
    )
}


@torch.no_grad()
def measure(map: Map) -> dict[str, Scored]:
    """Every measure of `MEASURES`, in its order."""
    return {name: one.of(map) for name, one in MEASURES.items()}
