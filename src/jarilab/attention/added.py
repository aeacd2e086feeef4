"""What an encoding adds to the scores of a block, and the gradient of that.

| of | is asked |
| --- | --- |
| the distance alone, places that follow each other | once for each distance, with the geometry; a block shifts it |
| anything else | the encoding's own hooks, for the queries of a block; in the backward pass again (`added_hooks.py`) |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jarilab.attention.flex import Line
from jarilab.shapes import Float
from jarilab.skew import skewed, unskewed


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

    def of(self, x: Tensor) -> Tensor:
        """Those of a tensor that rows of the batch, or heads, may share."""
        batch = self.batch if x.shape[0] > 1 else slice(None)
        heads = self.heads if x.shape[1] > 1 else slice(None)
        return x[batch, heads]


class Opened:
    """What is added within one block: nothing, unless a subclass says so."""

    def scores(self, group: Group) -> Float[Tensor, "#N Q K"] | None:
        """To the scores of some heads."""
        return None

    def output(self, weights: Float[Tensor, "B H Q K"]) -> Float[Tensor, "B H Q W"] | None:
        """To the output of all heads."""
        return None

    def d_weights(
        self, weights: Float[Tensor, "B H Q K"], d_output: Float[Tensor, "B H Q W"]
    ) -> Float[Tensor, "B H Q K"] | None:
        """The gradient that the weights get through `output`."""
        return None

    def take(self, group: Group, d_scores: Float[Tensor, "N Q K"]) -> None:
        """The gradient of the scores of some heads."""

    def close(self, d_q: Float[Tensor, "B H Q E"], d_k: Float[Tensor, "B H K E"]) -> None:
        """After the last of them: add what queries and keys get through what was added."""


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

    def open(self, block: Block, q: Tensor, k: Tensor, *, graph: bool) -> Opened:
        """For one block. graph: gradients will be asked for."""
        return Opened()

    def gradients(self) -> list[Tensor | None]:
        """Of the leaves, after all blocks."""
        return []


class ByDistance(Added):
    """A number for each head and distance."""

    def __init__(self, line: Line, first_distance: int):
        self.line = line
        self.leaves = (line.values,)
        self.between = first_distance - line.first

    def begin(self) -> None:
        values = self.line.values
        self.d_values = torch.zeros_like(values) if values.requires_grad else None

    def open(self, block: Block, q: Tensor, k: Tensor, *, graph: bool) -> Opened:
        rows, keys = block.size
        first = self.between + block.keys.start - block.rows.stop + 1
        distances = slice(first, first + rows + keys - 1)
        values = self.line.values.detach()[:, distances].to(q.dtype)
        d_values = self.d_values[:, distances] if graph and self.d_values is not None else None
        return DistancesOpened(values, d_values, rows, keys)

    def gradients(self) -> list[Tensor | None]:
        return [self.d_values]


@dataclass
class DistancesOpened(Opened):
    """values: at the distances of a block. d_values: where their gradients are summed, None where nobody wants them."""

    values: Float[Tensor, "H R"]
    d_values: Float[Tensor, "H R"] | None
    rows: int
    keys: int

    def scores(self, group: Group) -> Tensor | None:
        values_HQR = self.values[group.heads].unsqueeze(1).expand(-1, self.rows, -1)
        return skewed(values_HQR, self.keys).repeat(group.shape[0], 1, 1)

    def take(self, group: Group, d_scores: Tensor) -> None:
        if self.d_values is not None:
            d_values_NR = unskewed(d_scores).sum(1, dtype=self.d_values.dtype)
            self.d_values[group.heads] += group.split(d_values_NR).sum(0)
