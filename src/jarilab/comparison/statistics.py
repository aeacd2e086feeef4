"""The mean over several seeds, with an interval for the noise of seeds and of examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its interval; None if they are unknown. how: what the interval covers."""

    mean: float
    low: float | None
    high: float | None
    how: str


def mean_interval(
    values: Sequence[float], held_out: int, *, share: bool = True, at_least: float = 0.0
) -> Interval:
    """The mean of several seeds with its 95 % interval.

    values: one for each seed. held_out: examples on which each was measured. share: whether values are shares from 0 to
    1. at_least: the smallest half-width over two or more seeds, from other encodings.

    Shares have Wilson's interval for the examples, combined with Student's t over two or more seeds (Newcombe 1998; Zou
    and Donner 2008). Other values have Student's t alone, and no interval if the seeds do not differ.
    """
    mean = fmean(values)
    half_width, student = None, "Student's t"
    if len(values) > 1:
        half_width = student_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
        if at_least > half_width * (1 + 1e-9):  # its own, summed in another order, is no reason
            half_width = at_least
            student += ", widened because the seeds of another encoding fall into two groups"
    if not share:
        if not half_width:
            reason = "one seed" if half_width is None else "equal seeds"
            return Interval(mean, None, None, f"not known from {reason}")
        how = f"95 % over {len(values)} seeds ({student})"
        return Interval(mean, mean - half_width, mean + half_width, how)
    if half_width is None:
        how = f"95 % for sampling {held_out:,} examples; one seed, so nothing about others"
    else:
        how = f"95 % over {len(values)} seeds ({student}) and {held_out:,} examples (Wilson)"
    # Once for all seeds: they share their examples, so another sample would move all of them together.
    low, high = wilson(mean, held_out)
    below = math.hypot(half_width or 0.0, mean - low)
    above = math.hypot(half_width or 0.0, high - mean)
    return Interval(mean, max(0.0, mean - below), min(1.0, mean + above), how)


def wilson(share: float, count: int, z: float | None = None) -> tuple[float, float]:
    """Wilson's score interval for a share of `count` trials (Wilson 1927).

    z: the normal quantile, that of 95 % by default.
    """
    # scipy's `binomtest(...).proportion_ci` takes whole hits only, and a share here may be a mean of shares.
    from scipy.special import ndtri  # scipy.stats takes four times as long to import

    if z is None:
        z = float(ndtri((1 + LEVEL) / 2))
    shrink = 1 + z * z / count
    middle = share + z * z / (2 * count)
    variance = share * (1 - share) / count + z * z / (4 * count * count)
    half = z * math.sqrt(variance)
    low, high = (middle - half) / shrink, (middle + half) / shrink
    # Rounding must not leave the share itself outside.
    return max(0.0, min(low, share)), min(1.0, max(high, share))


def student_quantile(degrees_of_freedom: int, level: float = LEVEL) -> float:
    """The t with `level` of Student's distribution between -t and t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, (1 + level) / 2))
