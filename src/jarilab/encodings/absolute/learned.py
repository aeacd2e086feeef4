"""A learned vector for each position, added to the input (Gehring et al. 2017; BERT, GPT-2)."""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Ge, Le
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import whole_numbers
from jarilab.positions.coordinates import Positions


@final
@registry.register("learned", "learnt")
class Learned(Encoding):
    """Adds row p of a table to the token at position p. It knows nothing beyond its last row, and says so.

    positions: the rows of the table; positions 0 to positions - 1 are known.
    """

    shift_invariant = False
    cross = False
    integer_only = True

    def __init__(self, site: Site, *, positions: Annotated[int, Ge(1), Le(2**24)] = 512):
        super().__init__(site)
        self.positions = positions
        self.table = nn.Parameter(torch.empty(positions, site.width))
        self.reset()

    @property
    def max_positions(self) -> int:
        return self.positions

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        # As loud as the sinusoids it stands in for (root mean square 1 / sqrt 2): the token embeddings, scaled by
        # sqrt(D), have unit variance, and a table of 0.02 would need hundreds of steps to matter beside them.
        nn.init.normal_(parameter, std=0.5**0.5, generator=generator)

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        index = whole_numbers("learned", pos.index())
        # A compiled graph cannot stop to look at the data; embedding's own bounds check remains there.
        if not torch.compiler.is_compiling() and index.numel() and not self._surely(pos):
            self._check(int(index.min()), int(index.max()))
        rows = nn.functional.embedding(index, self.table)
        if pos.unplaced is not None:
            rows = rows.masked_fill(pos.unplaced.unsqueeze(-1), 0.0)
        return x + rows.to(x.dtype)

    def _surely(self, pos: Positions) -> bool:
        """Whether the table is known to have the rows, without a look at the data."""
        known = pos.known_bounds
        return known is not None and known[0] >= 0 and known[1] < self.positions

    def _check(self, lowest: int, highest: int) -> None:
        """Raises UserError for positions that the table has no row for."""
        known = f"learned knows the positions 0 to {self.positions - 1}"
        if lowest < 0:
            raise UserError(f"{known}, got {lowest}; shift them to start at 0")
        if highest >= self.positions:
            raise UserError(
                f"{known}, got {highest}; use learned:positions={highest + 1} or an encoding without an end"
            )
