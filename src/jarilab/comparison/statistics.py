"""Means with intervals, and differences paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its interval, None where nothing is known of them; how says what the interval covers."""

    mean: float
    low: float | None
    high: float | None
    how: str


def mean_interval(values: Sequence[float], held_out: int, *, share: bool = True) -> Interval:
    """The mean of several seeds with its 95 % interval.

    Two seeds or more: Student's t over the seeds, a share cut at 0 and 1. One seed: Wilson's interval for the share of
    `held_out` examples, which says how exactly this one model was measured and nothing about another seed; none for
    what is no share.
    """
    mean = math.fsum(values) / len(values)
    if len(values) > 1:
        low, high = mean - _half_width(values), mean + _half_width(values)
        how = f"95 % over {len(values)} seeds (Student's t)"
        return (
            Interval(mean, max(0.0, low), min(1.0, high), how)
            if share
            else Interval(mean, low, high, how)
        )
    if not share:
        return Interval(mean, None, None, "none: one seed, so nothing about others")
    low, high = wilson(mean, held_out)
    return Interval(
        mean,
        low,
        high,
        f"95 % for sampling {held_out:,} examples; one seed, so nothing about others",
    )


def paired_difference(
    first: Sequence[float], second: Sequence[float]
) -> tuple[float, float] | None:
    """The ends of the 95 % interval (Student's t) of first - second, paired seed by seed; None for one seed."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if len(differences) < 2:
        return None
    mean, half = math.fsum(differences) / len(differences), _half_width(differences)
    return mean - half, mean + half


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's score interval for a share of `count` trials (Wilson 1927)."""
    z = 1.959963984540054
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, (middle - half) / (1 + z * z / count)), min(
        1.0, (middle + half) / (1 + z * z / count)
    )


def _half_width(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    variance = math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)
    return student_quantile(len(values) - 1) * math.sqrt(variance / len(values))


def student_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t with `level` of Student's distribution between -t and t, by bisection on its integral."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(
        freedom * math.pi
    )

    def within(t: float) -> float:
        # The integral from 0 to t, over the angle with tan(angle) = t / sqrt(freedom): smooth, so Simpson is exact
        # to ten digits.
        end, pieces = math.atan(t / math.sqrt(freedom)), 400
        values = [math.cos(end * i / pieces) ** (freedom - 1) for i in range(pieces + 1)]
        total = (
            values[0] + values[-1] + 4 * math.fsum(values[1:-1:2]) + 2 * math.fsum(values[2:-1:2])
        )
        return 2 * scale * math.sqrt(freedom) * total * end / (3 * pieces)

    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < level else (low, middle)
    return (low + high) / 2
