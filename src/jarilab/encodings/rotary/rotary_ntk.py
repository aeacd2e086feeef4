"""NTK-aware interpolation: bloc97's proposal of 2023, as *YaRN* (Peng et al. 2023), definition 1, writes it down."""

from __future__ import annotations

from typing import Annotated, final

from annotated_types import Ge, Gt, Le

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Site, registry
from jarilab.encodings.rotary.rotary import (
    Pairing,
    PairRotation,
    by_frequency,
    check_several_pairs,
    falling,
)
from jarilab.positions.coordinates import Positions


@final
@registry.register("rotary_ntk", "ntk", "ntk_aware")
class RotaryNtk(PairRotation):
    """Rotary with the base times `factor^(R / (R - 2))`: the slowest pair turns `factor` times slower and the fastest
    as ever, so that a longer text needs no new angle of slow pairs and near tokens stay as far apart as they were.

    factor: how many times as long texts are; 1 is plain rotary. base, fraction, pairing: as rotary's.
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
        super().__init__(site, "rotary_ntk", fraction, pairing)
        self.factor, self.base = factor, base
        check_several_pairs("rotary_ntk", site, self.rotated)

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        base = self.base * self.factor ** (self.rotated / (self.rotated - 2))
        frequency_F = falling(self.rotated, base, pos.coordinates.device)
        return by_frequency(pos, frequency_F, self.pairing)
