"""DeBERTa's disentangled attention between content and distance."""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Ge
from torch import Generator, nn

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.content.shaw import Relation
from jarilab.encodings.distance_forms import DistanceVectors, VectorTable
from jarilab.encodings.numbers import check_integer, zero_out
from jarilab.positions.coordinates import Positions, distance, undefined_pairs


@final
@registry.register("deberta")
class DeBERTa(Encoding):
    """Adds `q_i.K_r[i - j] + k_j.Q_r[i - j]` to q.k, and divides the sum of the three by sqrt(3 E).

    The terms compare the query's content with the distance, and the key's content with it. One table of 2 clip vectors
    of width D serves all layers. Each layer has two linear maps that compute K_r and Q_r of each head from it. Row 0 is
    for keys `clip` or more after the query, the last for keys `clip - 1` or more before it.

    Source: Disentangled attention: *DeBERTa* (He et al. 2021), section 3.1, equations 2 to 4.

    clip: the paper's k.
    """

    shared = False
    shared_parameters = ("table",)
    integer_only = True
    scale_factor = 3**-0.5

    def __init__(self, site: Site, *, clip: Annotated[int, Ge(1)] = 64):
        super().__init__(site)
        self.clip = clip
        self.table = nn.Parameter(torch.empty(2 * clip, site.d_model))
        self.key = nn.Linear(site.d_model, site.n_heads * site.d_head, bias=False)
        self.query = nn.Linear(site.d_model, site.n_heads * site.d_head, bias=False)
        self.reset()

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        if name == "table":
            # Unit variance, as the inputs of the maps to queries and keys.
            nn.init.normal_(parameter, generator=generator)
        else:
            super().initial_value(name, parameter, generator)

    def relation(self, q_pos: Positions, k_pos: Positions) -> Relation:
        """The row of the table for each pair."""
        behind = -check_integer("deberta", distance(q_pos, k_pos))
        rows = (behind + self.clip).clamp(0, 2 * self.clip - 1)
        return Relation(rows, undefined_pairs(q_pos, k_pos))

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Relation
    ) -> Float[Tensor, "B H Q K"]:
        batch, heads, queries, keys = *q.shape[:3], k.shape[2]
        rows = relation.rows.expand(batch, queries, keys).unsqueeze(1).expand(-1, heads, -1, -1)
        query_terms_BHQR = q @ self._vectors_of_heads(self.key, q.dtype)
        key_terms_BHKR = k @ self._vectors_of_heads(self.query, k.dtype)
        key_terms_BHKQ = key_terms_BHKR.gather(-1, rows.transpose(-1, -2))
        terms_BHQK = query_terms_BHQR.gather(-1, rows) + key_terms_BHKQ.transpose(-1, -2)
        return zero_out(terms_BHQK, relation.excluded)

    def distance_vectors(self, first: int, last: int) -> DistanceVectors:
        """The table's vectors in order of j - i, the reverse of i - j."""
        keys, queries = (
            VectorTable(
                self._vectors_of_heads(linear, self.table.dtype).transpose(1, 2).flip(1),
                1 - self.clip,
            )
            for linear in (self.key, self.query)
        )
        return DistanceVectors(keys=keys, queries=queries)

    def _vectors_of_heads(self, linear: nn.Linear, dtype: torch.dtype) -> Float[Tensor, "H E R"]:
        """The linear map of each row of the table, split into heads."""
        rows_RN = nn.functional.linear(self.table.to(dtype), linear.weight.to(dtype))
        return rows_RN.t().unflatten(0, (self.site.n_heads, -1))
