"""All pairs of encodings compared: paired over seeds, corrected for the number of pairs.

Of six equal encodings with three seeds, separate tests of each pair find a difference in every second study. Here all
intervals hold together in 95 % of studies. At most 5 % of studies then call any two equal encodings different. A
difference must exceed two noises of the seeds:

- the noise of all encodings together (Tukey 1953, in the two-way layout of encodings and seeds). Three seeds that
  happen to agree cannot make it small;
- the noise of its own two encodings, with their degrees of freedom alone. Some encodings scatter far more than others,
  and the common noise would be too small for them.

For shares, another sample of held-out examples is a third noise: Wilson's, squared and added.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from jarilab.comparison.statistics import LEVEL, wilson
from jarilab.tasks.metrics import Metric

POWER = 0.8
"""The share of studies that would find a difference of the size `Pairs.detectable`."""
STUDIES = 2000
"""Simulated studies from which that size is computed."""


@dataclass(frozen=True)
class Difference:
    """first - second, with the ends of its interval; None if they are unknown."""

    first: str
    second: str
    difference: float
    low: float | None = None
    high: float | None = None

    @property
    def ranked(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Pairs:
    """All pairs of a study.

    seeds: the number that every encoding has. detectable: the true difference that four of five studies with this noise
    would detect; None without intervals.
    """

    differences: list[Difference]
    seeds: int
    detectable: float | None


def compare_pairs(
    values: Mapping[str, Sequence[float]], held_out: int, *, share: bool = True
) -> Pairs:
    """Every pair of encodings, with intervals that hold together in 95 % of studies.

    values: for each encoding, one value a seed, with seeds in the same order. held_out: the number of examples that
    shares were measured on. There are no intervals with one seed, or if values that are no shares do not differ at all.
    """
    numbers_ES = np.array(list(values.values()), dtype=np.float64)
    encodings, seeds = numbers_ES.shape
    means = dict(zip(values, numbers_ES.mean(1).tolist(), strict=True))
    pairs = list(itertools.combinations(values, 2))
    if seeds < 2 or not pairs:
        differences = [Difference(a, b, means[a] - means[b]) for a, b in pairs]
        return Pairs(differences, seeds, None)
    half_widths = seed_half_widths(numbers_ES).tolist()
    differences, example_widths = [], [0.0]
    for (a, b), half_width in zip(pairs, half_widths, strict=True):
        below = above = 0.0
        if share:
            below, above = _example_widths(means[a], means[b], held_out, encodings)
            example_widths += [below, above]
        difference = means[a] - means[b]
        low = difference - math.hypot(half_width, below)
        high = difference + math.hypot(half_width, above)
        if share:  # two shares differ by 1 at most
            low, high = max(-1.0, low), min(1.0, high)
        interval = (low, high) if high > low else (None, None)
        differences.append(Difference(a, b, difference, *interval))
    has_interval = any(one.low is not None for one in differences)
    seed_difference = float(common_noise(numbers_ES)) * _detectable_over_seeds(encodings, seeds)
    detectable = math.hypot(seed_difference, max(example_widths)) if has_interval else None
    return Pairs(differences, seeds, detectable)


def seed_half_widths(numbers_ES: np.ndarray) -> np.ndarray:
    """Half-width of each pair's interval over seeds `(..., P)`.

    numbers_ES: values of E encodings and S seeds `(..., E, S)`. Pairs are in the order of `itertools.combinations`.
    """
    *_, encodings, seeds = numbers_ES.shape
    first, second = np.triu_indices(encodings, 1)
    pair_noise = (numbers_ES[..., first, :] - numbers_ES[..., second, :]).std(-1, ddof=1)
    all_noise = math.sqrt(2) * common_noise(numbers_ES)[..., None]
    width_from_all = tukey_quantile(encodings, (encodings - 1) * (seeds - 1)) * all_noise
    width_from_pair = tukey_quantile(encodings, seeds - 1) * pair_noise
    return np.maximum(width_from_all, width_from_pair) / math.sqrt(seeds)


def common_noise(numbers_ES: np.ndarray) -> np.ndarray:
    """Standard deviation of the residuals after removing encoding and seed effects `(...)`."""
    *_, encodings, seeds = numbers_ES.shape
    encoding_means = numbers_ES.mean(-1, keepdims=True)
    seed_means = numbers_ES.mean(-2, keepdims=True)
    residual_ES = numbers_ES - encoding_means - seed_means + encoding_means.mean(-2, keepdims=True)
    degrees_of_freedom = (encodings - 1) * (seeds - 1)
    return np.asarray(np.sqrt((residual_ES**2).sum((-2, -1)) / degrees_of_freedom))


def _example_widths(
    first: float, second: float, held_out: int, encodings: int
) -> tuple[float, float]:
    """How far another sample of examples may move the difference of two shares down and up (Newcombe 1998)."""
    # Its formula is for independent samples. The encodings share their examples, so the interval is wider than needed.
    z = tukey_quantile(encodings, math.inf)
    low_1, high_1 = wilson(first, held_out, z)
    low_2, high_2 = wilson(second, held_out, z)
    below = math.hypot(first - low_1, high_2 - second)
    above = math.hypot(high_1 - first, second - low_2)
    return below, above


@lru_cache
def tukey_quantile(encodings: int, degrees_of_freedom: int | float) -> float:
    """The 95 % quantile of the studentized range, divided by the root of 2.

    In 95 % of studies of equal encodings with a common variance, the largest t of all pairs is below it. For two
    encodings it is Student's t.
    """
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(LEVEL, encodings, degrees_of_freedom)) / math.sqrt(2)


@lru_cache
def _detectable_over_seeds(encodings: int, seeds: int) -> float:
    """The difference, in standard deviations of a run, that a share `POWER` of studies detects, by simulation."""
    generator = np.random.default_rng(0)  # a report made again has the same number
    numbers_MES = generator.standard_normal((STUDIES, encodings, seeds))
    means_ME = numbers_MES.mean(-1)
    noise_M = means_ME[:, 0] - means_ME[:, 1]
    detected_M = seed_half_widths(numbers_MES)[:, 0] - noise_M
    return float(np.quantile(detected_M, POWER))


# Verdicts ------------------------------------------------------------------------------------------------------------


def pair_row(difference: Difference, metric: Metric, seeds: int) -> dict[str, Any]:
    """A pair in the table. better: the better encoding, or None if the pair is not ranked."""
    better = None
    if difference.ranked:
        better = (
            difference.first if metric.better(difference.difference, 0.0) else difference.second
        )
    return {
        "first": difference.first,
        "second": difference.second,
        "difference": difference.difference,
        "low": difference.low,
        "high": difference.high,
        "better": better,
        "verdict": _verdict(difference, better, metric, seeds),
    }


def _verdict(difference: Difference, better: str | None, metric: Metric, seeds: int) -> str:
    if better is not None:
        return f"{better} is better"
    if difference.low is not None:
        noise = "seeds and examples" if metric.share else "the seeds"
        return f"below the noise of {noise}; not ranked"
    if seeds > 1:
        return "the seeds do not differ at all, so not ranked"
    return "one seed each, so not ranked: --seeds 5 would tell chance from encoding"


def describe_pairs(pairs: Pairs, held_out: int, metric: Metric) -> dict[str, Any]:
    """How all pairs were compared: their number, the seeds, the correction and the detectable difference."""
    return {
        "count": len(pairs.differences),
        "seeds": pairs.seeds,
        "seen": pairs.detectable,
        "correction": _correction(pairs, held_out, metric),
        "power": _power(pairs, metric),
    }


def _correction(pairs: Pairs, held_out: int, metric: Metric) -> str | None:
    if pairs.detectable is None:
        return None
    count = len(pairs.differences)
    counted = "1 pair" if count == 1 else f"{count:,} pairs"
    examples = f" and {held_out:,} examples" if metric.share else ""
    return (
        f"{counted}: all intervals hold together in 95 % of studies (Tukey's range over {pairs.seeds} paired seeds"
        f"{examples}), so at most 5 % call any two equal encodings different."
    )


def _power(pairs: Pairs, metric: Metric) -> str | None:
    if pairs.detectable is None:
        return None
    size = f"{pairs.detectable:.{metric.digits}f}"
    difference = f"a true difference of {size}"
    if metric.share:
        difference = f"a true difference of {100 * pairs.detectable:.2f} percentage points"
        if pairs.detectable >= 1:
            difference = "no true difference"
    return f"With {pairs.seeds} seeds and such noise, {difference} would have been seen in four of five studies."
