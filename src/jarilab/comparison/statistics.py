"""Means with intervals, and differences paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

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
    if len(values) > 1:
        return _over_seeds(values, share)
    (value,) = values
    if not share:
        return Interval(value, None, None, "none: one seed, so nothing about others")
    how = f"95 % for sampling {held_out:,} examples; one seed, so nothing about others"
    return Interval(value, *wilson(value, held_out), how)


def _over_seeds(values: Sequence[float], share: bool) -> Interval:
    mean = fmean(values)
    half = _half_width(values)
    low, high = mean - half, mean + half
    if share:
        low, high = max(0.0, low), min(1.0, high)
    return Interval(mean, low, high, f"95 % over {len(values)} seeds (Student's t)")


def paired_difference(
    first: Sequence[float], second: Sequence[float]
) -> tuple[float, float] | None:
    """The ends of the 95 % interval (Student's t) of first - second, paired seed by seed; None for one seed."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if len(differences) < 2:
        return None
    mean = fmean(differences)
    half = _half_width(differences)
    return mean - half, mean + half


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's score interval for a share of `count` trials (Wilson 1927).

    scipy's `binomtest(...).proportion_ci` knows whole hits only; a share here may be a mean of shares.
    """
    from scipy.special import ndtri  # scipy.stats takes four times as long to import

    z = float(ndtri((1 + LEVEL) / 2))
    shrink = 1 + z * z / count
    middle = share + z * z / (2 * count)
    variance = share * (1 - share) / count + z * z / (4 * count * count)
    half = z * math.sqrt(variance)
    low, high = (middle - half) / shrink, (middle + half) / shrink
    return max(0.0, low), min(1.0, high)


def _half_width(values: Sequence[float]) -> float:
    mean = fmean(values)
    squares = [(value - mean) ** 2 for value in values]
    freedom = len(values) - 1
    variance = math.fsum(squares) / freedom
    return student_quantile(freedom) * math.sqrt(variance / len(values))


def student_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t with `level` of Student's distribution between -t and t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))
