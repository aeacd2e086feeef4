"""Position interpolation: *Extending Context Window of Large Language Models via Positional Interpolation* (Chen et al.
2023), equation 4."""

from __future__ import annotations

from typing import Annotated, final

from annotated_types import Ge, Gt, Le

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Site, registry
from jarilab.encodings.rotary.rotary import Pairing, PairRotation, by_frequency, falling
from jarilab.positions.coordinates import Positions


@final
@registry.register("rotary_linear", "linear_scaling", "position_interpolation")
class RotaryLinear(PairRotation):
    """Rotary at `place / factor`, so that a text `factor` times as long has no angle that training did not have.

    factor: how many times as long; 1 is plain rotary. base, fraction, pairing: as rotary's.
    """

    def __init__(
        self,
        site: Site,
        *,
        factor: Annotated[float, Ge(1)] = 4.0,
        base: Annotated[float, Gt(1)] = 10000.0,
        fraction: Annotated[float, Gt(0), Le(1)] = 1.0,
        pairing: Pairing = "half",
    ):
        super().__init__(site, "rotary_linear", fraction, pairing)
        self.factor, self.base = factor, base

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        plain_F = falling(self.rotated, self.base, pos.coordinates.device)
        return by_frequency(pos, plain_F / self.factor, self.pairing)
