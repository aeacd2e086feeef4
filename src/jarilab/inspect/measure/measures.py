"""Measures of a head from its map, each with its value by chance, and the registry of measures."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar
from weakref import WeakKeyDictionary

import torch

from jarilab.core.errors import UserError
from jarilab.core.registry import Registry
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.measure.maps import Map, Scored, same_tokens, undefined
from jarilab.inspect.measure.score_fit import explained, numbered

CHANCE_DRAWS = 256  # random picks for the chance of the commonest offset
TIE_TOLERANCE = 1e-4  # weights that differ by less, relative to the larger, count as equal


# The measures --------------------------------------------------------------------------------------------------------

registry = Registry("measure", "jarilab.inspect.measure")


@registry.base
class Measure(ABC):
    """A number for each head, with its value by chance.

    The first paragraph of a subclass's docstring is the definition that pages show, `label` the name. range: its
    smallest and largest value, if bounded. needs_positions: whether it is undefined where the positions of queries
    among the keys are not known. Keyword-only arguments of the constructor are its options: `mine.py:Mine:within=2`.
    """

    label: ClassVar[str]
    range: ClassVar[tuple[float, float] | None] = None
    needs_positions: ClassVar[bool] = False

    @abstractmethod
    def value(self, map: Map) -> Float[Tensor, " H"]:
        """The number of each head; NaN where the map does not determine it."""

    def chance(self, map: Map) -> Float[Tensor, " H"]:
        """The value of each head by chance: by default that of equal weights on all allowed keys."""
        return self.value(map.even).expand(len(map.weights))

    def of(self, map: Map) -> Scored:
        """Value and chance for one map. Raises UserError unless both are one number a head."""
        value_H = self._checked(self.value(map), map)
        return Scored(value_H, self._checked(self.chance(map), map))

    def _checked(self, values: Tensor, map: Map) -> Float[Tensor, " H"]:
        if values.shape != (len(map.weights),):
            raise UserError(
                f"{type(self).__name__}: expected a number for each of {len(map.weights)} heads, got shape "
                f"{tuple(values.shape)}; reduce over queries and keys alone"
            )
        return values

    @property
    def about(self) -> str:
        """The definition, from the docstring."""
        return " ".join((inspect.getdoc(self) or "").partition("\n\n")[0].split())


MEASURES: dict[str, Measure] = {}
"""The measures of every page, tape and TensorBoard, by name and in their order; `add_measure` adds to them."""

M = TypeVar("M", bound=Measure)


def _measure(name: str) -> Callable[[type[M]], type[M]]:
    """Register a measure of the package."""

    def register(target: type[M]) -> type[M]:
        registry.register(name)(target)
        MEASURES[name] = target()
        return target

    return register


def measure_of(spec: str | Measure) -> tuple[str, Measure]:
    """The name and the measure for a spec such as `entropy` or `mine.py:Mine:within=2`, or for a measure.

    Raises UserError if there is none, and for a file that `trust_code` was not called for.
    """
    if isinstance(spec, Measure):
        return type(spec).__name__, spec
    named = registry.spec(spec)
    return str(named), named.build()


def add_measure(spec: str | Measure) -> None:
    """Add a measure to those of every page, tape and TensorBoard of this process.

    spec: such as `mine.py:Mine`, or a measure. Raises UserError as `measure_of` does.
    """
    name, measure = measure_of(spec)
    MEASURES[name] = measure


SHARE = (0.0, 1.0)


def mass(map: Map, target_QK: Bool[Tensor, "Q K"]) -> Float[Tensor, " H"]:
    """The weight on the target keys, mean over the queries that have one; NaN if none has."""
    target_QK = target_QK & map.allowed
    row_T, key_T = target_QK.nonzero().unbind(1)
    mass_HQ = map.weights.new_zeros(map.weights.shape[:2])
    mass_HQ.index_add_(1, row_T, map.weights[:, row_T, key_T])
    return _mean(mass_HQ, target_QK.any(-1))


def scored_mass(map: Map, target_QK: Bool[Tensor, "Q K"]) -> Scored:
    """`mass`, with that of equal weights on all allowed keys as chance."""
    return Scored(mass(map, target_QK), mass(map.even, target_QK).expand(len(map.weights)))


def _mean(values_HQ: Tensor, rows_Q: Tensor) -> Tensor:
    # NaN without rows.
    return values_HQ[:, rows_Q].mean(-1)


# How sharp -----------------------------------------------------------------------------------------------------------


@_measure("entropy")
class Entropy(Measure):
    """How evenly a query spreads its weight: entropy over its maximum, the logarithm of the number of allowed keys
    (Clark et al. 2019). Mean over queries with at least two keys.
    """

    label, range = "entropy", SHARE

    def value(self, map: Map) -> Tensor:
        largest_Q = map.count.clamp_min(2).to(map.weights.dtype).log()
        return _mean(map.entropy / largest_Q, map.count > 1)


@_measure("effective_keys")
class EffectiveKeys(Measure):
    """How many keys a query attends to in effect: the exponential of its entropy. Mean over queries."""

    label = "effective keys"

    def value(self, map: Map) -> Tensor:
        return _mean(map.entropy.exp(), map.count > 0)


@_measure("confidence")
class Confidence(Measure):
    """The largest weight of a query (Voita et al. 2019). Mean over queries."""

    label, range = "confidence", SHARE

    def value(self, map: Map) -> Tensor:
        return _mean(map.weights.amax(-1), map.count > 0)


# Where to ------------------------------------------------------------------------------------------------------------


@_measure("distance")
class Distance(Measure):
    """The weighted mean distance from a query to its keys. Mean over queries. In an image, the straight distance in
    patches, over tokens that have a position.
    """

    label = "distance"
    needs_positions = True

    def value(self, map: Map) -> Tensor:
        if not map.same:
            return undefined(map)
        away_QK = torch.cdist(map.q_at, map.k_at, compute_mode="donot_use_mm_for_euclid_dist")
        away_QK = away_QK.to(map.weights.dtype)
        if map.unplaced is None:
            away_HQ = torch.einsum("hqk,qk->hq", map.weights, away_QK)
            return _mean(away_HQ, map.count > 0)
        near_QK = map.allowed & ~map.unplaced
        smallest = torch.finfo(map.weights.dtype).tiny
        share_HQ = (map.weights * near_QK).sum(-1).clamp_min(smallest)
        near_away_QK = away_QK.masked_fill(~near_QK, 0.0)
        away_HQ = (map.weights * near_away_QK).sum(-1)
        return _mean(away_HQ / share_HQ, near_QK.any(-1))


@_measure("previous")
class Previous(Measure):
    """The weight on the token just before the query. Mean over queries that may attend to it."""

    label, range = "previous token", SHARE
    needs_positions = True

    def value(self, map: Map) -> Tensor:
        on_a_line = map.q_at.shape[-1] == 1  # the rows of an image end
        return mass(map, map.ahead == -1) if map.same and on_a_line else undefined(map)


@_measure("positional")
class Positional(Measure):
    """The share of queries whose largest weight is at the commonest offset (Voita et al. 2019), of queries with at
    least two keys. Chance: of keys picked at random.
    """

    label, range = "positional", SHARE
    needs_positions = True

    def value(self, map: Map) -> Tensor:
        _, share_H = _commonest(map)
        return share_H

    def chance(self, map: Map) -> Tensor:
        return map.weights.new_full((len(map.weights),), _luckiest(map))


@_measure("offset")
class Offset(Measure):
    """The offset, key minus query in tokens, at which most queries have their largest weight. -1 is the token just
    before. Not defined for images.
    """

    label = "commonest offset"
    needs_positions = True

    def value(self, map: Map) -> Tensor:
        if map.q_at.shape[-1] > 1:
            return undefined(map)
        offset_H, _ = _commonest(map)
        return offset_H

    def chance(self, map: Map) -> Tensor:
        return undefined(map)


_commonest_of: WeakKeyDictionary[Map, tuple[Tensor, Tensor]] = WeakKeyDictionary()
"""What `_commonest` returned; two measures ask for it."""


def _commonest(map: Map) -> tuple[Tensor, Tensor]:
    """Per head, the offset at which most queries that have a choice have their largest weight, and their share."""
    if map not in _commonest_of:
        _commonest_of[map] = _count_offsets(map)
    return _commonest_of[map]


def _count_offsets(map: Map) -> tuple[Tensor, Tensor]:
    rows_Q = map.count > 1
    if not bool(rows_Q.any()):
        return undefined(map), undefined(map)
    # Weights that are equal in theory differ in their last bits, by the number of threads too. A query with several
    # largest ones counts in parts.
    weights_HQK = map.weights[:, rows_Q].masked_fill(~map.allowed[rows_Q], -1.0)
    largest_HQK = weights_HQK >= weights_HQK.amax(-1, keepdim=True) * (1 - TIE_TOLERANCE)
    head_T, row_T, key_T = largest_HQK.nonzero().unbind(1)
    parts_HQ = largest_HQK.sum(-1).reciprocal()
    offsets, index_QK = numbered(map.offset[rows_Q])
    picked_HD = parts_HQ.new_zeros(len(parts_HQ), len(offsets))
    picked_HD.index_put_((head_T, index_QK[row_T, key_T]), parts_HQ[head_T, row_T], accumulate=True)
    shares_HD = picked_HD / int(rows_Q.sum())
    most_H = shares_HD.to(map.weights.dtype).amax(-1)
    is_most_HD = shares_HD >= most_H.unsqueeze(-1) * (1 - TIE_TOLERANCE)
    first_H = is_most_HD.int().argmax(-1)  # of several, the first in order
    return offsets[first_H].to(most_H.dtype), most_H


def _luckiest(map: Map) -> float:
    """The share of the commonest offset where every query picks an allowed key at random.

    Mean over draws from a fixed seed.
    """
    # Equal weights would give too small a chance: few queries share the commonest offset by luck alone.
    rows_Q = map.count > 1
    allowed_QK = map.allowed[rows_Q]
    count_Q1 = allowed_QK.sum(-1, keepdim=True)
    if not len(count_Q1):
        return float("nan")
    offsets, index_C = numbered(map.offset[rows_Q][allowed_QK])
    generator = torch.Generator().manual_seed(0)
    luck_QN = torch.rand(len(count_Q1), CHANCE_DRAWS, generator=generator)
    last_Q1 = count_Q1 - 1
    which_QN = (luck_QN * count_Q1).long().minimum(last_Q1)
    before_Q1 = count_Q1.cumsum(0) - count_Q1
    nth_QN = before_Q1 + which_QN
    index_NQ = index_C[nth_QN].t()
    ones_NQ = torch.ones_like(luck_QN).t()
    picked_ND = torch.zeros(CHANCE_DRAWS, len(offsets))
    picked_ND.scatter_add_(1, index_NQ, ones_NQ)
    commonest_N = picked_ND.amax(-1)
    return float(commonest_N.mean() / len(count_Q1))


@_measure("duplicate")
class Duplicate(Measure):
    """The weight on other places with the query's token. Mean over queries that may attend to one."""

    label, range = "duplicate token", SHARE
    needs_positions = True

    def value(self, map: Map) -> Tensor:
        elsewhere_QK = map.ahead != 0
        return mass(map, same_tokens(map) & elsewhere_QK) if map.same else undefined(map)


@_measure("induction")
class Induction(Measure):
    """The weight on tokens that followed an earlier occurrence of the query's token (Olsson et al. 2022). Mean over
    queries that have one.
    """

    label, range = "induction", SHARE
    needs_positions = True

    def value(self, map: Map) -> Tensor:
        return mass(map, after_earlier_copy(map)) if map.same else undefined(map)


@_measure("sink")
class Sink(Measure):
    """The weight on the first key (Gu et al. 2024). Mean over this key's query and all later ones."""

    label, range = "sink", SHARE
    needs_positions = True

    def value(self, map: Map) -> Tensor:
        first = first_key(map)
        if first is None:
            return undefined(map)
        rows_Q = map.count > 0
        if map.same:
            rows_Q = rows_Q & (map.ahead[:, first] <= 0)
        return _mean(map.weights[:, :, first], rows_Q)


def first_key(map: Map) -> int | None:
    """The index of the first key that any query may attend to; None without such a key."""
    attended_K = map.allowed.any(0)
    order_K = map.k_order.masked_fill(~attended_K, torch.iinfo(torch.int64).max)
    return int(order_K.argmin()) if bool(attended_K.any()) else None


@_measure("self")
class Self(Measure):
    """The weight on the query's own position. Mean over queries."""

    label, range = "itself", SHARE
    needs_positions = True

    def value(self, map: Map) -> Tensor:
        return mass(map, map.ahead == 0) if map.same else undefined(map)


def after_earlier_copy(map: Map, context: int = 1) -> Tensor:
    """True for keys just after an earlier occurrence of the query's token, or of its last `context` tokens."""
    before_QK = map.ahead < 0
    equal_QK = same_tokens(map)
    copy_QK = equal_QK
    for shift in range(1, context):
        shifted_QK = torch.zeros_like(equal_QK)
        shifted_QK[shift:, shift:] = equal_QK[:-shift, :-shift]
        copy_QK = copy_QK & shifted_QK
    earlier_QK = copy_QK & map.allowed & before_QK
    # A column for each order; keys of one order share it.
    orders, order_K = numbered(map.k_order)
    earlier_QO = earlier_QK.new_zeros(len(earlier_QK), len(orders) + 1, dtype=torch.int32)
    earlier_QO.index_add_(1, order_K, earlier_QK.int())
    before_K = torch.searchsorted(orders, map.k_order - 1)
    is_there_K = orders[before_K.clamp_max(len(orders) - 1)] == map.k_order - 1
    before_K = before_K.where(is_there_K, len(orders))  # the last column is empty
    return earlier_QO[:, before_K] > 0


# What explains the scores --------------------------------------------------------------------------------------------


class Explained(Measure):
    """R^2 of scores over allowed keys, fitted with a constant for each label of a pair."""

    range = SHARE

    @abstractmethod
    def labels(self, map: Map) -> Int[Tensor, "Q K"]:
        """The label of each pair of query and key."""

    def value(self, map: Map) -> Tensor:
        return self.of(map).value

    def of(self, map: Map) -> Scored:
        return explained(map, self.labels(map))


@_measure("offset_share")
class OffsetShare(Explained):
    """The share of the variance of a query's scores, before the softmax, that the offset alone explains (R^2). Chance:
    of random scores; it is large for few tokens.
    """

    label = "explained by offset"
    needs_positions = True

    def labels(self, map: Map) -> Tensor:
        return map.offset


@_measure("key_share")
class KeyShare(Explained):
    """The share of the variance of a query's scores, before the softmax, that the key alone explains (R^2). Chance: of
    random scores; it is large for few tokens.
    """

    label = "explained by key"

    def labels(self, map: Map) -> Tensor:
        return map.k_order.expand_as(map.ahead)
