"""Score terms given in closed form by distance: `distance_vectors` and `affine_bias` of an encoding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from jarilab.attention.cpu.bands import DistanceBand
from jarilab.attention.cpu.score_terms import (
    Block,
    BlockScores,
    BlockTerm,
    HeadGroup,
    ScoreTerm,
    ScratchBuffers,
    add_gradients,
    trainable_parameters,
)
from jarilab.attention.definition import AttentionCall
from jarilab.core.shapes import Float
from jarilab.encodings.distance_forms import AffineBias, DistanceVectors, VectorTable


class ShiftedTable:
    """Vectors by distance, in the dtype of the attention, relative to the vector of far distances.

    All distances before the table have its first vector.
    table: the vectors. lowest: the smallest distance that occurs. reverse: index by the distance of queries from keys.
    """

    def __init__(
        self, table: VectorTable, lowest: int, dtype: torch.dtype, *, reverse: bool = False
    ):
        self.leaf, self.reverse, count = table.rows, reverse, table.rows.shape[1]
        self.first_distance = table.first
        rows_HRE = table.rows.detach()
        # Subtracted from all rows, so that far keys need no work: a table of 33 vectors costs a block about 160 keys.
        # Queries and values get the vector added once, beforehand. In scores it is a constant, which the softmax
        # ignores.
        self.far_H1E = rows_HRE[:, :1] if lowest < table.first else None
        shifted_HRE = rows_HRE if self.far_H1E is None else rows_HRE - self.far_H1E
        self.rows_HRE = (shifted_HRE.flip(1) if reverse else shifted_HRE).to(dtype).contiguous()
        self.first = 1 - table.first - count if reverse else table.first

    def begin_backward(self) -> None:
        self.d_rows_HRE = torch.zeros(
            self.rows_HRE.shape, dtype=accumulation_dtype(self.rows_HRE.dtype)
        )

    def first_near_key(self, ahead: int) -> int:
        """The first key that is near some query. ahead: distance of key 0 from the first query."""
        return 0 if self.far_H1E is None else max(0, self.first_distance - ahead + 1)

    def band(
        self, lines: int, columns: int, ahead: int, max_distance: int | None = None
    ) -> DistanceBand:
        """The band of a block. ahead: distance of the first column from the first line."""
        far_is_zero = self.far_H1E is not None and not self.reverse
        table = self.first, self.rows_HRE.shape[1]
        return DistanceBand.of_table((lines, columns), ahead, table, far_is_zero, max_distance)

    def select(self, group: HeadGroup, rows: slice) -> Float[Tensor, "N R E"]:
        """Some rows of the heads in `group`, for each row of the batch."""
        rows_HRE = self.rows_HRE[:, rows]
        if len(rows_HRE) == 1:
            return rows_HRE.expand(group.shape[0] * group.shape[1], -1, -1)
        return group.repeat_for_rows(rows_HRE[group.heads])

    def backward(self, group: HeadGroup, rows: slice, d_NQR: Tensor, x_NQE: Tensor) -> None:
        """Add the gradient of some rows. d_NQR: gradient of `x_NQE @ rows.T`."""
        if len(self.rows_HRE) == 1:
            self.d_rows_HRE[0, rows] += d_NQR.flatten(0, 1).t() @ x_NQE.flatten(0, 1)
        else:
            d_NRE = torch.bmm(d_NQR.transpose(1, 2), x_NQE)
            self.d_rows_HRE[group.heads, rows] += group.split(d_NRE).sum(0)

    def gradient(self, d_far_H1E: Tensor | None) -> Tensor:
        """Gradient of the table. d_far_H1E: of the far vector that was added to queries or values."""
        d_HRE = self.d_rows_HRE.flip(1) if self.reverse else self.d_rows_HRE
        if self.far_H1E is not None:
            # The far vector was subtracted from every row.
            d_HRE[:, :1] -= d_HRE.sum(1, keepdim=True)
            if d_far_H1E is not None:
                d_HRE[:, :1] += d_far_H1E.sum_to_size(self.far_H1E.shape)
        return d_HRE.to(self.leaf.dtype)


class VectorTerm(ScoreTerm):
    """The `distance_vectors` of an encoding.

    ahead: distance of the first key from the first query. max_distance: larger distances are not visible; None if
    unknown.
    """

    def __init__(
        self, vectors: DistanceVectors, call: AttentionCall, ahead: int, max_distance: int | None
    ):
        self.ahead, self.max_distance, self.scale = ahead, max_distance, call.scale
        self.dtype = dtype = call.v.dtype
        lowest = ahead - call.q.shape[2] + 1
        self.keys = ShiftedTable(vectors.keys, lowest, dtype) if vectors.keys else None
        self.queries = (
            ShiftedTable(vectors.queries, lowest, dtype, reverse=True) if vectors.queries else None
        )
        self.values = ShiftedTable(vectors.values, lowest, dtype) if vectors.values else None
        tables = self.keys, self.queries, self.values
        self.tables = [table for table in tables if table is not None]
        self.biases = vectors.content_bias, vectors.position_bias
        biases = [bias_HE for bias_HE in self.biases if bias_HE is not None]
        self.leaves = [*(table.leaf for table in self.tables), *biases]
        # Added to the queries that are multiplied with keys, and from these to those that are multiplied with vectors.
        self.content_H1E = _sum(vectors.content_bias, self.queries and self.queries.far_H1E)
        negative_H1E = None if self.content_H1E is None else -self.content_H1E
        shift_H1E = _sum(vectors.position_bias, negative_H1E)
        self.shift_H1E = None if shift_H1E is None else (self.scale * shift_H1E).to(dtype)
        self.size = call.q.shape[1], 1, call.q.shape[3]

    def shift_queries(self, q: Tensor) -> Tensor:
        return q if self.content_H1E is None else q + self.content_H1E.to(q.dtype)

    def shift_values(self, v: Tensor) -> Tensor:
        far = None if self.values is None else self.values.far_H1E
        return v if far is None else v + far.to(v.dtype)

    def begin_backward(self) -> None:
        dtype = accumulation_dtype(self.dtype)
        self.d_content_H1E, self.d_position_H1E = (
            torch.zeros(self.size, dtype=dtype) for _ in range(2)
        )
        for table in self.tables:
            table.begin_backward()

    def block_term(
        self, block: Block, q: Tensor, k: Tensor, buffers: ScratchBuffers, *, needs_grad: bool
    ) -> BlockTerm:
        return VectorBlock(self, block, buffers)

    def gradients(self, d_v: Float[Tensor, "B H K W"]) -> list[Tensor | None]:
        # Far vectors were added to queries and values. The constant taken from the scores changes nothing.
        d_far = {self.queries: self.d_content_H1E, self.values: d_v.sum((0, 2)).unsqueeze(1)}
        gradients: list[Tensor | None] = [table.gradient(d_far.get(table)) for table in self.tables]
        biases = zip(self.biases, (self.d_content_H1E, self.d_position_H1E), strict=True)
        gradients += [d.squeeze(1).to(bias.dtype) for bias, d in biases if bias is not None]
        return gradients


class VectorBlock(BlockTerm):
    """A `VectorTerm` within one block."""

    def __init__(self, term: VectorTerm, block: Block, buffers: ScratchBuffers):
        self.term, self.buffers = term, buffers
        self.rows, self.columns = block.size
        self.ahead = term.ahead + block.keys.start - block.rows.start
        keys, values = term.keys, term.values
        self.keys = keys and keys.band(self.rows, self.columns, self.ahead, term.max_distance)
        # Of all distances: a query without any key has a gradient of 0, which undefined entries would change.
        self.values = values and values.band(self.rows, self.columns, self.ahead)

    def add_to_scores(self, block: BlockScores, scores: Tensor) -> None:
        keys, queries = self.term.keys, self.term.queries
        if keys is not None and self.keys is not None:
            vectors_NRE = keys.select(block.group, self.keys.rows)
            self.keys.spread(self._product(self._shifted_queries(block), vectors_NRE), scores)
        if queries is not None:
            for columns, band in self._key_chunks(queries):
                vectors_NRE = self.term.scale * queries.select(block.group, band.rows)
                products_NKR = self._product(block.k[:, columns], vectors_NRE)
                band.spread(products_NKR, scores[..., columns].transpose(1, 2))

    def scores_backward(
        self, block: BlockScores, d_scores: Tensor, d_q: Tensor, d_k: Tensor
    ) -> None:
        term, group = self.term, block.group
        keys, queries, dtype = term.keys, term.queries, accumulation_dtype(term.dtype)
        term.d_content_H1E[group.heads] += _sum_of_queries(group, d_q, dtype)
        if keys is not None and self.keys is not None:
            d_products_NQR = self.keys.gather(d_scores, self.buffers)
            keys.backward(group, self.keys.rows, d_products_NQR, self._shifted_queries(block))
            vectors_NRE = keys.select(group, self.keys.rows)
            d_shifted_NQE = term.scale * torch.bmm(d_products_NQR, vectors_NRE)
            term.d_position_H1E[group.heads] += _sum_of_queries(group, d_shifted_NQE, dtype)
            d_q += d_shifted_NQE
        if queries is not None:
            for columns, band in self._key_chunks(queries):
                d_products_NKR = band.gather(d_scores[..., columns].transpose(1, 2), self.buffers)
                d_products_NKR = term.scale * d_products_NKR
                queries.backward(group, band.rows, d_products_NKR, block.k[:, columns])
                d_k[:, columns] += torch.bmm(d_products_NKR, queries.select(group, band.rows))

    def output(self, group: HeadGroup, weights: Tensor) -> Tensor | None:
        values = self.term.values
        if values is None or self.values is None:
            return None
        weights_NQR = self.values.gather(weights, self.buffers)
        return torch.bmm(weights_NQR, values.select(group, self.values.rows))

    def output_backward(
        self, group: HeadGroup, weights: Tensor, d_output: Tensor, d_weights: Tensor
    ) -> None:
        values, band = self.term.values, self.values
        if values is None or band is None:
            return
        values.backward(group, band.rows, band.gather(weights, self.buffers), d_output)
        vectors_NRW = values.select(group, band.rows)
        band.spread(self._product(d_output, vectors_NRW), d_weights)

    def _shifted_queries(self, block: BlockScores) -> Float[Tensor, "N Q E"]:
        """The scaled queries that are multiplied with the vectors of keys."""
        shift_H1E = self.term.shift_H1E
        if shift_H1E is None:
            return block.q
        return (block.group.split(block.q) + shift_H1E[block.group.heads]).flatten(0, 1)

    def _key_chunks(self, queries: ShiftedTable) -> Iterator[tuple[slice, DistanceBand]]:
        """Chunks of near keys, as many keys as the block has queries, with their bands."""
        for start in range(queries.first_near_key(self.ahead), self.columns, self.rows):
            columns = slice(start, min(start + self.rows, self.columns))
            yield columns, queries.band(columns.stop - start, self.rows, -(self.ahead + start))

    def _product(self, x_NLE: Tensor, vectors_NRE: Tensor) -> Float[Tensor, "N L R"]:
        return self.buffers.product("distances", x_NLE, vectors_NRE.transpose(1, 2))


class AffineBiasTerm(ScoreTerm):
    """The `affine_bias` of an encoding, for as many heads at once as fit into the cache.

    ahead: distance of the first key from the first query. max_distance: larger distances are not visible; None if
    unknown.
    """

    def __init__(self, call: AttentionCall, ahead: int, max_distance: int | None):
        self.ahead, self.max_distance = ahead, max_distance
        self.encoding, self.q_pos = call.geometry.encoding, call.geometry.q_pos
        self.leaves = trainable_parameters(self.encoding)

    def begin_backward(self) -> None:
        self.d_leaves: list[Tensor | None] = [None] * len(self.leaves)

    def block_term(
        self, block: Block, q: Tensor, k: Tensor, buffers: ScratchBuffers, *, needs_grad: bool
    ) -> BlockTerm:
        ahead = self.ahead + block.keys.start - block.rows.start
        band = DistanceBand.of_all_distances(block.size, ahead, self.max_distance)
        queries = self.q_pos.slice(block.rows.start, block.rows.stop)
        first = ahead - block.size[0] + 1
        with torch.set_grad_enabled(needs_grad):
            bias = self.encoding.affine_bias(queries, first, first + band.distances - 1)
        assert bias is not None
        return AffineBiasBlock(self, bias, band, buffers)

    def gradients(self, d_v: Tensor) -> list[Tensor | None]:
        return self.d_leaves


class AffineBiasBlock(BlockTerm):
    """An `AffineBiasTerm` within one block. bias: with a graph if gradients are needed."""

    def __init__(
        self, term: AffineBiasTerm, bias: AffineBias, band: DistanceBand, buffers: ScratchBuffers
    ):
        self.term, self.band, self.buffers = term, band, buffers
        self.tensors, self.detached = bias.tensors, bias.detached()
        self.d_tensors = [torch.zeros_like(each) for each in self.detached.tensors]

    def add_to_scores(self, block: BlockScores, scores: Tensor) -> None:
        size = block.group.shape[1], self.band.size[0], self.band.distances
        bias_HQR = self.buffers.buffer("distances", size, self.detached.level.dtype)
        self.detached.write(block.group.heads, bias_HQR)
        if bias_HQR.dtype is not scores.dtype:  # adding two dtypes would allocate a new tensor
            bias_HQR = self.buffers.buffer("distances", size).copy_(bias_HQR)
        self.band.spread(bias_HQR, block.group.split(scores))

    def scores_backward(
        self, block: BlockScores, d_scores: Tensor, d_q: Tensor, d_k: Tensor
    ) -> None:
        d_BHQK = block.group.split(d_scores)
        d_HQK = d_BHQK[0] if len(d_BHQK) == 1 else d_BHQK.sum(0)
        d_HQR = self.band.gather(d_HQK, self.buffers, self.detached.level.dtype)
        self.detached.gradients(block.group.heads, d_HQR, self.d_tensors)

    def finish_backward(self, d_q: Tensor, d_k: Tensor) -> None:
        # One pass through the encoding's graph per block, after all groups of heads have added their gradients.
        pairs = zip(self.tensors, self.d_tensors, strict=True)
        trained = [(tensor, gradient) for tensor, gradient in pairs if tensor.requires_grad]
        if trained:
            tensors, d_tensors = zip(*trained, strict=True)
            leaves = self.term.leaves
            d_leaves = torch.autograd.grad(tensors, leaves, d_tensors, allow_unused=True)
            self.term.d_leaves = add_gradients(self.term.d_leaves, d_leaves)


def _sum_of_queries(group: HeadGroup, x_NQE: Tensor, dtype: torch.dtype) -> Float[Tensor, "H 1 E"]:
    """Sum over the queries of all rows of the batch, for each head."""
    return group.split(x_NQE).sum((0, 2), dtype=dtype).unsqueeze(1)


def _sum(bias_HE: Tensor | None, far_H1E: Tensor | None) -> Float[Tensor, "H 1 E"] | None:
    """Sum of two vectors per head, each of which may be None."""
    if bias_HE is None:
        return far_H1E
    bias_H1E = bias_HE.detach().unsqueeze(1)
    return bias_H1E if far_H1E is None else bias_H1E + far_H1E


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for a sum of many parts: float32 for bfloat16."""
    return torch.promote_types(dtype, torch.float32)
