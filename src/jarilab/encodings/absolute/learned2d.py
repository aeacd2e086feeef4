"""Learned vectors for the places of an image (Dosovitskiy et al. 2021), or for its rows and columns (DETR, DALL-E)."""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from annotated_types import Ge, Le
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.absolute.plane import interpolated
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.positions.coordinates import Positions


@final
@registry.register("learned2d", "learnt2d")
class Learned2d(Encoding):
    """Adds a learned vector to the token at each row and column. It knows nothing beyond its last ones, and says so.

    Whole coordinates are looked up. Coordinates between them, as those of a rescaled grid, are read between the nearest
    vectors by bilinear interpolation, and up to half a step beyond the edge they are read at the edge.

    rows, columns: the largest grid; rows 0 to rows - 1 and columns 0 to columns - 1 are known.
    layout: axes has a vector for each row and one for each column, and adds both; table has one for each cell.
    where: embed adds them to the input, once (ViT); inject adds them to queries and keys in every attention (DETR).
    """

    shift_invariant = False
    axes = (2,)

    def __init__(
        self,
        site: Site,
        *,
        rows: Annotated[int, Ge(1), Le(2**12)] = 32,
        columns: Annotated[int, Ge(1), Le(2**12)] = 32,
        layout: Literal["axes", "table"] = "axes",
        where: Literal["embed", "inject"] = "embed",
    ):
        super().__init__(site)
        self.rows, self.columns, self.layout, self.where = rows, columns, layout, where
        self.cross = where == "inject"
        if layout == "table":
            self.table = nn.Parameter(torch.empty(rows * columns, site.width))
        else:
            self.row_table = nn.Parameter(torch.empty(rows, site.width))
            self.column_table = nn.Parameter(torch.empty(columns, site.width))
        self.reset()

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset((self.where,))

    @property
    def max_positions(self) -> int:
        return min(self.rows, self.columns)

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        # As loud, in all, as the sinusoids it stands in for: root mean square 1 / sqrt 2.
        std = 0.5**0.5 if self.layout == "table" else 0.5
        nn.init.normal_(parameter, std=std, generator=generator)

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self._added(x, pos) if self.where == "embed" else x

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self._added(x, pos) if self.where == "inject" else x

    def _added(self, x: Tensor, pos: Positions) -> Tensor:
        row, column = pos.plane().unbind(-1)
        row = self._known("rows", row, self.rows)
        column = self._known("columns", column, self.columns)
        look_up = self._cell if self.layout == "table" else self._cross
        vectors = interpolated(look_up, row, column)
        if pos.unplaced is not None:
            vectors = vectors.masked_fill(pos.unplaced.unsqueeze(-1), 0.0)
        return x + vectors.to(x.dtype)

    def _cell(self, row: Tensor, column: Tensor) -> Tensor:
        cell = row * self.columns + column
        return nn.functional.embedding(cell, self.table)

    def _cross(self, row: Tensor, column: Tensor) -> Tensor:
        of_row = nn.functional.embedding(row, self.row_table)
        return of_row + nn.functional.embedding(column, self.column_table)

    def _known(self, axis: str, place: Tensor, count: int) -> Tensor:
        """`place`, at most half a step beyond the edge being at it. Raises UserError for others."""
        half = 0.5 if place.is_floating_point() else 0
        # A compiled graph cannot stop to look at the data.
        if not torch.compiler.is_compiling() and place.numel():
            lowest, highest = place.min().item(), place.max().item()
            known = f"learned2d knows the {axis} 0 to {count - 1}"
            if lowest < -half:
                raise UserError(f"{known}, got {lowest:g}; shift them to start at 0")
            if highest > count - 1 + half:
                needed = int(highest + half) + 1
                raise UserError(
                    f"{known}, got {highest:g}; use learned2d:{axis}={needed}, rescale the grid, or an encoding "
                    "without an end"
                )
        return place.clamp(0, count - 1) if half else place
