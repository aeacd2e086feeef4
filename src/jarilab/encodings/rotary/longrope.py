"""LongRoPE: *Extending LLM Context Window Beyond 2 Million Tokens* (Ding et al. 2024), equation 3; Phi-3 and
Phi-4-mini."""

from __future__ import annotations

import math
from typing import Annotated, final

import torch
from annotated_types import Ge, Gt, Le

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.encodings.base import ASKED, Site, registry
from jarilab.encodings.numbers import length_read
from jarilab.encodings.rotary.rotary import Pairing, PairRotation, by_frequency, falling
from jarilab.positions.coordinates import Positions


@final
@registry.register("longrope", "rotary_longrope", "su")
class LongRope(PairRotation):
    """Rotary in which each pair is slowed by a number of its own, found by search: one list of them for texts up to the
    trained length, another for longer ones. Cosine and sine are also multiplied by a temperature.

    The length read so far decides, of each row. Whoever passes the trained length while writing turns all keys anew: a
    cache keeps them as they were before the rotation. Documents packed into one row count as long as the longest.

    short, long: what the pairs are slowed by, from the fastest on, `1/1.2/2.5/4`; a single number is for all pairs.
    trained_length: up to here `short` is used.
    factor: how many times as long the longest texts are; decides the temperature,
        `sqrt(1 + ln(factor) / ln(trained_length))`. attention_factor: the temperature itself, used as it is.
    base, fraction, pairing: as rotary's.
    """

    shift_invariant = False
    length_decides = True

    def __init__(
        self,
        site: Site,
        *,
        short: str = "1",
        long: str = "4",
        trained_length: Annotated[int, Ge(2)] = 4096,
        factor: Annotated[float, Ge(1)] = 4.0,
        attention_factor: Annotated[float, Gt(0)] | None = None,
        base: Annotated[float, Gt(1)] = 10000.0,
        fraction: Annotated[float, Gt(0), Le(1)] = 1.0,
        pairing: Pairing = "half",
    ):
        super().__init__(site, "longrope", fraction, pairing)
        self.short, self.long, self.trained_length = short, long, trained_length
        self.factor, self.attention_factor = factor, attention_factor
        self.base = base
        self.keeps_norms = self.temperature == 1
        self._slowed_short = _numbers("short", short, self.rotated // 2)
        self._slowed_long = _numbers("long", long, self.rotated // 2)

    @property
    def temperature(self) -> float:
        """What cosine and sine are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.trained_length))

    def rotation(self, pos: Positions, *, keys: Positions = ASKED) -> tuple[Tensor, Tensor]:
        plain_F = falling(self.rotated, self.base, pos.coordinates.device)
        short_F = torch.tensor(self._slowed_short, dtype=plain_F.dtype, device=plain_F.device)
        long_F = torch.tensor(self._slowed_long, dtype=plain_F.dtype, device=plain_F.device)
        is_long_B11 = length_read(keys) > self.trained_length
        slowed_B1F = torch.where(is_long_B11, long_F, short_F)
        return by_frequency(pos, plain_F / slowed_B1F, self.pairing, self.temperature)


def _numbers(option: str, text: str, pairs: int) -> list[float]:
    """One number for each pair. Raises UserError."""
    try:
        numbers = [float(number) for number in text.split("/")]
    except ValueError:
        raise UserError(
            f"longrope: {option}: expected numbers between slashes, 1/1.2/2.5/4, got {text!r}"
        ) from None
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise UserError(
            f"longrope: {option}: pairs are slowed by numbers above 0, got {text!r}; 1 slows nothing"
        )
    if len(numbers) not in (1, pairs):
        raise UserError(
            f"longrope: {option}: expected a number for each of the {pairs} pairs, or one for all, got {len(numbers)}; "
            f"write such as {option}={'/'.join(['1'] * pairs)}"
        )
    return numbers if len(numbers) == pairs else numbers * pairs
