"""Sinusoids of rows and columns as in *Masked Autoencoders* (He et al. 2022) and its code; DiT, SimpleViT."""

from __future__ import annotations

from typing import Annotated, Literal, final

from annotated_types import Gt

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.absolute.sinusoidal import sinusoids
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.positions.coordinates import Positions


@final
@registry.register("sinusoidal_mae", "mae", "sincos2d", "simple_vit")
class SinusoidalMae(Encoding):
    """Adds fixed waves to the input: half of the width tells the column, the other half the row, in each half sines
    first, then cosines. Columns come first by an accident in the authors' code, which all trained weights have kept.

    exponent: how frequencies fall.
        width: `base^(-i / (D/4))`, as in MAE and DiT.
        ends: `base^(-i / (D/4 - 1))`, so that the slowest is 1 / base, as in SimpleViT.
    base: the wavelengths run from 2 pi to about base * 2 pi.
    """

    shift_invariant = False
    axes = (2,)
    cross = False

    def __init__(
        self,
        site: Site,
        *,
        exponent: Literal["width", "ends"] = "width",
        base: Annotated[float, Gt(1)] = 10000.0,
    ):
        super().__init__(site)
        if site.width % 4:
            works = 4 * -(-site.width // 4)
            raise UserError(
                "sinusoidal_mae has a quarter of the width for sines and for cosines of each axis: expected a multiple "
                f"of 4, got {site.width}; use width {works}"
            )
        self.exponent, self.base = exponent, base

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        column_first = pos.plane().flip(-1)
        layout = "concatenated" if self.exponent == "width" else "tensor2tensor"
        waves = sinusoids(column_first, x.shape[-1] // 2, layout, self.base).flatten(-2)
        if pos.unplaced is not None:
            waves = waves.masked_fill(pos.unplaced.unsqueeze(-1), 0.0)
        return x + waves.to(x.dtype)
