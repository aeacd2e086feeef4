"""*Self-Attention with Relative Position Representations* (Shaw, Uszkoreit, Vaswani 2018), equations 1 to 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import torch
from annotated_types import Ge
from torch import nn

from jarilab.encodings.base import Encoding, Site, registry, whole_numbers
from jarilab.errors import UserError
from jarilab.positions import Positions, distance, unrelated
from jarilab.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True, eq=False)
class Relation:
    """rows: the row of the tables for each pair, `(*B, Q, K)`. apart: True for pairs of which one has no place, and
    which therefore have no vector, or None."""

    rows: Int[Tensor, "*B Q K"]
    apart: Bool[Tensor, "*B Q K"] | None = None


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
        self.key_table = (
            nn.Parameter(torch.empty(self.relations, site.head_width)) if keys else None
        )
        self.value_table = (
            nn.Parameter(torch.empty(self.relations, site.value_head_width)) if values else None
        )
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
        if self.labels:
            return Relation(self._label(q_pos, k_pos), unrelated(q_pos, k_pos))
        if k_pos.relations is not None:
            raise UserError(
                "these positions carry labelled relations; use shaw:labels=N with their number"
            )
        return Relation(clipped("shaw", distance(q_pos, k_pos), self.clip), unrelated(q_pos, k_pos))

    def _label(self, q_pos: Positions, k_pos: Positions) -> Int[Tensor, "*B Q K"]:
        if k_pos.relations is None or q_pos.relations is not k_pos.relations:
            raise UserError(
                "shaw:labels needs positions with relations; make them with Positions.graph(labels)"
            )
        q, k = q_pos.index().unsqueeze(-1), k_pos.index().unsqueeze(-2)
        if k_pos.relations.ndim == 3 and q.ndim == 3:
            rows = torch.arange(len(q), device=q.device).view(-1, 1, 1)
            label = k_pos.relations[rows, q, k]
        else:
            label = k_pos.relations[..., q, k]
        if not torch.compiler.is_compiling() and label.numel():
            lowest, highest = int(label.min()), int(label.max())
            if lowest < 0 or highest >= self.labels:
                raise UserError(
                    f"shaw:labels={self.labels} knows labels 0 to {self.labels - 1}, got {lowest} to {highest}"
                )
        return label

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
        product = torch.bmm(
            q.permute(2, 0, 1, 3).reshape(queries, batch * heads, width), key_QKE.transpose(1, 2)
        )
        terms_BHQK = product.view(queries, batch, heads, product.shape[2]).permute(1, 2, 0, 3)
    else:
        # One product with each of the table's vectors, then pick: no tensor of Q x K vectors.
        each_BHQR = q @ table.to(q.dtype).t()
        index = rows if rows.ndim == 3 else rows.unsqueeze(0)
        terms_BHQK = each_BHQR.gather(-1, index.unsqueeze(1).expand(batch, heads, -1, -1))
    return _placed(terms_BHQK, relation)


def collected(
    weights: Float[Tensor, "B H Q K"], table: Float[Tensor, "R E"], relation: Relation
) -> Float[Tensor, "B H Q E"]:
    """For each query the vectors of its relations to the keys, summed with its weights."""
    batch, heads, queries, keys = weights.shape
    weights, rows = _placed(weights, relation), relation.rows
    if _few_pairs(rows, table):
        value_QKE = nn.functional.embedding(rows, table).to(weights.dtype)
        product = torch.bmm(
            weights.permute(2, 0, 1, 3).reshape(queries, batch * heads, keys), value_QKE
        )
        return product.view(queries, batch, heads, product.shape[2]).permute(1, 2, 0, 3)
    # The weight each relation gets in all, then one product with the table.
    index = rows if rows.ndim == 3 else rows.unsqueeze(0)
    share_BHQR = weights.new_zeros(batch, heads, queries, len(table))
    share_BHQR = share_BHQR.scatter_add(
        -1, index.unsqueeze(1).expand(batch, heads, -1, -1), weights
    )
    return share_BHQR @ table.to(weights.dtype)


def _few_pairs(rows: Tensor, table: Tensor) -> bool:
    return rows.ndim == 2 and rows.shape[-1] <= len(table)


def _placed(x_BHQK: Tensor, relation: Relation) -> Tensor:
    """0 for pairs of which one has no place."""
    return (
        x_BHQK if relation.apart is None else x_BHQK.masked_fill(relation.apart.unsqueeze(-3), 0.0)
    )
