"""*Self-Attention with Relative Position Representations* (Shaw, Uszkoreit, Vaswani 2018), equations 1 to 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import torch
from annotated_types import Ge
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.by_distance import ByDistance, Vectors
from jarilab.encodings.numbers import whole_numbers
from jarilab.encodings.skew import shift_of, skewed, unskewed
from jarilab.positions.coordinates import Positions, distance, unrelated


@dataclass(frozen=True, eq=False)
class Relation:
    """rows: the row of the tables for each pair, `(*B, Q, K)`. apart: True for pairs of which one has no place, and
    which therefore have no vector, or None. row_at_first: where places follow each other and keys are many, the row
    that the first query and the first key would have, were distances not clipped."""

    rows: Int[Tensor, "*B Q K"]
    apart: Bool[Tensor, "*B Q K"] | None = None
    row_at_first: int | None = None


@final
@registry.register("shaw")
class Shaw(Encoding):
    """A learned vector for each relation between two tokens, added to the key in the score and to the value in the sum.

    The relation is the distance j - i, clipped to -clip ... clip, so 2 clip + 1 vectors serve any length; or, where
    `labels` is given, any label that `Positions.graph` carries for the pair. Shared by the heads, one set per layer.

    clip: the largest distance that is told apart (the paper's k).
    keys, values: whether keys (a^K) and values (a^V) get a vector; the paper finds that keys alone do.
    labels: the number of labels of an arbitrary relation, instead of distances; 0 for distances.
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
        if not (keys or values):
            raise UserError(
                "shaw with keys=false and values=false adds nothing; use the encoding none to say so"
            )
        self.clip, self.labels = clip, labels
        self.relations = labels or 2 * clip + 1
        self.key_table = table(self.relations, site.head_width) if keys else None
        self.value_table = table(self.relations, site.value_head_width) if values else None
        self.reset()

    @property
    def hooks(self) -> frozenset[str]:
        used = {"terms": self.key_table, "values": self.value_table}
        return frozenset(hook for hook, table in used.items() if table is not None)

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        # Key vectors as large as the keys they are added to; value vectors start small, since they are added to the
        # output whatever the content is.
        std = parameter.shape[-1] ** -0.5 if name == "key_table" else 0.02
        nn.init.normal_(parameter, std=std, generator=generator)

    def relation(self, q_pos: Positions, k_pos: Positions) -> Relation:
        """The row of the tables for each pair: clip(j - i) + clip, or the graph's label."""
        apart = unrelated(q_pos, k_pos)
        if self.labels:
            return Relation(self._label(q_pos, k_pos), apart)
        if k_pos.relations is not None:
            raise UserError(
                "these positions carry labelled relations; use shaw:labels=N with their number"
            )
        rows = clipped("shaw", distance(q_pos, k_pos), self.clip)
        shift = shift_of(q_pos, k_pos)
        return Relation(rows, apart, None if shift is None else shift + self.clip)

    def _label(self, q_pos: Positions, k_pos: Positions) -> Int[Tensor, "*B Q K"]:
        if k_pos.relations is None or q_pos.relations is not k_pos.relations:
            raise UserError(
                "shaw:labels needs positions with relations; make them with Positions.graph(labels)"
            )
        node_Q1, node_1K = q_pos.index().unsqueeze(-1), k_pos.index().unsqueeze(-2)
        if k_pos.relations.ndim == 3 and node_Q1.ndim == 3:
            row = torch.arange(len(node_Q1), device=node_Q1.device).view(-1, 1, 1)
            label = k_pos.relations[row, node_Q1, node_1K]
        else:
            label = k_pos.relations[..., node_Q1, node_1K]
        if not torch.compiler.is_compiling() and label.numel():
            self._check(int(label.min()), int(label.max()))
        return label

    def _check(self, lowest: int, highest: int) -> None:
        """Raises UserError for labels that the tables have no row for."""
        if lowest < 0 or highest >= self.labels:
            raise UserError(
                f"shaw:labels={self.labels} knows labels 0 to {self.labels - 1}, got {lowest} to {highest}"
            )

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Relation
    ) -> Float[Tensor, "B H Q K"] | None:
        """q_i . a^K_ij: equation 4 without its scale, which the call applies to the sum. None without key vectors."""
        return None if self.key_table is None else compared(q, self.key_table, relation)

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: Relation
    ) -> Float[Tensor, "B H Q E"] | None:
        """Sum over j of alpha_ij a^V_ij: the second part of equation 3. None without value vectors."""
        return None if self.value_table is None else collected(weights, self.value_table, relation)

    def by_distance(self, first: int, last: int) -> ByDistance | None:
        """The tables as they are; None for labels."""
        if self.labels:
            return None
        keys, values = (
            None if table is None else Vectors(table.unsqueeze(0), -self.clip)
            for table in (self.key_table, self.value_table)
        )
        return ByDistance(keys=keys, values=values)


def table(rows: int, width: int) -> nn.Parameter:
    """Vectors that the caller is to fill."""
    return nn.Parameter(torch.empty(rows, width))


def clipped(name: str, ahead: Tensor, clip: int) -> Int[Tensor, "*B Q K"]:
    """The row of a table of 2 clip + 1 for each distance. Raises UserError for distances between whole ones."""
    return whole_numbers(name, ahead).clamp(-clip, clip) + clip


def compared(
    q: Float[Tensor, "B H Q E"], table: Float[Tensor, "R E"], relation: Relation
) -> Float[Tensor, "B H Q K"]:
    """Each query times the vector of its relation to each key."""
    batch, heads, queries, width = q.shape
    rows = relation.rows
    if _few_pairs(rows, table):
        # One product per query with the vectors of its own keys: (Q, B H, E) x (Q, E, K).
        key_QKE = nn.functional.embedding(rows, table).to(q.dtype)
        q_QNE = q.permute(2, 0, 1, 3).reshape(queries, batch * heads, width)
        terms_QNK = torch.bmm(q_QNE, key_QKE.transpose(1, 2))
        terms_BHQK = _heads_first(terms_QNK, batch, heads)
    else:
        # One product with each of the table's vectors, then pick: no tensor of Q x K vectors.
        each_BHQR = q @ table.to(q.dtype).t()
        if relation.row_at_first is not None:
            each_NQD = _by_distance(each_BHQR.flatten(0, 1), relation)
            return skewed(each_NQD, rows.shape[-1]).unflatten(0, (batch, heads))
        terms_BHQK = each_BHQR.gather(-1, _for_each_head(rows, batch, heads))
    return _placed(terms_BHQK, relation)


def collected(
    weights: Float[Tensor, "B H Q K"], table: Float[Tensor, "R E"], relation: Relation
) -> Float[Tensor, "B H Q E"]:
    """For each query the vectors of its relations to the keys, summed with its weights."""
    batch, heads, queries, keys = weights.shape
    weights_BHQK, rows = _placed(weights, relation), relation.rows
    if _few_pairs(rows, table):
        value_QKE = nn.functional.embedding(rows, table).to(weights.dtype)
        weights_QNK = weights_BHQK.permute(2, 0, 1, 3).reshape(queries, batch * heads, keys)
        sum_QNE = torch.bmm(weights_QNK, value_QKE)
        return _heads_first(sum_QNE, batch, heads)
    # The weight each relation gets in all, then one product with the table.
    if relation.row_at_first is not None:
        weights_NQD = unskewed(weights_BHQK.flatten(0, 1))
        share_NQR = _by_row(weights_NQD, relation, len(table))
        return (share_NQR @ table.to(weights.dtype)).unflatten(0, (batch, heads))
    zeros_BHQR = weights.new_zeros(batch, heads, queries, len(table))
    index_BHQK = _for_each_head(rows, batch, heads)
    share_BHQR = zeros_BHQR.scatter_add(-1, index_BHQK, weights_BHQK)
    return share_BHQR @ table.to(weights.dtype)


def _by_distance(each_NQR: Tensor, relation: Relation) -> Float[Tensor, "N Q D"]:
    """What each distance there is between the places has, from what each row of a table has."""
    before, first, last, after = _distances(relation, each_NQR.shape[2])
    parts = [
        each_NQR[..., :1].expand(-1, -1, before),
        each_NQR[..., first:last],
        each_NQR[..., -1:].expand(-1, -1, after),
    ]
    return torch.cat(parts, -1)


def _by_row(weights_NQD: Tensor, relation: Relation, count: int) -> Float[Tensor, "N Q R"]:
    """What all distances that share a row have together: the way back."""
    before, first, last, _ = _distances(relation, count)
    end = before + last - first
    inside_NQR = nn.functional.pad(weights_NQD[..., before:end], (first, count - last))
    nearest_NQR = nn.functional.pad(weights_NQD[..., :before].sum(-1, keepdim=True), (0, count - 1))
    farthest_NQR = nn.functional.pad(weights_NQD[..., end:].sum(-1, keepdim=True), (count - 1, 0))
    return inside_NQR + nearest_NQR + farthest_NQR


def _distances(relation: Relation, count: int) -> tuple[int, int, int, int]:
    """Of all distances between the places, from the last query to the first key on: how many lie before the table's
    rows, the first row and the one past the last, and how many lie beyond."""
    assert relation.row_at_first is not None
    queries, keys = relation.rows.shape[-2:]
    start = relation.row_at_first - queries + 1
    stop = relation.row_at_first + keys
    first, last = min(max(start, 0), count), min(max(stop, 0), count)
    before = min(max(-start, 0), stop - start)
    return before, first, max(first, last), stop - start - before - max(0, last - first)


def _heads_first(x_QNE: Tensor, batch: int, heads: int) -> Float[Tensor, "B H Q _"]:
    """Rows of queries, of N = B * H heads each, as queries of heads."""
    queries, _, width = x_QNE.shape
    return x_QNE.view(queries, batch, heads, width).permute(1, 2, 0, 3)


def _for_each_head(rows: Tensor, batch: int, heads: int) -> Int[Tensor, "B H Q K"]:
    """The row of the table for each pair, the same for all heads."""
    index_BQK = rows if rows.ndim == 3 else rows.unsqueeze(0)
    return index_BQK.unsqueeze(1).expand(batch, heads, -1, -1)


def _few_pairs(rows: Tensor, table: Tensor) -> bool:
    # An exported program has one way for all lengths.
    if torch.compiler.is_exporting():
        return False
    return rows.ndim == 2 and rows.shape[-1] <= len(table)


def _placed(x_BHQK: Tensor, relation: Relation) -> Tensor:
    """0 for pairs of which one has no place."""
    if relation.apart is None:
        return x_BHQK
    return x_BHQK.masked_fill(relation.apart.unsqueeze(-3), 0.0)
