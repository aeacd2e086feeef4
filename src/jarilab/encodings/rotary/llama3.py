"""Llama 3.1's rotary: *The Llama 3 Herd of Models* (Grattafiori et al. 2024) and `apply_scaling` of its code."""

from __future__ import annotations

import math
from typing import Annotated, final

from annotated_types import Ge, Gt, Le

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Site, registry
from jarilab.encodings.rotary.rotary import Pairing, PairRotation, by_frequency, falling
from jarilab.positions.coordinates import Positions


@final
@registry.register("llama3", "rotary_llama3", "llama3.1")
class Llama3(PairRotation):
    """Rotary in which pairs that turn more than `high_frequency_factor` times within the trained length stay as they
    are, those that turn less than `low_frequency_factor` times are slowed by `factor`, and those between in part.

    factor: how many times as long texts are; 1 is plain rotary. trained_length: what the model was trained with.
    low_frequency_factor, high_frequency_factor: turns within it, as above. base: Llama 3's is 500000. fraction,
        pairing: as rotary's.
    """

    def __init__(
        self,
        site: Site,
        *,
        factor: Annotated[float, Ge(1)] = 8.0,
        trained_length: Annotated[int, Ge(1)] = 8192,
        low_frequency_factor: Annotated[float, Gt(0)] = 1.0,
        high_frequency_factor: Annotated[float, Gt(0)] = 4.0,
        base: Annotated[float, Gt(1)] = 500000.0,
        fraction: Annotated[float, Gt(0), Le(1)] = 1.0,
        pairing: Pairing = "half",
    ):
        super().__init__(site, "llama3", fraction, pairing)
        if low_frequency_factor >= high_frequency_factor:
            raise UserError(
                "llama3 slows the pairs that turn seldom: expected low_frequency_factor below high_frequency_factor, "
                f"got {low_frequency_factor:g} and {high_frequency_factor:g}; Llama 3.1 has 1 and 4"
            )
        self.factor, self.trained_length = factor, trained_length
        self.low_frequency_factor = low_frequency_factor
        self.high_frequency_factor = high_frequency_factor
        self.base = base

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        plain_F = falling(self.rotated, self.base, pos.coordinates.device)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        turns_F = self.trained_length * plain_F / (2 * math.pi)
        slowed_F = ((high - turns_F) / (high - low)).clamp(0, 1)
        frequency_F = plain_F * (1 - slowed_F * (1 - 1 / self.factor))
        return by_frequency(pos, frequency_F, self.pairing)
