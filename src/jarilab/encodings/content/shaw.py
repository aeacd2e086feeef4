"""Shaw's learned vectors of relations between tokens, of sequences, graphs and images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import torch
from annotated_types import Ge
from torch import Generator, nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.distance_forms import DistanceVectors, VectorTable
from jarilab.encodings.numbers import check_integer, zero_out
from jarilab.encodings.skew import skew, skew_offset, unskew
from jarilab.positions.coordinates import Positions, distance, offsets, undefined_pairs


@dataclass(frozen=True, eq=False)
class Relation:
    """The row of a table for each pair of tokens.

    rows: `(*B, Q, K)`. excluded: True for pairs in which a token has no position, and which have no vector; or None.
    row_at_first: the row of the first query and the first key if distances were not clipped; given only if positions
        are consecutive and keys are many.
    """

    rows: Int[Tensor, "*B Q K"]
    excluded: Bool[Tensor, "*B Q K"] | None = None
    row_at_first: int | None = None


@final
@registry.register("shaw")
class Shaw(Encoding):
    """Adds a learned vector of the relation between two tokens to keys and to values.

    The score is `q_i . (k_j + a^K_ij)`, the output `sum_j alpha_ij (v_j + a^V_ij)`. The relation is the distance j - i,
    clipped to -clip ... clip, so 2 clip + 1 vectors serve any length. With `labels` it is the label that
    `Positions.graph` has for the pair. Heads share the vectors; each layer has its own.

    Source: *Self-Attention with Relative Position Representations* (Shaw, Uszkoreit, Vaswani 2018), equations 1 to 5.

    clip: the largest distance with its own vector (the paper's k).
    keys, values: whether keys (a^K) and values (a^V) get a vector; the paper finds that keys are enough.
    labels: number of labels of a graph, instead of distances; 0 for distances.
    """

    shared = False
    integer_only = True

    def __init__(
        self,
        site: Site,
        *,
        clip: Annotated[int, Ge(0)] = 16,
        keys: bool = True,
        values: bool = True,
        labels: Annotated[int, Ge(0)] = 0,
    ):
        super().__init__(site)
        _check_used("shaw", keys, values)
        self.clip, self.labels = clip, labels
        self.relations = labels or 2 * clip + 1
        self.key_table = _table(self.relations, site.d_head) if keys else None
        self.value_table = _table(self.relations, site.d_value) if values else None
        self.reset()

    @property
    def hooks(self) -> frozenset[str]:
        used = {"terms": self.key_table, "values": self.value_table}
        return frozenset(hook for hook, table in used.items() if table is not None)

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        # Key vectors have the size of the keys they are added to. Value vectors start small, since they are added to
        # the output whatever the content is.
        std = parameter.shape[-1] ** -0.5 if name == "key_table" else 0.02
        nn.init.normal_(parameter, std=std, generator=generator)

    def relation(self, q_pos: Positions, k_pos: Positions) -> Relation:
        """The row of the tables for each pair: clip(j - i) + clip, or the graph's label."""
        excluded = undefined_pairs(q_pos, k_pos)
        if self.labels:
            return Relation(self._labels_of_pairs(q_pos, k_pos), excluded)
        if k_pos.relations is not None:
            raise UserError(
                "shaw: expected positions without labelled relations, got some; use shaw:labels=N with their number"
            )
        rows = _clipped_rows("shaw", distance(q_pos, k_pos), self.clip)
        offset = skew_offset(q_pos, k_pos)
        return Relation(rows, excluded, None if offset is None else offset + self.clip)

    def _labels_of_pairs(self, q_pos: Positions, k_pos: Positions) -> Int[Tensor, "*B Q K"]:
        if k_pos.relations is None or q_pos.relations is not k_pos.relations:
            raise UserError(
                "shaw:labels needs positions with relations, got none; make them with Positions.graph(labels)"
            )
        node_Q1, node_1K = q_pos.index().unsqueeze(-1), k_pos.index().unsqueeze(-2)
        if k_pos.relations.ndim == 3 and node_Q1.ndim == 3:
            row = torch.arange(len(node_Q1), device=node_Q1.device).view(-1, 1, 1)
            label = k_pos.relations[row, node_Q1, node_1K]
        else:
            label = k_pos.relations[..., node_Q1, node_1K]
        if not torch.compiler.is_compiling() and label.numel():
            self._check_labels(int(label.min()), int(label.max()))
        return label

    def _check_labels(self, lowest: int, highest: int) -> None:
        """Raises UserError for labels without a row."""
        if lowest < 0 or highest >= self.labels:
            raise UserError(
                f"shaw:labels={self.labels} knows labels 0 to {self.labels - 1}, got {lowest} to {highest}; use "
                f"shaw:labels={highest + 1}, and labels from 0 on"
            )

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Relation
    ) -> Float[Tensor, "B H Q K"] | None:
        """q_i . a^K_ij: equation 4 without its scale, which the attention applies to the sum."""
        return None if self.key_table is None else _query_terms(q, self.key_table, relation)

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: Relation
    ) -> Float[Tensor, "B H Q E"] | None:
        """Sum over j of alpha_ij a^V_ij: the second part of equation 3."""
        return (
            None if self.value_table is None else _weighted_sum(weights, self.value_table, relation)
        )

    def distance_vectors(self, first: int, last: int) -> DistanceVectors | None:
        """The tables as they are; None for labels."""
        if self.labels:
            return None
        keys, values = (
            None if table is None else VectorTable(table.unsqueeze(0), -self.clip)
            for table in (self.key_table, self.value_table)
        )
        return DistanceVectors(keys=keys, values=values)


@final
@registry.register("shaw2d")
class Shaw2d(Encoding):
    """Adds learned vectors of the offsets in rows and in columns to keys and to values.

    Each axis has its own vectors, as Shaw has for distances. Heads share the vectors; each layer has its own.

    Source: Shaw's vectors (Shaw et al. 2018) for rows and for columns: relative positions of an image, one axis at a
    time (s-chh's 2D-Positional-Encoding-Vision-Transformer; Bello et al. 2019 adds logits per axis).

    clip: the largest distance along an axis with its own vector, so 2 clip + 1 vectors for each axis.
    keys, values: whether keys and values get vectors.
    """

    axes = (2,)
    shared = False
    integer_only = True

    def __init__(
        self,
        site: Site,
        *,
        clip: Annotated[int, Ge(0)] = 16,
        keys: bool = True,
        values: bool = True,
    ):
        super().__init__(site)
        _check_used("shaw2d", keys, values)
        self.clip = clip
        rows, width, value_width = 2 * clip + 1, site.d_head, site.d_value
        self.key_row_table = _table(rows, width) if keys else None
        self.key_column_table = _table(rows, width) if keys else None
        self.value_row_table = _table(rows, value_width) if values else None
        self.value_column_table = _table(rows, value_width) if values else None
        self.reset()

    @property
    def hooks(self) -> frozenset[str]:
        used = {"terms": self.key_row_table, "values": self.value_row_table}
        return frozenset(hook for hook, table in used.items() if table is not None)

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        # As shaw's, for the sum of both axes.
        std = (2 * parameter.shape[-1]) ** -0.5 if name.startswith("key") else 0.02
        nn.init.normal_(parameter, std=std, generator=generator)

    def relation(self, q_pos: Positions, k_pos: Positions) -> tuple[Relation, Relation]:
        """The rows of the tables for each pair: of the tables for rows, and of those for columns."""
        excluded = undefined_pairs(q_pos, k_pos)
        down, right = offsets(q_pos, k_pos)
        rows = _clipped_rows("shaw2d", down, self.clip)
        columns = _clipped_rows("shaw2d", right, self.clip)
        return Relation(rows, excluded), Relation(columns, excluded)

    def terms(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: tuple[Relation, Relation],
    ) -> Float[Tensor, "B H Q K"] | None:
        """q_i . (a^row_ij + a^column_ij)."""
        if self.key_row_table is None or self.key_column_table is None:
            return None
        down, right = relation
        row_terms = _query_terms(q, self.key_row_table, down)
        return row_terms + _query_terms(q, self.key_column_table, right)

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: tuple[Relation, Relation]
    ) -> Float[Tensor, "B H Q E"] | None:
        """Sum over j of alpha_ij (b^row_ij + b^column_ij)."""
        if self.value_row_table is None or self.value_column_table is None:
            return None
        down, right = relation
        row_sum = _weighted_sum(weights, self.value_row_table, down)
        return row_sum + _weighted_sum(weights, self.value_column_table, right)


def _check_used(name: str, keys: bool, values: bool) -> None:
    """Raises UserError if neither keys nor values get vectors."""
    if not (keys or values):
        raise UserError(
            f"{name} adds vectors to keys, to values or to both: expected one of them, got keys=false and "
            "values=false; use the encoding none"
        )


def _table(rows: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, width))


def _clipped_rows(name: str, ahead: Tensor, clip: int) -> Int[Tensor, "*B Q K"]:
    """The row of each distance in a table of 2 clip + 1. Raises UserError for distances that are not integers."""
    return check_integer(name, ahead).clamp(-clip, clip) + clip


def _query_terms(
    q: Float[Tensor, "B H Q E"], table: Float[Tensor, "R E"], relation: Relation
) -> Float[Tensor, "B H Q K"]:
    """The dot product of each query with the vector of its relation to each key."""
    batch, heads, queries, width = q.shape
    rows = relation.rows
    if _has_few_pairs(rows, table):
        # One product per query with the vectors of its own keys: (Q, B H, E) x (Q, E, K).
        key_QKE = nn.functional.embedding(rows, table).to(q.dtype)
        q_QNE = q.permute(2, 0, 1, 3).reshape(queries, batch * heads, width)
        terms_QNK = torch.bmm(q_QNE, key_QKE.transpose(1, 2))
        terms_BHQK = _heads_first(terms_QNK, batch, heads)
    else:
        # One product with all vectors of the table, then gather: no tensor of Q x K vectors.
        products_BHQR = q @ table.to(q.dtype).t()
        if relation.row_at_first is not None:
            products_NQD = _expand_rows_to_distances(products_BHQR.flatten(0, 1), relation)
            return skew(products_NQD, rows.shape[-1]).unflatten(0, (batch, heads))
        terms_BHQK = products_BHQR.gather(-1, _expand_to_heads(rows, batch, heads))
    return zero_out(terms_BHQK, relation.excluded)


def _weighted_sum(
    weights: Float[Tensor, "B H Q K"], table: Float[Tensor, "R E"], relation: Relation
) -> Float[Tensor, "B H Q E"]:
    """For each query the vectors of its relations to the keys, summed with its weights."""
    batch, heads, queries, keys = weights.shape
    weights_BHQK, rows = zero_out(weights, relation.excluded), relation.rows
    if _has_few_pairs(rows, table):
        value_QKE = nn.functional.embedding(rows, table).to(weights.dtype)
        weights_QNK = weights_BHQK.permute(2, 0, 1, 3).reshape(queries, batch * heads, keys)
        sum_QNE = torch.bmm(weights_QNK, value_QKE)
        return _heads_first(sum_QNE, batch, heads)
    # The total weight of each relation, then one product with the table.
    if relation.row_at_first is not None:
        weights_NQD = unskew(weights_BHQK.flatten(0, 1))
        total_NQR = _sum_distances_to_rows(weights_NQD, relation, len(table))
        return (total_NQR @ table.to(weights.dtype)).unflatten(0, (batch, heads))
    zeros_BHQR = weights.new_zeros(batch, heads, queries, len(table))
    index_BHQK = _expand_to_heads(rows, batch, heads)
    total_BHQR = zeros_BHQR.scatter_add(-1, index_BHQK, weights_BHQK)
    return total_BHQR @ table.to(weights.dtype)


def _expand_rows_to_distances(x_NQR: Tensor, relation: Relation) -> Float[Tensor, "N Q D"]:
    """From the rows of the table to all distances between the positions; clipped distances repeat the first or last."""
    before, first, last, after = _split_distances(relation, x_NQR.shape[2])
    parts = [
        x_NQR[..., :1].expand(-1, -1, before),
        x_NQR[..., first:last],
        x_NQR[..., -1:].expand(-1, -1, after),
    ]
    return torch.cat(parts, -1)


def _sum_distances_to_rows(
    weights_NQD: Tensor, relation: Relation, count: int
) -> Float[Tensor, "N Q R"]:
    """The transpose of `_expand_rows_to_distances`: the sum over the distances that share a row of `count`."""
    before, first, last, _ = _split_distances(relation, count)
    end = before + last - first
    inside_NQR = nn.functional.pad(weights_NQD[..., before:end], (first, count - last))
    nearest_NQR = nn.functional.pad(weights_NQD[..., :before].sum(-1, keepdim=True), (0, count - 1))
    farthest_NQR = nn.functional.pad(weights_NQD[..., end:].sum(-1, keepdim=True), (count - 1, 0))
    return inside_NQR + nearest_NQR + farthest_NQR


def _split_distances(relation: Relation, count: int) -> tuple[int, int, int, int]:
    """How the distances, from the last query and first key on, map to the `count` rows of a table.

    Returns the number of distances before the table, its first row and the row after the last, and the number of
    distances after the table.
    """
    assert relation.row_at_first is not None
    queries, keys = relation.rows.shape[-2:]
    start = relation.row_at_first - queries + 1
    stop = relation.row_at_first + keys
    first, last = min(max(start, 0), count), min(max(stop, 0), count)
    before = min(max(-start, 0), stop - start)
    return before, first, max(first, last), stop - start - before - max(0, last - first)


def _heads_first(x_QNE: Tensor, batch: int, heads: int) -> Float[Tensor, "B H Q _"]:
    """From `(Q, B * H, _)` to `(B, H, Q, _)`."""
    queries, _, width = x_QNE.shape
    return x_QNE.view(queries, batch, heads, width).permute(1, 2, 0, 3)


def _expand_to_heads(rows: Tensor, batch: int, heads: int) -> Int[Tensor, "B H Q K"]:
    index_BQK = rows if rows.ndim == 3 else rows.unsqueeze(0)
    return index_BQK.unsqueeze(1).expand(batch, heads, -1, -1)


def _has_few_pairs(rows: Tensor, table: Tensor) -> bool:
    # An exported program has the same branch for all lengths.
    if torch.compiler.is_exporting():
        return False
    # With fewer keys than rows, a product with the whole table would compute more numbers than are used.
    return rows.ndim == 2 and rows.shape[-1] <= len(table)
