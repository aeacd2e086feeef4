"""Sums of encodings, and encodings of some of the position axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast, final

from torch import nn

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Side
from jarilab.encodings.distance_forms import AffineBias, DistanceVectors
from jarilab.positions.coordinates import Positions

MAX_AXES = 3
"""Axes of a caption and an image in one sequence: word, row and column."""


@final
class PartEncoding(Encoding):
    """An encoding of one part of the axes, such as the image of a captioned image.

    Tokens of other parts have no position for it. It makes the claims of the encoding that it wraps.
    """

    def __init__(self, encoding: Encoding, part: str):
        super().__init__(encoding.site)
        self.encoding, self.part = encoding, part
        # It selects its own axes from any number of them.
        self.axes = tuple(range(min(encoding.axes), MAX_AXES + 1))
        self.shift_invariant = encoding.shift_invariant
        self.causal_only, self.cross = encoding.causal_only, encoding.cross
        self.shared = encoding.shared
        self.integer_only, self.keeps_norms = encoding.integer_only, encoding.keeps_norms
        self.uses_order = encoding.uses_order
        self.random_in_training = encoding.random_in_training
        self.depends_on_length = encoding.depends_on_length
        self.scale_factor = encoding.scale_factor

    def share_parameters_with(self, first: Encoding) -> None:
        assert isinstance(first, PartEncoding)
        self.encoding.share_parameters_with(first.encoding)

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

    def extra_arguments(self, method: str) -> frozenset[str]:
        return self.encoding.extra_arguments(method)

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
        context: Mapping[str, Any],
    ) -> Float[Tensor, "B H Q K"] | None:
        return self.encoding.terms_for(q, k, relation, context)

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: Any
    ) -> Float[Tensor, "B H Q E"] | None:
        return self.encoding.values(weights, relation)

    def extra_repr(self) -> str:
        return f"part={self.part}"


@final
class Sum(Encoding):
    """Several encodings at once: what they add is summed, and rotations are applied one after another."""

    def __init__(self, parts: Sequence[Encoding]):
        super().__init__(parts[0].site)
        self.parts = nn.ModuleList(parts)
        common = set[int].intersection(*[set(part.axes) for part in parts])
        # All parts read the same positions.
        self.axes = tuple(sorted(common))
        # Terms compare the vectors of a relation with queries that another part rotates by their positions.
        rotates_terms = {"rotate", "terms"} <= self.hooks
        self.shift_invariant = all(part.shift_invariant for part in parts) and not rotates_terms
        self.causal_only = any(part.causal_only for part in parts)
        self.cross = all(part.cross for part in parts)
        self.integer_only = any(part.integer_only for part in parts)
        self.keeps_norms = all(part.keeps_norms for part in parts)
        self.uses_order = any(part.hooks and part.uses_order for part in parts)
        self.random_in_training = any(part.random_in_training for part in parts)
        self.depends_on_length = any(part.depends_on_length for part in parts)
        self.scale_factor = math.prod(part.scale_factor for part in parts)

    def _with_hook(self, hook: str) -> list[Encoding]:
        return [part for part in self._encodings() if hook in part.hooks]

    def _with_relations(self, relations: list[Any] | None) -> list[tuple[Encoding, Any]]:
        """Each part with its relation; empty if no hook uses relations."""
        if relations is None:
            return []
        return list(zip(self._encodings(), relations, strict=True))

    def _encodings(self) -> list[Encoding]:
        return cast("list[Encoding]", list(self.parts))

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset().union(*(part.hooks for part in self._encodings()))

    @property
    def max_positions(self) -> int | None:
        limits = [part.max_positions for part in self._encodings()]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def max_distance(self) -> int | None:
        limits = [part.max_distance for part in self._encodings()]
        return min((limit for limit in limits if limit is not None), default=None)

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        for part in self._with_hook("embed"):
            x = part.embed(x, pos)
        return x

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        for part in self._with_hook("inject"):
            x = part.inject(x, pos)
        return x

    def extra_arguments(self, method: str) -> frozenset[str]:
        return frozenset().union(*(part.extra_arguments(method) for part in self._encodings()))

    def rotation(self, pos: Positions) -> list[Any]:
        return self.rotation_for(pos, "query", pos)

    def rotation_for(self, pos: Positions, side: Side, keys: Positions) -> list[Any]:
        return [part.rotation_for(pos, side, keys) for part in self._with_hook("rotate")]

    def rotate(
        self, x: Float[Tensor, "B H L E"], rotation: list[Any] | None
    ) -> Float[Tensor, "B H L E"]:
        for part, part_rotation in zip(self._with_hook("rotate"), rotation or [], strict=True):
            x = part.rotate(x, part_rotation)
        return x

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"] | None:
        return _total([part.bias(q_pos, k_pos) for part in self._with_hook("bias")])

    def relation(self, q_pos: Positions, k_pos: Positions) -> list[Any]:
        return [part.relation(q_pos, k_pos) for part in self._encodings()]

    def key_states(self, x: Float[Tensor, "B K D"]) -> tuple[Float[Tensor, "B _ K _"], ...]:
        return sum((part.key_states(x) for part in self._encodings()), ())

    @property
    def n_states(self) -> int:
        return sum(part.n_states for part in self._encodings())

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Any
    ) -> Float[Tensor, "B H Q K"] | None:
        return self.terms_for(q, k, relation, {})

    def terms_for(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: list[Any] | None,
        context: Mapping[str, Any],
    ) -> Float[Tensor, "B H Q K"] | None:
        states = iter(context.get("state", ()))
        summands = []
        for part, part_relation in self._with_relations(relation):
            part_states = tuple(itertools.islice(states, part.n_states))
            part_context = {**context, "state": part_states}
            summands.append(part.terms_for(q, k, part_relation, part_context))
        return _total(summands)

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: list[Any] | None
    ) -> Float[Tensor, "B H Q E"] | None:
        parts = self._with_relations(relation)
        return _total([part.values(weights, part_relation) for part, part_relation in parts])

    def distance_vectors(self, first: int, last: int) -> DistanceVectors | None:
        """Those of the only part with terms or values; None if there are several."""
        # Several parts would add their biases to the queries of each other.
        parts = [part for part in self._encodings() if part.hooks & {"terms", "values"}]
        return parts[0].distance_vectors(first, last) if len(parts) == 1 else None

    def affine_bias(self, q_pos: Positions, first: int, last: int) -> AffineBias | None:
        """That of the only part with a bias; None if there are several."""
        parts = self._with_hook("bias")
        return parts[0].affine_bias(q_pos, first, last) if len(parts) == 1 else None


def _total(summands: Sequence[Tensor | None]) -> Tensor | None:
    total = None
    for summand in summands:
        if summand is not None:
            total = summand if total is None else total + summand
    return total
