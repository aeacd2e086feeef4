"""Shaw's vectors (Shaw et al. 2018) for rows and for columns: relative positions of an image, one axis at a time
(s-chh's 2D-Positional-Encoding-Vision-Transformer; Bello et al. 2019 adds logits per axis)."""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Ge
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.content.shaw import Relation, clipped, collected, compared, table
from jarilab.positions.coordinates import Positions, offsets, unrelated


@final
@registry.register("shaw2d")
class Shaw2d(Encoding):
    """A learned vector for how many rows lie between two tokens and one for how many columns, both added to the key in
    the score and to the value in the sum. Shared by the heads, one set per layer.

    clip: the largest distance along an axis that is told apart, so 2 clip + 1 vectors for each.
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
        if not (keys or values):
            raise UserError(
                "shaw2d with keys=false and values=false adds nothing; use the encoding none to say so"
            )
        self.clip = clip
        rows, width, value_width = 2 * clip + 1, site.head_width, site.value_head_width
        self.key_row_table = table(rows, width) if keys else None
        self.key_column_table = table(rows, width) if keys else None
        self.value_row_table = table(rows, value_width) if values else None
        self.value_column_table = table(rows, value_width) if values else None
        self.reset()

    @property
    def hooks(self) -> frozenset[str]:
        used = {"terms": self.key_row_table, "values": self.value_row_table}
        return frozenset(hook for hook, table in used.items() if table is not None)

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        # As shaw's, both axes together.
        std = (2 * parameter.shape[-1]) ** -0.5 if name.startswith("key") else 0.02
        nn.init.normal_(parameter, std=std, generator=generator)

    def relation(self, q_pos: Positions, k_pos: Positions) -> tuple[Relation, Relation]:
        """The rows of the tables for each pair: of those for rows, and of those for columns."""
        apart = unrelated(q_pos, k_pos)
        down, right = offsets(q_pos, k_pos)
        rows = clipped("shaw2d", down, self.clip)
        columns = clipped("shaw2d", right, self.clip)
        return Relation(rows, apart), Relation(columns, apart)

    def terms(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: tuple[Relation, Relation],
    ) -> Float[Tensor, "B H Q K"] | None:
        """q_i . (a^row_ij + a^column_ij). None without key vectors."""
        if self.key_row_table is None or self.key_column_table is None:
            return None
        down, right = relation
        by_rows = compared(q, self.key_row_table, down)
        return by_rows + compared(q, self.key_column_table, right)

    def values(
        self, weights: Float[Tensor, "B H Q K"], relation: tuple[Relation, Relation]
    ) -> Float[Tensor, "B H Q E"] | None:
        """Sum over j of alpha_ij (b^row_ij + b^column_ij). None without value vectors."""
        if self.value_row_table is None or self.value_column_table is None:
            return None
        down, right = relation
        by_rows = collected(weights, self.value_row_table, down)
        return by_rows + collected(weights, self.value_column_table, right)
