"""Sinusoids of rows and columns: *End-to-End Object Detection with Transformers* (Carion et al. 2020), appendix A.4."""

from __future__ import annotations

import math
from typing import Annotated, Literal, final

from annotated_types import Gt

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.absolute.sinusoidal import sinusoids
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import precise_on
from jarilab.positions.coordinates import Positions

EPSILON = 1e-6  # DETR's, so that a frame of nothing divides by something


@final
@registry.register("sinusoidal2d", "sin2d")
class Sinusoidal2d(Encoding):
    """Adds fixed waves: half of the width tells the row, the other half the column, each as the paper's sinusoids.

    where: embed adds them to the input, once (ViT); inject adds them to queries and keys in every attention (DETR).
    normalised: as DETR has it. Coordinates are first scaled to the frame, in which the last row is at 2 pi:
        `2 pi (row + 1) / (height + 1e-6)`. Images of any size then have the same waves, in finer or coarser steps.
    base: the wavelengths run from 2 pi to about base * 2 pi; DETR calls it the temperature.
    """

    shift_invariant = False
    axes = (2,)

    def __init__(
        self,
        site: Site,
        *,
        where: Literal["embed", "inject"] = "embed",
        normalised: bool = False,
        base: Annotated[float, Gt(1)] = 10000.0,
    ):
        super().__init__(site)
        if site.width % 2 or site.width < 4:
            raise UserError(
                f"sinusoidal2d gives rows and columns half of the width each: expected an even width of 4 or more, "
                f"got {site.width}; use width {max(4, site.width + 1)}"
            )
        self.where, self.normalised, self.base = where, normalised, base
        self.cross = where == "inject"

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset((self.where,))

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self._added(x, pos) if self.where == "embed" else x

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self._added(x, pos) if self.where == "inject" else x

    def _added(self, x: Tensor, pos: Positions) -> Tensor:
        place = self._scaled(pos) if self.normalised else pos.plane()
        # Row and column side by side, each with the waves of half the width.
        waves = sinusoids(place, x.shape[-1] // 2, "interleaved", self.base).flatten(-2)
        if pos.unplaced is not None:
            waves = waves.masked_fill(pos.unplaced.unsqueeze(-1), 0.0)
        return x + waves.to(x.dtype)

    def _scaled(self, pos: Positions) -> Tensor:
        place = pos.plane()
        if pos.extent is None:
            raise UserError(
                "sinusoidal2d:normalised=true scales coordinates to their frame, and these positions know no extent; "
                "make them with Positions.grid, or give them extent=torch.tensor([height, width])"
            )
        extent = pos.extent.to(precise_on(place.device)).unsqueeze(-2)
        return 2 * math.pi * (place + 1) / (extent + EPSILON)
