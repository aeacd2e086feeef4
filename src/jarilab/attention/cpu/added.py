"""What an encoding adds to the scores of a block, and the gradient of that.

| of | is asked |
| --- | --- |
| `bias` by distance alone, places that follow each other | once for each distance, with the geometry |
| `bias`, where `affine_bias` says what it is made of | that, for the queries of a block (`added_lines.py`) |
| `terms` and `values`, where `distance_vectors` does | vectors of all distances, once (`added_vectors.py`) |
| anything else | the encoding's own hooks, for the queries of a block; in the backward pass again (`added_hooks.py`) |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jarilab.attention.flex import DistanceBias
from jarilab.attention.room import Room
from jarilab.core.shapes import Float
from jarilab.encodings.base import Encoding
from jarilab.encodings.skew import skew, unskew


@dataclass(frozen=True)
class Block:
    """rows: the queries. keys: those that any of them may look at. part: those of the keys that not all may look at,
    counted from the first of `keys`."""

    rows: slice
    keys: slice
    part: slice

    @property
    def size(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.keys.stop - self.keys.start


@dataclass(frozen=True)
class Group:
    """All heads of some rows of a batch, or some heads of one row. count: of all heads."""

    batch: slice
    heads: slice
    count: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.batch.stop - self.batch.start, self.heads.stop - self.heads.start

    @property
    def numbers(self) -> slice:
        """Where they are where batch and heads are one axis."""
        first = self.batch.start * self.count + self.heads.start
        rows, heads = self.shape
        return slice(first, first + rows * heads)

    def split(self, x: Tensor) -> Tensor:
        """Of these heads: with an axis for the rows of the batch and one for the heads."""
        return x.view(*self.shape, *x.shape[1:])

    def for_each_row(self, of_heads: Tensor) -> Tensor:
        """What these heads have, once more for each row of the batch."""
        rows, _ = self.shape
        return of_heads if rows == 1 else of_heads.repeat(rows, 1, 1)

    def of(self, x: Tensor) -> Tensor:
        """Those of a tensor that rows of the batch, or heads, may share."""
        batch = self.batch if x.shape[0] > 1 else slice(None)
        heads = self.heads if x.shape[1] > 1 else slice(None)
        return x[batch, heads]


@dataclass(frozen=True)
class Met:
    """Queries, scaled, and keys of a block, of some heads."""

    group: Group
    q: Float[Tensor, "N Q E"]
    k: Float[Tensor, "N K E"]


class Opened:
    """What is added within one block: nothing, unless a subclass says so."""

    def scores(self, group: Group) -> Float[Tensor, "#N Q K"] | None:
        """What the scores of some heads begin with."""
        return None

    def add(self, met: Met, scores: Float[Tensor, "N Q K"]) -> None:
        """To the scores, in place, when queries and keys have met."""

    def take(
        self,
        met: Met,
        d_scores: Float[Tensor, "N Q K"],
        d_q: Float[Tensor, "N Q E"],
        d_k: Float[Tensor, "N K E"],
    ) -> None:
        """The gradient of the scores. d_q, d_k: those of queries, before the scale, and keys; what they get through
        what was added is added there."""

    def output(
        self, group: Group, weights: Float[Tensor, "N Q K"]
    ) -> Float[Tensor, "N Q W"] | None:
        """To the output."""
        return None

    def take_output(
        self,
        group: Group,
        weights: Float[Tensor, "N Q K"],
        d_output: Float[Tensor, "N Q W"],
        d_weights: Float[Tensor, "N Q K"],
    ) -> None:
        """The gradient of the output. d_weights: that of the weights, to which what they get through it is added."""

    def close(self, d_q: Float[Tensor, "B H Q E"], d_k: Float[Tensor, "B H K E"]) -> None:
        """After the last heads: add what queries and keys get through what was added."""


class Added:
    """What is added to one attention: nothing, unless a subclass says so.

    leaves: what it is made of beside queries and keys. by_hooks: it is made for all heads at once. whole: it needs the
    weights of all heads at once.
    """

    leaves: Sequence[Tensor] = ()
    by_hooks = False
    whole = False

    def begin(self) -> None:
        """Before a backward pass."""

    def to_queries(self, q: Float[Tensor, "B H Q E"]) -> Tensor:
        """What meets the keys, before the scale: its gradient is that of q."""
        return q

    def to_values(self, v: Float[Tensor, "B H K W"]) -> Tensor:
        """What is summed: its gradient is that of v."""
        return v

    def open(self, block: Block, q: Tensor, k: Tensor, room: Room, *, graph: bool) -> Opened:
        """For one block. graph: gradients will be asked for."""
        return Opened()

    def gradients(self, d_v: Float[Tensor, "B H K W"]) -> list[Tensor | None]:
        """Of the leaves, after all blocks. d_v: of the values."""
        return []


class ByLine(Added):
    """A number for each head and distance."""

    def __init__(self, line: DistanceBias, first_distance: int):
        self.line = line
        self.leaves = (line.values,)
        self.between = first_distance - line.first

    def begin(self) -> None:
        values = self.line.values
        self.d_values = torch.zeros_like(values) if values.requires_grad else None

    def open(self, block: Block, q: Tensor, k: Tensor, room: Room, *, graph: bool) -> Opened:
        rows, keys = block.size
        first = self.between + block.keys.start - block.rows.stop + 1
        distances = slice(first, first + rows + keys - 1)
        values = self.line.values.detach()[:, distances].to(q.dtype)
        d_values = self.d_values[:, distances] if graph and self.d_values is not None else None
        return LineOpened(values, d_values, rows, keys)

    def gradients(self, d_v: Tensor) -> list[Tensor | None]:
        return [self.d_values]


@dataclass
class LineOpened(Opened):
    """values: at the distances of a block. d_values: where their gradients are summed, None where nobody wants them."""

    values: Float[Tensor, "H R"]
    d_values: Float[Tensor, "H R"] | None
    rows: int
    keys: int

    def scores(self, group: Group) -> Tensor | None:
        values_HQR = self.values[group.heads].unsqueeze(1).expand(-1, self.rows, -1)
        return group.for_each_row(skew(values_HQR, self.keys))

    def take(self, met: Met, d_scores: Tensor, d_q: Tensor, d_k: Tensor) -> None:
        if self.d_values is not None:
            group = met.group
            d_values_NR = unskew(d_scores).sum(1, dtype=self.d_values.dtype)
            self.d_values[group.heads] += group.split(d_values_NR).sum(0)


class Together(Added):
    """What several add."""

    def __init__(self, parts: Sequence[Added]):
        self.parts = parts
        self.leaves = [leaf for part in parts for leaf in part.leaves]
        self.by_hooks = any(part.by_hooks for part in parts)
        self.whole = any(part.whole for part in parts)

    def begin(self) -> None:
        for part in self.parts:
            part.begin()

    def to_queries(self, q: Tensor) -> Tensor:
        met_BHQE = q
        for part in self.parts:
            met_BHQE = part.to_queries(met_BHQE)
        return met_BHQE

    def to_values(self, v: Tensor) -> Tensor:
        summed_BHKW = v
        for part in self.parts:
            summed_BHKW = part.to_values(summed_BHKW)
        return summed_BHKW

    def open(self, block: Block, q: Tensor, k: Tensor, room: Room, *, graph: bool) -> Opened:
        return TogetherOpened([part.open(block, q, k, room, graph=graph) for part in self.parts])

    def gradients(self, d_v: Tensor) -> list[Tensor | None]:
        return [d for part in self.parts for d in part.gradients(d_v)]


@dataclass
class TogetherOpened(Opened):
    """parts: of each."""

    parts: Sequence[Opened]

    def scores(self, group: Group) -> Tensor | None:
        return _total([part.scores(group) for part in self.parts])

    def add(self, met: Met, scores: Tensor) -> None:
        for part in self.parts:
            part.add(met, scores)

    def take(self, met: Met, d_scores: Tensor, d_q: Tensor, d_k: Tensor) -> None:
        for part in self.parts:
            part.take(met, d_scores, d_q, d_k)

    def output(self, group: Group, weights: Tensor) -> Tensor | None:
        return _total([part.output(group, weights) for part in self.parts])

    def take_output(
        self, group: Group, weights: Tensor, d_output: Tensor, d_weights: Tensor
    ) -> None:
        for part in self.parts:
            part.take_output(group, weights, d_output, d_weights)

    def close(self, d_q: Tensor, d_k: Tensor) -> None:
        for part in self.parts:
            part.close(d_q, d_k)


def _total(found: Sequence[Tensor | None]) -> Tensor | None:
    there = [each for each in found if each is not None]
    return sum(there[1:], there[0]) if there else None


def together(held: Sequence[Tensor | None], found: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of the same leaves, summed where there are any."""
    return [_total(both) for both in zip(held, found, strict=True)]


def parameters_read(encoding: Encoding) -> list[Tensor]:
    """Its own and those of other layers, each once, without those that are not trained."""
    found = [each for owner in encoding.parameter_modules for each in owner.parameters()]
    return list(dict.fromkeys(each for each in found if each.requires_grad))
