"""The rotation of Pixtral's vision encoder: *Pixtral 12B* (Agrawal et al. 2024), section 2.1, and its code."""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Gt, Le

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Site, registry
from jarilab.encodings.rotary.rotary import Pairing, by_angle, falling
from jarilab.encodings.rotary.rotary2d import PlaneRotation
from jarilab.positions.coordinates import Positions


@final
@registry.register("pixtral", "rotary2d_alternating")
class Pixtral(PlaneRotation):
    """Rotary on images in which rows and columns take turns among the frequencies of one series: rows have the first,
    third, fifth ..., columns the second, fourth ..., where each of rotary2d's axes has a series of its own. Pairs of
    rows come first among the components.

    base: slows the rotation; Pixtral's is 10000. fraction: the share of each head that is rotated, R = fraction * E.
    pairing: half as the transformers library has it, interleaved as Mistral's own weights have it.
    """

    def __init__(
        self,
        site: Site,
        *,
        base: Annotated[float, Gt(1)] = 10000.0,
        fraction: Annotated[float, Gt(0), Le(1)] = 1.0,
        pairing: Pairing = "half",
    ):
        super().__init__(site, "pixtral", fraction, pairing)
        self.base = base

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        frequency_F = falling(self.rotated, self.base, pos.coordinates.device)
        row, column = pos.plane().to(frequency_F.dtype).unsqueeze(-1).unbind(-2)
        angle_LF = torch.cat((row * frequency_F[0::2], column * frequency_F[1::2]), -1)
        return by_angle(pos, angle_LF, self.pairing)
