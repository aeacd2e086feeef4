"""YaRN: *Efficient Context Window Extension of Large Language Models* (Peng et al. 2023), definition 3, and code."""

from __future__ import annotations

import math
from typing import Annotated, final

import torch
from annotated_types import Ge, Gt, Le

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import Site, registry
from jarilab.encodings.rotary.rotary import Pairing, PairRotation, by_frequency, falling
from jarilab.positions.coordinates import Positions


@final
@registry.register("yarn", "rotary_yarn")
class Yarn(PairRotation):
    """Rotary in which pairs that turn often within the trained length stay as they are, pairs that do not turn once are
    slowed by `factor`, and those between are slowed in part; cosine and sine are also multiplied by a temperature, so
    that scores of long texts grow.

    factor: how many times as long texts are; 1 is plain rotary. trained_length: what the model was trained with.
    fast_turns: a pair that turns this often within it is left alone; the paper's beta. slow_turns: one that turns so
        often or less is slowed by all of `factor`; the paper's alpha.
    attention_factor: the temperature, used as it is; by default 0.1 ln(factor) + 1. It multiplies queries and keys, so
        that scores have its square.
    truncate: the pairs where slowing begins and ends are rounded to whole ones; gpt-oss does not. base, fraction,
        pairing: as rotary's.
    """

    def __init__(
        self,
        site: Site,
        *,
        factor: Annotated[float, Ge(1)] = 4.0,
        trained_length: Annotated[int, Ge(1)] = 4096,
        fast_turns: Annotated[float, Gt(0)] = 32.0,
        slow_turns: Annotated[float, Gt(0)] = 1.0,
        attention_factor: Annotated[float, Gt(0)] | None = None,
        truncate: bool = True,
        base: Annotated[float, Gt(1)] = 10000.0,
        fraction: Annotated[float, Gt(0), Le(1)] = 1.0,
        pairing: Pairing = "half",
    ):
        super().__init__(site, "yarn", fraction, pairing)
        if slow_turns >= fast_turns:
            raise UserError(
                f"yarn slows the pairs that turn seldom: expected slow_turns below fast_turns, got {slow_turns:g} and "
                f"{fast_turns:g}; the paper has slow_turns=1,fast_turns=32"
            )
        self.factor, self.trained_length = factor, trained_length
        self.fast_turns, self.slow_turns = fast_turns, slow_turns
        self.attention_factor, self.truncate = attention_factor, truncate
        self.base = base
        self.keeps_norms = self.temperature == 1

    @property
    def temperature(self) -> float:
        """What cosine and sine are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        plain_F = falling(self.rotated, self.base, pos.coordinates.device)
        begin, end = self._slowed()
        number_F = torch.arange(len(plain_F), device=plain_F.device, dtype=plain_F.dtype)
        slowed_F = ((number_F - begin) / (end - begin)).clamp(0, 1)
        frequency_F = plain_F * (1 - slowed_F * (1 - 1 / self.factor))
        return by_frequency(pos, frequency_F, self.pairing, self.temperature)

    def _slowed(self) -> tuple[float, float]:
        """The numbers of the pair that is slowed first and of the first that is slowed by all of `factor`. The authors'
        code interpolates between these, where the paper does so between numbers of turns."""
        begin, end = self._pair_with(self.fast_turns), self._pair_with(self.slow_turns)
        if self.truncate:
            begin, end = math.floor(begin), math.ceil(end)
        begin, end = max(float(begin), 0.0), min(float(end), self.rotated - 1.0)
        return begin, end if end != begin else begin + 0.001  # as the authors avoid dividing by 0

    def _pair_with(self, turns: float) -> float:
        """The number of the pair that turns so often within the trained length; the fastest has number 0."""
        wavelength = self.trained_length / turns
        return self.rotated * math.log(wavelength / (2 * math.pi)) / (2 * math.log(self.base))
