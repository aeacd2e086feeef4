"""A learned bias for each offset in the plane: *Swin Transformer* (Liu et al. 2021), equation 4; BEiT has it too."""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Ge, Le
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.absolute.plane import interpolated
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.positions.coordinates import Positions, offsets, unrelated


@final
@registry.register("table2d", "swin")
class Table2d(Encoding):
    """Adds to the score one learned number per head for how many rows and columns lie between query and key. One table
    for all layers, with `(2 rows + 1)(2 columns + 1)` entries: a grid of h x w needs rows = h - 1, columns = w - 1.

    Offsets between whole ones are read by bilinear interpolation. Tokens without a place get no bias.

    rows, columns: the largest offset that is told apart. clip: take larger ones for the largest, instead of an error.
    """

    axes = (2,)

    def __init__(
        self,
        site: Site,
        *,
        rows: Annotated[int, Ge(0), Le(2**11)] = 31,
        columns: Annotated[int, Ge(0), Le(2**11)] = 31,
        clip: bool = False,
    ):
        super().__init__(site)
        self.rows, self.columns, self.clip = rows, columns, clip
        self.table = nn.Parameter(torch.empty((2 * rows + 1) * (2 * columns + 1), site.heads))
        self.reset()

    @property
    def max_distance(self) -> int | None:
        return None if self.clip else min(self.rows, self.columns)

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        nn.init.normal_(parameter, std=0.3, generator=generator)  # as t5

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        down, right = offsets(q_pos, k_pos)
        row = self._known("rows", down, self.rows) + self.rows
        column = self._known("columns", right, self.columns) + self.columns
        bias = interpolated(self._cell, row, column).movedim(-1, -3)
        apart = unrelated(q_pos, k_pos)
        return bias if apart is None else bias.masked_fill(apart.unsqueeze(-3), 0.0)

    def _cell(self, row: Tensor, column: Tensor) -> Tensor:
        # The gradient of picking whole columns is cheap, that of a lookup for every pair is not.
        picked = (row * (2 * self.columns + 1) + column).flatten()
        table_HR = self.table.t().contiguous()
        bias_H = table_HR.index_select(1, picked).view(-1, *row.shape)
        return bias_H.movedim(0, -1)

    def _known(self, axis: str, ahead: Tensor, largest: int) -> Tensor:
        if not self.clip and not torch.compiler.is_compiling() and ahead.numel():
            away = ahead.abs().max().item()
            if away > largest:
                raise UserError(
                    f"table2d tells apart offsets of up to {largest} {axis}, got {away:g}; "
                    f"use table2d:{axis}={-int(-away // 1)} or clip=true"
                )
        return ahead.clamp(-largest, largest)
