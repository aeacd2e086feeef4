"""Learned vectors that are added to tokens, of sequences and of images."""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from annotated_types import Ge, Le
from torch import Generator, nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.absolute.sinusoidal import without_unplaced
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import check_integer, interpolate_plane
from jarilab.positions.coordinates import Positions


@final
@registry.register("learned", "learnt")
class Learned(Encoding):
    """Adds row p of a learned table to the token at position p.

    Positions beyond the last row raise UserError.

    Source: A learned vector for each position, added to the input (Gehring et al. 2017; BERT, GPT-2).

    positions: rows of the table, for positions 0 to positions - 1.
    """

    shift_invariant = False
    cross = False
    integer_only = True

    def __init__(self, site: Site, *, positions: Annotated[int, Ge(1), Le(2**24)] = 512):
        super().__init__(site)
        self.positions = positions
        self.table = nn.Parameter(torch.empty(positions, site.d_model))
        self.reset()

    @property
    def max_positions(self) -> int:
        return self.positions

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        # The root mean square of sinusoids, 1 / sqrt 2: token embeddings, scaled by sqrt(D), have unit variance, and a
        # table of 0.02 would need hundreds of steps to matter.
        nn.init.normal_(parameter, std=0.5**0.5, generator=generator)

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        index = check_integer("learned", pos.index())
        # A compiled graph cannot stop to look at the data; embedding's own bounds check remains there.
        if not torch.compiler.is_compiling() and index.numel() and not self._has_rows(pos):
            self._check_bounds(int(index.min()), int(index.max()))
        rows = nn.functional.embedding(index, self.table)
        return x + without_unplaced(rows, pos).to(x.dtype)

    def _has_rows(self, pos: Positions) -> bool:
        """Whether the positions are known to be in the table without reading their data."""
        bounds = pos.known_bounds
        return bounds is not None and bounds[0] >= 0 and bounds[1] < self.positions

    def _check_bounds(self, lowest: int, highest: int) -> None:
        """Raises UserError for positions outside the table."""
        expected = f"learned knows the positions 0 to {self.positions - 1}"
        if lowest < 0:
            raise UserError(f"{expected}, got {lowest}; shift them to start at 0")
        if highest >= self.positions:
            raise UserError(
                f"{expected}, got {highest}; use learned:positions={highest + 1} or an encoding without a limit"
            )


@final
@registry.register("learned2d", "learnt2d")
class Learned2d(Encoding):
    """Adds a learned vector of the row and column to each token.

    Rows and columns beyond the table raise UserError. Coordinates between integers, as those of a rescaled grid, are
    interpolated bilinearly. Up to half a step beyond the edge they have the vector at the edge.

    Source: Learned vectors for the places of an image (Dosovitskiy et al. 2021), or for its rows and columns (DETR,
    DALL-E).

    rows, columns: size of the largest grid, for rows 0 to rows - 1 and columns 0 to columns - 1.
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
        # Cross-attention has no input of its own to add positions to.
        self.cross = where == "inject"
        if layout == "table":
            self.table = nn.Parameter(torch.empty(rows * columns, site.d_model))
        else:
            self.row_table = nn.Parameter(torch.empty(rows, site.d_model))
            self.column_table = nn.Parameter(torch.empty(columns, site.d_model))
        self.reset()

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset((self.where,))

    @property
    def max_positions(self) -> int:
        return min(self.rows, self.columns)

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        # In total the root mean square of sinusoids, 1 / sqrt 2.
        std = 0.5**0.5 if self.layout == "table" else 0.5
        nn.init.normal_(parameter, std=std, generator=generator)

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self._add(x, pos) if self.where == "embed" else x

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self._add(x, pos) if self.where == "inject" else x

    def _add(self, x: Tensor, pos: Positions) -> Tensor:
        row, column = pos.plane().unbind(-1)
        row = self._clamp_to_table("rows", row, self.rows)
        column = self._clamp_to_table("columns", column, self.columns)
        look_up = self._vectors_of_cells if self.layout == "table" else self._vectors_of_axes
        vectors = interpolate_plane(look_up, row, column)
        return x + without_unplaced(vectors, pos).to(x.dtype)

    def _vectors_of_cells(self, row: Tensor, column: Tensor) -> Tensor:
        cell = row * self.columns + column
        return nn.functional.embedding(cell, self.table)

    def _vectors_of_axes(self, row: Tensor, column: Tensor) -> Tensor:
        row_vectors = nn.functional.embedding(row, self.row_table)
        return row_vectors + nn.functional.embedding(column, self.column_table)

    def _clamp_to_table(self, axis: str, coordinate: Tensor, count: int) -> Tensor:
        """Coordinates at most half a step beyond the edge, moved to it. Raises UserError for others."""
        half = 0.5 if coordinate.is_floating_point() else 0
        # A compiled graph cannot stop to look at the data.
        if not torch.compiler.is_compiling() and coordinate.numel():
            lowest, highest = coordinate.min().item(), coordinate.max().item()
            expected = f"learned2d knows the {axis} 0 to {count - 1}"
            if lowest < -half:
                raise UserError(f"{expected}, got {lowest:g}; shift them to start at 0")
            if highest > count - 1 + half:
                needed = int(highest + half) + 1
                raise UserError(
                    f"{expected}, got {highest:g}; use learned2d:{axis}={needed}, rescale the grid, or an encoding "
                    "without a limit"
                )
        return coordinate.clamp(0, count - 1) if half else coordinate
