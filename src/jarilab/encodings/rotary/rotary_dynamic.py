"""Dynamic NTK: emozilla's proposal of 2023, as *YaRN* (Peng et al. 2023), section 3.3, and the transformers library
have it."""

from __future__ import annotations

from typing import Annotated, final

from annotated_types import Ge, Gt, Le

from jarilab.core.shapes import Tensor
from jarilab.encodings.base import ASKED, Site, registry
from jarilab.encodings.numbers import length_read
from jarilab.encodings.rotary.rotary import (
    Pairing,
    PairRotation,
    by_frequency,
    check_several_pairs,
    falling,
)
from jarilab.positions.coordinates import Positions


@final
@registry.register("rotary_dynamic", "dynamic_ntk", "dynamic")
class RotaryDynamic(PairRotation):
    """Plain rotary up to `trained_length`, and beyond it rotary_ntk by as much as the text is too long: the base times
    `(factor * n / trained_length - (factor - 1))^(R / (R - 2))`, n being the length read so far, of each row.

    Each token read beyond `trained_length` turns all keys anew: a cache keeps them as they were before the rotation.
    What was computed at an earlier step stays as it was, so that a text written token by token has other hidden states
    than the same text read at once. Documents packed into one row count as long as the longest of them.

    trained_length: up to here nothing changes. factor: how fast the base grows beyond it. base, fraction, pairing: as
        rotary's.
    """

    shift_invariant = False
    length_decides = True

    def __init__(
        self,
        site: Site,
        *,
        trained_length: Annotated[int, Ge(1)] = 2048,
        factor: Annotated[float, Ge(1)] = 1.0,
        base: Annotated[float, Gt(1)] = 10000.0,
        fraction: Annotated[float, Gt(0), Le(1)] = 1.0,
        pairing: Pairing = "half",
    ):
        super().__init__(site, "rotary_dynamic", fraction, pairing)
        self.trained_length, self.factor = trained_length, factor
        self.base = base
        check_several_pairs("rotary_dynamic", site, self.rotated)

    def rotation(self, pos: Positions, *, keys: Positions = ASKED) -> tuple[Tensor, Tensor]:
        longer_B11 = length_read(keys).clamp_min(self.trained_length) / self.trained_length
        stretch_B11 = self.factor * longer_B11 - (self.factor - 1)
        base_B11 = self.base * stretch_B11 ** (self.rotated / (self.rotated - 2))
        frequency_B1F = falling(self.rotated, base_B11, pos.coordinates.device)
        return by_frequency(pos, frequency_B1F, self.pairing)
