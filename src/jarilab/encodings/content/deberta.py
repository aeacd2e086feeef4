"""Disentangled attention: *DeBERTa* (He et al. 2021), section 3.1, equations 2 to 4."""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Ge
from torch import nn

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.by_distance import ByDistance, Vectors
from jarilab.encodings.content.shaw import Relation
from jarilab.encodings.numbers import whole_numbers
from jarilab.positions.coordinates import Positions, distance, unrelated


@final
@registry.register("deberta")
class DeBERTa(Encoding):
    """Adds to q.k how well the query's content fits the key's distance and the key's content the query's:
    `q_i.K_r[i - j] + k_j.Q_r[i - j]`, and divides the sum of the three by sqrt(3 E).

    One table of 2 clip vectors of width D serves all layers; each has two maps of its own that make of it K_r and Q_r
    for each head. Row 0 is that of keys `clip` or more ahead, the last that of keys `clip - 1` or more behind.

    clip: the paper's k.
    """

    shared = False
    of_stack = ("table",)
    integer_only = True
    scale_factor = 3**-0.5

    def __init__(self, site: Site, *, clip: Annotated[int, Ge(1)] = 64):
        super().__init__(site)
        self.clip = clip
        self.table = nn.Parameter(torch.empty(2 * clip, site.width))
        self.key = nn.Linear(site.width, site.heads * site.head_width, bias=False)
        self.query = nn.Linear(site.width, site.heads * site.head_width, bias=False)
        self.reset()

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        if name == "table":
            # Of the size of what queries and keys are made of.
            nn.init.normal_(parameter, generator=generator)
        else:
            super().initial_value(name, parameter, generator)

    def relation(self, q_pos: Positions, k_pos: Positions) -> Relation:
        """The row of the table for each pair."""
        behind = -whole_numbers("deberta", distance(q_pos, k_pos))
        rows = (behind + self.clip).clamp(0, 2 * self.clip - 1)
        return Relation(rows, unrelated(q_pos, k_pos))

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Relation
    ) -> Float[Tensor, "B H Q K"]:
        batch, heads, queries, keys = *q.shape[:3], k.shape[2]
        rows = relation.rows.expand(batch, queries, keys).unsqueeze(1).expand(-1, heads, -1, -1)
        to_place_BHQR = q @ self._of_heads(self.key, q.dtype)
        from_place_BHKR = k @ self._of_heads(self.query, k.dtype)
        from_place_BHKQ = from_place_BHKR.gather(-1, rows.transpose(-1, -2))
        terms_BHQK = to_place_BHQR.gather(-1, rows) + from_place_BHKQ.transpose(-1, -2)
        if relation.apart is not None:
            terms_BHQK = terms_BHQK.masked_fill(relation.apart.unsqueeze(-3), 0.0)
        return terms_BHQK

    def by_distance(self, first: int, last: int) -> ByDistance:
        """The tables the other way round: what is ahead comes last."""
        keys, queries = (
            Vectors(self._of_heads(made, self.table.dtype).transpose(1, 2).flip(1), 1 - self.clip)
            for made in (self.key, self.query)
        )
        return ByDistance(keys=keys, queries=queries)

    def _of_heads(self, made: nn.Linear, dtype: torch.dtype) -> Float[Tensor, "H E R"]:
        """A vector of each head for each row of the table."""
        each_RN = nn.functional.linear(self.table.to(dtype), made.weight.to(dtype))
        return each_RN.t().unflatten(0, (self.site.heads, -1))
