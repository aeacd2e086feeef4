"""Several encodings at once, and an encoding for a part of the axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast, final

from torch import nn

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Side
from jarilab.encodings.by_distance import AffineBias, ByDistance
from jarilab.positions.coordinates import Positions

MOST_AXES = 3
"""Of a caption and an image in one sequence: the word's place, row and column."""


@final
class Of(Encoding):
    """An encoding for one part of the axes, the caption or the image of a sequence that has both; tokens of other
    parts have no place for it. Its claims are those of what it wraps."""

    def __init__(self, encoding: Encoding, part: str):
        super().__init__(encoding.site)
        self.encoding, self.part = encoding, part
        # Of any number of axes it takes its own.
        self.axes = tuple(range(min(encoding.axes), MOST_AXES + 1))
        self.shift_invariant = encoding.shift_invariant
        self.causal_only, self.cross = encoding.causal_only, encoding.cross
        self.shared = encoding.shared
        self.integer_only, self.keeps_norms = encoding.integer_only, encoding.keeps_norms
        self.hears_order = encoding.hears_order
        self.random_in_training = encoding.random_in_training
        self.length_decides = encoding.length_decides
        self.scale_factor = encoding.scale_factor

    def belong_to(self, first: Encoding) -> None:
        assert isinstance(first, Of)
        self.encoding.belong_to(first.encoding)

    @property
    def hooks(self) -> frozenset[str]:
        return self.encoding.hooks

    @property
    def max_positions(self) -> int | None:
        return self.encoding.max_positions

    @property
    def max_distance(self) -> int | None:
        return self.encoding.max_distance

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self.encoding.embed(x, pos.only(self.part)) if "embed" in self.hooks else x

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self.encoding.inject(x, pos.only(self.part)) if "inject" in self.hooks else x

    def asks(self, method: str) -> frozenset[str]:
        return self.encoding.asks(method)

    def rotation(self, pos: Positions) -> Any:
        return self.rotation_for(pos, "query", pos)

    def rotation_for(self, pos: Positions, side: Side, keys: Positions) -> Any:
        return self.encoding.rotation_for(pos.only(self.part), side, keys.only(self.part))

    def rotate(self, x: Float[Tensor, "B H L E"], rotation: Any) -> Float[Tensor, "B H L E"]:
        return self.encoding.rotate(x, rotation)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"] | None:
        return self.encoding.bias(q_pos.only(self.part), k_pos.only(self.part))

    def relation(self, q_pos: Positions, k_pos: Positions) -> Any:
        return self.encoding.relation(q_pos.only(self.part), k_pos.only(self.part))

    def remember(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B _ K _"]:
        return self.encoding.remember(x)

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Any
    ) -> Float[Tensor, "B H Q K"] | None:
        return self.terms_for(q, k, relation, {})

    def terms_for(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: Any,
        around: Mapping[str, Any],
    ) -> Float[Tensor, "B H Q K"] | None:
        return self.encoding.terms_for(q, k, relation, around)

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: Any
    ) -> Float[Tensor, "B H Q E"] | None:
        return self.encoding.values(weights, relation)

    def extra_repr(self) -> str:
        return f"part={self.part}"


@final
class Sum(Encoding):
    """Several encodings at once: what they add is added, rotations follow one another."""

    def __init__(self, parts: Sequence[Encoding]):
        super().__init__(parts[0].site)
        self.parts = nn.ModuleList(parts)
        # A sum claims what all of its parts do.
        common = set[int].intersection(*[set(part.axes) for part in parts])
        self.axes = tuple(sorted(common))
        # Terms compare the vectors of a relation with queries that another part has turned by their own places.
        turned = {"rotate", "terms"} <= self.hooks
        self.shift_invariant = all(part.shift_invariant for part in parts) and not turned
        self.causal_only = any(part.causal_only for part in parts)
        self.cross = all(part.cross for part in parts)
        self.integer_only = any(part.integer_only for part in parts)
        self.keeps_norms = all(part.keeps_norms for part in parts)
        self.hears_order = any(part.hooks and part.hears_order for part in parts)
        self.random_in_training = any(part.random_in_training for part in parts)
        self.length_decides = any(part.length_decides for part in parts)
        self.scale_factor = math.prod(part.scale_factor for part in parts)

    def _using(self, hook: str) -> list[Encoding]:
        return [part for part in self._encodings() if hook in part.hooks]

    def _with(self, relation: list[Any] | None) -> list[tuple[Encoding, Any]]:
        """Each part with its own relation; none of them where nothing uses relations."""
        return [] if relation is None else list(zip(self._encodings(), relation, strict=True))

    def _encodings(self) -> list[Encoding]:
        return cast("list[Encoding]", list(self.parts))

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset().union(*(part.hooks for part in self._encodings()))

    @property
    def max_positions(self) -> int | None:
        ends = [part.max_positions for part in self._encodings()]
        return min((end for end in ends if end is not None), default=None)

    @property
    def max_distance(self) -> int | None:
        ends = [part.max_distance for part in self._encodings()]
        return min((end for end in ends if end is not None), default=None)

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        for part in self._using("embed"):
            x = part.embed(x, pos)
        return x

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        for part in self._using("inject"):
            x = part.inject(x, pos)
        return x

    def asks(self, method: str) -> frozenset[str]:
        return frozenset().union(*(part.asks(method) for part in self._encodings()))

    def rotation(self, pos: Positions) -> list[Any]:
        return self.rotation_for(pos, "query", pos)

    def rotation_for(self, pos: Positions, side: Side, keys: Positions) -> list[Any]:
        return [part.rotation_for(pos, side, keys) for part in self._using("rotate")]

    def rotate(
        self, x: Float[Tensor, "B H L E"], rotation: list[Any] | None
    ) -> Float[Tensor, "B H L E"]:
        for part, prepared in zip(self._using("rotate"), rotation or [], strict=True):
            x = part.rotate(x, prepared)
        return x

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"] | None:
        return _total([part.bias(q_pos, k_pos) for part in self._using("bias")])

    def relation(self, q_pos: Positions, k_pos: Positions) -> list[Any]:
        return [part.relation(q_pos, k_pos) for part in self._encodings()]

    def remembered(self, x: Float[Tensor, "B K D"]) -> tuple[Float[Tensor, "B _ K _"], ...]:
        return sum((part.remembered(x) for part in self._encodings()), ())

    @property
    def states(self) -> int:
        return sum(part.states for part in self._encodings())

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Any
    ) -> Float[Tensor, "B H Q K"] | None:
        return self.terms_for(q, k, relation, {})

    def terms_for(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: list[Any] | None,
        around: Mapping[str, Any],
    ) -> Float[Tensor, "B H Q K"] | None:
        states = iter(around.get("state", ()))
        found = []
        for part, own in self._with(relation):
            own_states = tuple(itertools.islice(states, part.states))
            found.append(part.terms_for(q, k, own, {**around, "state": own_states}))
        return _total(found)

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: list[Any] | None
    ) -> Float[Tensor, "B H Q E"] | None:
        return _total([part.values(weights, own) for part, own in self._with(relation)])

    def by_distance(self, first: int, last: int) -> ByDistance | None:
        """That of the only part that has terms or values; several would meet queries with biases of their own."""
        parts = [part for part in self._encodings() if part.hooks & {"terms", "values"}]
        return parts[0].by_distance(first, last) if len(parts) == 1 else None

    def affine_bias(self, q_pos: Positions, first: int, last: int) -> AffineBias | None:
        """Those of the only part that has a bias."""
        parts = self._using("bias")
        return parts[0].affine_bias(q_pos, first, last) if len(parts) == 1 else None


def _total(summands: Sequence[Tensor | None]) -> Tensor | None:
    total = None
    for summand in summands:
        if summand is not None:
            total = summand if total is None else total + summand
    return total
