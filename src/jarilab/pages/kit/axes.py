"""Round numbers for the axes of drawings."""

from __future__ import annotations

import math

TICKS = 5

Number = int | float


def round_numbers(low: Number, high: Number) -> list[Number]:
    """A few round numbers between two: multiples of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [power * digit for digit in (1, 2, 5, 10)]
    step = next(step for step in steps if step >= rough)
    first = math.ceil(low / step)
    last = math.floor(high / step)
    return [number * step for number in range(first, last + 1)]
