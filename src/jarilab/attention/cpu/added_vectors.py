"""What vectors by distance add to a block: one product with those that the block can see, and a shift by strides.

What lies farther behind than a table goes has the table's first vector, for every query alike. It is taken off all the
others, so that nothing is left to add there: scores may have one number more for all keys, which the softmax removes,
and values and queries are given it once, beforehand. A table of 33 vectors then costs a block some 160 keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from jarilab.attention.cpu.added import Added, Block, Group, Met, Opened
from jarilab.attention.cpu.bands import Fit
from jarilab.attention.definition import AttentionCall
from jarilab.attention.room import Room
from jarilab.core.shapes import Float
from jarilab.encodings.distance_forms import DistanceVectors, VectorTable


class Table:
    """VectorTable by distance as blocks want them.

    rows: in the attention's dtype, less the vector of what is far behind, if anything is: `far`. first: the distance of
    row 0. turned: distances are those of queries from keys, and rows the other way round.
    """

    def __init__(
        self, vectors: VectorTable, lowest: int, dtype: torch.dtype, *, turned: bool = False
    ):
        """lowest: the least distance between the places."""
        self.leaf, self.turned, count = vectors.rows, turned, vectors.rows.shape[1]
        self.nearest = vectors.first
        whole_HRE = vectors.rows.detach()
        self.far_H1E = whole_HRE[:, :1] if lowest < vectors.first else None
        rest_HRE = whole_HRE if self.far_H1E is None else whole_HRE - self.far_H1E
        self.rows_HRE = (rest_HRE.flip(1) if turned else rest_HRE).to(dtype).contiguous()
        self.first = 1 - vectors.first - count if turned else vectors.first

    def begin(self) -> None:
        self.d_rows_HRE = torch.zeros(self.rows_HRE.shape, dtype=wide(self.rows_HRE.dtype))

    def nearer(self, ahead: int) -> int:
        """The first key that is not far behind for all. ahead: the distance of key 0 from the first query."""
        return 0 if self.far_H1E is None else max(0, self.nearest - ahead + 1)

    def fit(self, lines: int, columns: int, ahead: int, seen: int | None = None) -> Fit:
        """ahead: the distance of the first column from the first line."""
        bare = self.far_H1E is not None and not self.turned
        table = self.first, self.rows_HRE.shape[1]
        return Fit.of((lines, columns), ahead, table, bare, seen)

    def of(self, group: Group, rows: slice) -> Float[Tensor, "N R E"]:
        """Those of some heads, for each row of the batch."""
        some_HRE = self.rows_HRE[:, rows]
        if len(some_HRE) == 1:
            return some_HRE.expand(group.shape[0] * group.shape[1], -1, -1)
        return group.for_each_row(some_HRE[group.heads])

    def take(self, group: Group, rows: slice, d_NQR: Tensor, x_NQE: Tensor) -> None:
        """The gradient of the rows, given that of `x @ rows`."""
        if len(self.rows_HRE) == 1:
            self.d_rows_HRE[0, rows] += d_NQR.flatten(0, 1).t() @ x_NQE.flatten(0, 1)
        else:
            d_NRE = torch.bmm(d_NQR.transpose(1, 2), x_NQE)
            self.d_rows_HRE[group.heads, rows] += group.split(d_NRE).sum(0)

    def gradient(self, d_far_H1E: Tensor | None) -> Tensor:
        """Of the vectors. d_far: that of the far one where it was added beforehand."""
        d_HRE = self.d_rows_HRE.flip(1) if self.turned else self.d_rows_HRE
        if self.far_H1E is not None:
            d_HRE[:, :1] -= d_HRE.sum(1, keepdim=True)
            if d_far_H1E is not None:
                d_HRE[:, :1] += d_far_H1E.sum_to_size(self.far_H1E.shape)
        return d_HRE.to(self.leaf.dtype)


class ByVectors(Added):
    """What an encoding says of itself in `distance_vectors`.

    ahead: how far the first key lies ahead of the first query. seen: no query looks at a key at a greater distance;
    None where that is not known.
    """

    def __init__(self, found: DistanceVectors, call: AttentionCall, ahead: int, seen: int | None):
        self.ahead, self.seen, self.scale, dtype = ahead, seen, call.scale, call.v.dtype
        self.dtype = dtype
        lowest = ahead - call.q.shape[2] + 1
        self.keys = Table(found.keys, lowest, dtype) if found.keys else None
        self.queries = Table(found.queries, lowest, dtype, turned=True) if found.queries else None
        self.values = Table(found.values, lowest, dtype) if found.values else None
        tables = self.keys, self.queries, self.values
        self.tables = [table for table in tables if table is not None]
        self.biases = found.content_bias, found.position_bias
        biases = [bias_HE for bias_HE in self.biases if bias_HE is not None]
        self.leaves = [*(table.leaf for table in self.tables), *biases]
        # What is added to queries where they meet the keys; and what takes those to the ones that meet vectors.
        self.content_H1E = _sum(found.content_bias, self.queries and self.queries.far_H1E)
        less = None if self.content_H1E is None else -self.content_H1E
        moved_H1E = _sum(found.position_bias, less)
        self.moved_H1E = None if moved_H1E is None else (self.scale * moved_H1E).to(dtype)
        self.size = call.q.shape[1], 1, call.q.shape[3]

    def to_queries(self, q: Tensor) -> Tensor:
        return q if self.content_H1E is None else q + self.content_H1E.to(q.dtype)

    def to_values(self, v: Tensor) -> Tensor:
        far = None if self.values is None else self.values.far_H1E
        return v if far is None else v + far.to(v.dtype)

    def begin(self) -> None:
        dtype = wide(self.dtype)
        self.d_content_H1E, self.d_position_H1E = (
            torch.zeros(self.size, dtype=dtype) for _ in range(2)
        )
        for table in self.tables:
            table.begin()

    def open(self, block: Block, q: Tensor, k: Tensor, room: Room, *, graph: bool) -> Opened:
        return VectorsOpened(self, block, room)

    def gradients(self, d_v: Float[Tensor, "B H K W"]) -> list[Tensor | None]:
        # What was given to queries and values beforehand; what was taken off all scores changes nothing.
        d_far = {self.queries: self.d_content_H1E, self.values: d_v.sum((0, 2)).unsqueeze(1)}
        found: list[Tensor | None] = [table.gradient(d_far.get(table)) for table in self.tables]
        of_biases = zip(self.biases, (self.d_content_H1E, self.d_position_H1E), strict=True)
        found += [d.squeeze(1).to(bias.dtype) for bias, d in of_biases if bias is not None]
        return found


class VectorsOpened(Opened):
    """Within one block."""

    def __init__(self, added: ByVectors, block: Block, room: Room):
        self.added, self.room = added, room
        self.rows, self.columns = block.size
        self.ahead = added.ahead + block.keys.start - block.rows.start
        keys, values = added.keys, added.values
        self.keys = keys and keys.fit(self.rows, self.columns, self.ahead, added.seen)
        # Of all distances: a query without any key has a gradient of 0, which numbers of others would spoil.
        self.values = values and values.fit(self.rows, self.columns, self.ahead)

    def add(self, met: Met, scores: Tensor) -> None:
        keys, queries = self.added.keys, self.added.queries
        if keys is not None and self.keys is not None:
            vectors_NRE = keys.of(met.group, self.keys.rows)
            self.keys.spread(self._product(self._moved(met), vectors_NRE), scores)
        if queries is not None:
            for some, fit in self._some_keys(queries):
                vectors_NRE = self.added.scale * queries.of(met.group, fit.rows)
                each_NKR = self._product(met.k[:, some], vectors_NRE)
                fit.spread(each_NKR, scores[..., some].transpose(1, 2))

    def take(self, met: Met, d_scores: Tensor, d_q: Tensor, d_k: Tensor) -> None:
        added, group = self.added, met.group
        keys, queries = added.keys, added.queries
        added.d_content_H1E[group.heads] += _summed(group, d_q, wide(added.dtype))
        if keys is not None and self.keys is not None:
            d_each_NQR = self.keys.gathered(d_scores, self.room)
            keys.take(group, self.keys.rows, d_each_NQR, self._moved(met))
            d_moved_NQE = added.scale * torch.bmm(d_each_NQR, keys.of(group, self.keys.rows))
            added.d_position_H1E[group.heads] += _summed(group, d_moved_NQE, wide(added.dtype))
            d_q += d_moved_NQE
        if queries is not None:
            for some, fit in self._some_keys(queries):
                d_each_NKR = fit.gathered(d_scores[..., some].transpose(1, 2), self.room)
                d_each_NKR = added.scale * d_each_NKR
                queries.take(group, fit.rows, d_each_NKR, met.k[:, some])
                d_k[:, some] += torch.bmm(d_each_NKR, queries.of(group, fit.rows))

    def output(self, group: Group, weights: Tensor) -> Tensor | None:
        values = self.added.values
        if values is None or self.values is None:
            return None
        each_NQR = self.values.gathered(weights, self.room)
        return torch.bmm(each_NQR, values.of(group, self.values.rows))

    def take_output(
        self, group: Group, weights: Tensor, d_output: Tensor, d_weights: Tensor
    ) -> None:
        values = self.added.values
        if values is None or self.values is None:
            return
        values.take(group, self.values.rows, self.values.gathered(weights, self.room), d_output)
        vectors_NRW = values.of(group, self.values.rows)
        self.values.spread(self._product(d_output, vectors_NRW), d_weights)

    def _moved(self, met: Met) -> Float[Tensor, "N Q E"]:
        """The queries that meet the vectors of keys, scaled."""
        moved_H1E = self.added.moved_H1E
        if moved_H1E is None:
            return met.q
        return (met.group.split(met.q) + moved_H1E[met.group.heads]).flatten(0, 1)

    def _some_keys(self, queries: Table) -> Iterator[tuple[slice, Fit]]:
        """Keys, as many at once as there are queries, but those that are far behind: so many distances lie between."""
        for start in range(queries.nearer(self.ahead), self.columns, self.rows):
            some = slice(start, min(start + self.rows, self.columns))
            yield some, queries.fit(some.stop - start, self.rows, -(self.ahead + start))

    def _product(self, x_NLE: Tensor, vectors_NRE: Tensor) -> Float[Tensor, "N L R"]:
        return self.room.product("distances", x_NLE, vectors_NRE.transpose(1, 2))


def _summed(group: Group, x_NQE: Tensor, dtype: torch.dtype) -> Float[Tensor, "H 1 E"]:
    """Of each head over the queries of all rows of the batch."""
    return group.split(x_NQE).sum((0, 2), dtype=dtype).unsqueeze(1)


def _sum(of_heads_HE: Tensor | None, far_H1E: Tensor | None) -> Float[Tensor, "H 1 E"] | None:
    """Of what is there."""
    if of_heads_HE is None:
        return far_H1E
    of_heads_H1E = of_heads_HE.detach().unsqueeze(1)
    return of_heads_H1E if far_H1E is None else of_heads_H1E + far_H1E


def wide(dtype: torch.dtype) -> torch.dtype:
    """For a sum of many parts, which bfloat16 would lose."""
    return torch.promote_types(dtype, torch.float32)
