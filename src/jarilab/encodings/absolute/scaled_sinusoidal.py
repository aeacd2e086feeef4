"""Sinusoids times a learned number, as x-transformers has them; the idea is in *Neural Speech Synthesis with
Transformer Network* (Li et al. 2019), section 3.2."""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Gt
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.absolute.sinusoidal import Layout, sinusoids
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.positions.coordinates import Positions


@final
@registry.register("scaled_sinusoidal", "scaled_sinusoid", "scaled_sin")
class ScaledSinusoidal(Encoding):
    """Adds sinusoidal's waves to the input, times one learned number that begins at `D^(-1/2)`: the model decides how
    loud places are beside words.

    layout, base: as sinusoidal's.
    """

    shift_invariant = False
    cross = False

    def __init__(
        self,
        site: Site,
        *,
        layout: Layout = "concatenated",
        base: Annotated[float, Gt(1)] = 10000.0,
    ):
        super().__init__(site)
        if site.width < 2:
            raise UserError(
                f"scaled_sinusoidal needs a width of 2 or more (a sine and a cosine), got {site.width}"
            )
        self.layout: Layout = layout
        self.base = base
        self.scale = nn.Parameter(torch.empty(1))
        self.reset()

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        nn.init.constant_(parameter, self.site.width**-0.5)

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        waves = sinusoids(pos.index(), x.shape[-1], self.layout, self.base)
        if pos.unplaced is not None:
            waves = waves.masked_fill(pos.unplaced.unsqueeze(-1), 0.0)
        return x + self.scale.to(x.dtype) * waves.to(x.dtype)
