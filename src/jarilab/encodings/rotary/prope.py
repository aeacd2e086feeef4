"""p-RoPE: *Round and Round We Go! What makes Rotary Positional Encodings useful?* (Barbero et al. 2025), section 6."""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Gt, Le

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.rotary.rotary import Pairing, by_frequency, check_pairs, falling, turned
from jarilab.positions.coordinates import Positions


@final
@registry.register("prope", "p-rope", "p_rope", "proportional", "rotary_proportional")
class ProportionalRotary(Encoding):
    """Rotary whose slowest pairs do not turn at all, so that they can carry meaning over any distance. The others turn
    as they would among all: frequencies go by the head width, and pairs reach across all of it. That is not rotary's
    `fraction`, which pairs and spreads the frequencies within the part that is rotated.

    fraction: the share of the pairs that turn, p; the paper has 0.75, Gemma 4 has 0.25, 1 is plain rotary. base,
        pairing: as rotary's.
    """

    def __init__(
        self,
        site: Site,
        *,
        fraction: Annotated[float, Gt(0), Le(1)] = 0.75,
        base: Annotated[float, Gt(1)] = 10000.0,
        pairing: Pairing = "half",
    ):
        super().__init__(site)
        check_pairs("prope", site)
        self.fraction, self.base = fraction, base
        self.pairing: Pairing = pairing
        pairs = site.head_width // 2
        self.turning = int(fraction * site.head_width // 2)
        if self.turning == 0:
            raise UserError(
                f"prope turns a share of the {pairs} pairs of a head: fraction={fraction:g} is less than one of them; "
                f"use fraction={1 / pairs:g} or more"
            )

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        plain_F = falling(self.site.head_width, self.base, pos.coordinates.device)
        number_F = torch.arange(len(plain_F), device=plain_F.device)
        frequency_F = plain_F.masked_fill(number_F >= self.turning, 0.0)
        return by_frequency(pos, frequency_F, self.pairing)

    def rotate(
        self, x: Float[Tensor, "B H L E"], rotation: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "B H L E"]:
        return turned(x, rotation, self.site.head_width, self.pairing)
