"""What an encoding adds to the scores of a block, and the gradient of that.

| of | is asked |
| --- | --- |
| the distance alone, places that follow each other | once for each distance, with the geometry; a block shifts it |
| anything else | the encoding's own hooks, for the queries of a block; in the backward pass again |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from jarilab.attention.call import AttentionCall
from jarilab.attention.flex import Line
from jarilab.encodings.skew import LONG, first_distance, skewed, unskewed
from jarilab.shapes import Float


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

    leaves: what it is made of beside queries and keys. whole: it needs the weights of all heads at once.
    """

    leaves: Sequence[Tensor] = ()
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


class ByHooks(Added):
    """What the encoding's hooks give for the queries of a block."""

    def __init__(self, call: AttentionCall):
        self.call = call
        self.encoding = call.geometry.encoding
        self.whole = "values" in self.encoding.hooks
        # Of the content of other keys, or of how many there are: then they have to be there.
        self.cuts = not self.encoding.asks("terms") and not self.encoding.length_decides
        owners = self.encoding.modules_read
        found = [each for owner in owners for each in owner.parameters() if each.requires_grad]
        self.leaves = list(dict.fromkeys([*found, *call.states]))

    def begin(self) -> None:
        self.d_leaves: list[Tensor | None] = [None] * len(self.leaves)

    def open(self, block: Block, q: Tensor, k: Tensor, *, graph: bool) -> Opened:
        keys = _at_least(LONG, block.keys, k.shape[2]) if self.cuts else slice(0, k.shape[2])
        # What was hidden of the keys is cut off what the hooks gave.
        seen = slice(block.keys.start - keys.start, block.keys.stop - keys.start)
        with torch.set_grad_enabled(graph):
            part_q = q[:, :, block.rows].detach().requires_grad_(graph)
            part_k = k[:, :, keys].detach().requires_grad_(graph)
            call = self._part(block.rows, keys, part_q, part_k)
            made_BHQK = self._scores(call)
            if made_BHQK is not None:
                made_BHQK = made_BHQK[..., seen]
        return HooksOpened(self, call, made_BHQK, block.rows, keys, seen)

    def _part(self, rows: slice, keys: slice, part_q: Tensor, part_k: Tensor) -> AttentionCall:
        whole = self.call.geometry
        q_pos = whole.q_pos.slice(rows.start, rows.stop)
        k_pos = (
            whole.k_pos
            if keys.stop - keys.start == whole.k_pos.length
            else whole.k_pos.slice(keys.start, keys.stop)
        )
        relation = None
        if self.encoding.hooks & {"terms", "values"}:
            relation = self.encoding.relation(q_pos, k_pos)
        geometry = replace(whole, q_pos=q_pos, k_pos=k_pos, relation=relation, lowered=None)
        if "allowed" in self.encoding.asks("terms"):
            geometry = replace(geometry, allowed=whole.written.allowed[..., rows, :])
        return replace(self.call, q=part_q, k=part_k, v=self.call.v[:, :, keys], geometry=geometry)

    def _scores(self, call: AttentionCall) -> Float[Tensor, "#B H Q K"] | None:
        terms = call.terms(lambda: call.q @ call.k.transpose(2, 3))
        bias = None
        if "bias" in self.encoding.hooks:
            bias = self.encoding.bias(call.geometry.q_pos, call.geometry.k_pos)
        if terms is None and bias is None:
            return None
        scaled = 0 if terms is None else call.scale * terms
        made = scaled if bias is None else scaled + bias
        made_BHQK = made.unsqueeze(0) if made.ndim == 3 else made
        return made_BHQK.to(call.q.dtype)

    def gradients(self) -> list[Tensor | None]:
        return self.d_leaves

    def give(self, found: Sequence[Tensor | None]) -> None:
        """Add gradients of the leaves."""
        for i, d in enumerate(found):
            if d is not None:
                held = self.d_leaves[i]
                self.d_leaves[i] = d if held is None else held + d


def _at_least(count: int, keys: slice, of_all: int) -> slice:
    """With the keys beside them, so that hooks see as many as they want for what they do with many."""
    start = max(0, min(keys.start, of_all - count))
    return slice(start, max(keys.stop, min(of_all, start + count)))


@dataclass
class HooksOpened(Opened):
    """added: whose hooks; call: of the block, as they were asked; made: what they gave for the scores; rows, keys:
    which they were asked for; seen: of those keys, the block's."""

    added: ByHooks
    call: AttentionCall
    made: Float[Tensor, "#B H Q K"] | None
    rows: slice
    keys: slice
    seen: slice
    d_made: Tensor | None = None

    def scores(self, group: Group) -> Tensor | None:
        if self.made is None:
            return None
        made = group.of(self.made.detach())
        return made.expand(*group.shape, -1, -1).flatten(0, 1)

    def take(self, group: Group, d_scores: Tensor) -> None:
        if self.made is None or not self.made.requires_grad:
            return
        if self.d_made is None:
            self.d_made = torch.zeros_like(self.made)
        d_group = group.split(d_scores)
        into = group.of(self.d_made)
        into += d_group.sum(0, keepdim=True) if len(into) < len(d_group) else d_group

    def output(self, weights: Tensor) -> Tensor | None:
        if not self.added.whole:
            return None
        # The hooks were asked for keys beside those of the block.
        beside = self.seen.start, self.call.k.shape[2] - self.seen.stop
        of_all = nn.functional.pad(weights, beside) if any(beside) else weights
        return self.added.encoding.values(of_all, self.call.geometry.relation)

    def d_weights(self, weights: Tensor, d_output: Tensor) -> Tensor | None:
        if not self.added.whole:
            return None
        with torch.enable_grad():
            leaf = weights.detach().requires_grad_()
            output = self.output(leaf)
        wanted = [leaf, *self.added.leaves]
        d_weights, *d_leaves = torch.autograd.grad(output, wanted, d_output, allow_unused=True)
        self.added.give(d_leaves)
        return d_weights

    def close(self, d_q: Tensor, d_k: Tensor) -> None:
        if self.made is None or self.d_made is None:
            return
        wanted = [self.call.q, self.call.k, *self.added.leaves]
        d_part_q, d_part_k, *d_leaves = torch.autograd.grad(
            self.made, wanted, self.d_made, allow_unused=True
        )
        if d_part_q is not None:
            d_q[:, :, self.rows] += d_part_q
        if d_part_k is not None:
            d_k[:, :, self.keys] += d_part_k
        self.added.give(d_leaves)


def added_by(call: AttentionCall) -> Added:
    """What the encoding of a call adds."""
    geometry = call.geometry
    line = None if geometry.lowered is None else geometry.lowered.line
    if line is not None:
        first = first_distance(geometry.q_pos, geometry.k_pos)
        if first is not None:
            return ByDistance(line, first)
    hooks = geometry.encoding.hooks
    return ByHooks(call) if hooks & {"bias", "terms", "values"} else Added()
