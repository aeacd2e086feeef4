"""How far the seeds of a study may move the difference of two equal encodings.

Three seeds say little about their noise, so a difference must exceed all of these:

- the noise of all encodings together (Tukey 1953, in the two-way layout of encodings and seeds). Seeds of two encodings
  that happen to agree cannot make it small;
- the noise of its own two encodings (Games and Howell 1976) or of the loudest one, because some encodings scatter far
  more than others;
- the largest gap between two neighbouring seeds of one encoding. Where runs either learn a task or do not, all seeds of
  an encoding may agree by chance. Enough seeds settle it by their ranks alone (Mann and Whitney 1947).

`benchmarks/comparison_error.py` measures how often this calls equal encodings different.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from jarilab.comparison.statistics import LEVEL, student_quantile

# By simulation: the smallest round factors with which at most 5 % of studies with three seeds call equals different.
LOUDEST_FACTOR = 1.1
GAP_FACTOR = 1.2
SEED_EFFECT_LEVEL = 0.001
"""Effects of seeds on all encodings are removed from single encodings below this p-value (analysis of variance)."""
POWER = 0.8
STUDIES = 2000
"""Simulated studies from which `detectable_over_seeds` is computed."""


def seed_half_widths(numbers_ES: np.ndarray) -> np.ndarray:
    """Half-width of each pair's interval over seeds `(..., P)`.

    numbers_ES: values of E encodings and S seeds `(..., E, S)`. Pairs are in the order of `itertools.combinations`.
    """
    return np.maximum(noise_half_widths(numbers_ES), gap_half_widths(numbers_ES))


def noise_half_widths(numbers_ES: np.ndarray) -> np.ndarray:
    """Half-width of each pair from the common noise, and its own or the loudest encoding's `(..., P)`."""
    *_, encodings, seeds = numbers_ES.shape
    all_noise = math.sqrt(2 / seeds) * common_noise(numbers_ES)
    from_all = tukey_quantile(encodings, (encodings - 1) * (seeds - 1)) * all_noise
    loudest = without_seed_effects(numbers_ES).std(-1, ddof=1).max(-1) / math.sqrt(seeds)
    from_loudest = LOUDEST_FACTOR * student_quantile(seeds - 1) * loudest
    # Each of the two holds alone where encodings scatter unequally, so the smaller one is enough.
    unequal_P = np.minimum(from_loudest[..., None], _own_half_widths(numbers_ES))
    return np.maximum(from_all[..., None], unequal_P)


def _own_half_widths(numbers_ES: np.ndarray) -> np.ndarray:
    """Half-width of each pair from the noise of its two encodings alone (Games and Howell 1976) `(..., P)`."""
    *_, encodings, seeds = numbers_ES.shape
    first, second = np.triu_indices(encodings, 1)
    # Two encodings share their residuals, which leaves the degrees of freedom of a paired t-test.
    degrees_of_freedom = (seeds - 1) * (encodings - 1) / encodings
    variance_E = (_residuals(numbers_ES) ** 2).sum(-1) / degrees_of_freedom
    variance_P = variance_E[..., first] + variance_E[..., second]
    squares_P = variance_E[..., first] ** 2 + variance_E[..., second] ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom_P = degrees_of_freedom * variance_P**2 / squares_P  # Welch 1947
    freedom_P = np.nan_to_num(freedom_P, nan=degrees_of_freedom)
    grid = np.arange(max(1, int(degrees_of_freedom)), math.ceil(2 * degrees_of_freedom) + 1)
    quantiles = [tukey_quantile(encodings, freedom) for freedom in grid.tolist()]
    return np.interp(-1 / freedom_P, -1 / grid, quantiles) * np.sqrt(variance_P / seeds)


def gap_half_widths(numbers_ES: np.ndarray) -> np.ndarray:
    """Half-width of each pair from the largest gap between seeds; 0 for pairs that ranks tell apart `(..., P)`."""
    numbers_ES = without_seed_effects(numbers_ES)
    gap = seed_gaps(numbers_ES).max(-1)[..., None]
    return np.where(_are_apart(numbers_ES), 0.0, GAP_FACTOR * gap)


def seed_gaps(numbers_ES: np.ndarray) -> np.ndarray:
    """The largest gap between neighbouring seeds of each encoding `(..., E)`."""
    return np.diff(np.sort(numbers_ES, -1), axis=-1).max(-1)


def common_noise(numbers_ES: np.ndarray) -> np.ndarray:
    """Standard deviation of the residuals after removing encoding and seed effects `(...)`."""
    *_, encodings, seeds = numbers_ES.shape
    degrees_of_freedom = (encodings - 1) * (seeds - 1)
    return np.asarray(np.sqrt((_residuals(numbers_ES) ** 2).sum((-2, -1)) / degrees_of_freedom))


def without_seed_effects(numbers_ES: np.ndarray) -> np.ndarray:
    """The numbers without what each seed does to all encodings, if that is clear; else unchanged."""
    from scipy.special import fdtrc

    *_, encodings, seeds = numbers_ES.shape
    degrees_of_freedom = (encodings - 1) * (seeds - 1)
    seed_variance = encodings * numbers_ES.mean(-2).var(-1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = seed_variance / common_noise(numbers_ES) ** 2
    is_clear = fdtrc(seeds - 1, degrees_of_freedom, ratio) < SEED_EFFECT_LEVEL
    # The mean of all encodings holds a part of each one's own noise, which the factor gives back.
    own_ES = encodings / (encodings - 1) * _residuals(numbers_ES)
    own_ES += numbers_ES.mean(-1, keepdims=True)
    return np.where(is_clear[..., None, None], own_ES, numbers_ES)


def _residuals(numbers_ES: np.ndarray) -> np.ndarray:
    centred_ES = numbers_ES - numbers_ES.mean(-1, keepdims=True)
    return centred_ES - centred_ES.mean(-2, keepdims=True)


def _are_apart(numbers_ES: np.ndarray) -> np.ndarray:
    """Whether the ranks of their seeds tell the encodings of each pair apart `(..., P)`."""
    *_, encodings, seeds = numbers_ES.shape
    first, second = np.triu_indices(encodings, 1)
    first_PS1 = numbers_ES[..., first, :, None]
    second_P1S = numbers_ES[..., second, None, :]
    # Ties count against the difference.
    below = np.minimum(
        (first_PS1 <= second_P1S).sum((-2, -1)), (first_PS1 >= second_P1S).sum((-2, -1))
    )
    return below <= largest_rank_sum(seeds, len(first))


@lru_cache
def largest_rank_sum(seeds: int, pairs: int) -> int:
    """The largest U of Mann and Whitney that is significant at 5 %, corrected for all pairs; -1 if none is."""
    # ways_KU[k, u]: choices of k runs among those counted so far, by the others that precede them.
    ways_KU = np.zeros((seeds + 1, seeds * seeds + 1))
    ways_KU[0, 0] = 1
    for rank in range(2 * seeds):
        for chosen in range(min(rank + 1, seeds), max(0, rank - seeds), -1):
            before = rank - (chosen - 1)
            ways_KU[chosen, before:] += ways_KU[chosen - 1, : seeds * seeds + 1 - before]
    two_sided_U = 2 * np.cumsum(ways_KU[seeds]) / ways_KU[seeds].sum()
    return int((two_sided_U * pairs <= 1 - LEVEL).sum()) - 1


def seeds_that_settle(pairs: int) -> int:
    """The smallest number of seeds with which ranks alone can tell one of these pairs apart."""
    seeds = 2
    while largest_rank_sum(seeds, pairs) < 0:
        seeds += 1
    return seeds


@lru_cache
def tukey_quantile(encodings: int, degrees_of_freedom: int | float) -> float:
    """The 95 % quantile of the studentized range, divided by the root of 2.

    In 95 % of studies of equal encodings with a common variance, the largest t of all pairs is below it. For two
    encodings it is Student's t.
    """
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(LEVEL, encodings, degrees_of_freedom)) / math.sqrt(2)


@lru_cache
def detectable_over_seeds(encodings: int, seeds: int) -> float:
    """The difference, in standard deviations of a run, that a share `POWER` of studies detects, by simulation."""
    generator = np.random.default_rng(0)  # a report made again has the same number
    numbers_MES = generator.standard_normal((STUDIES, encodings, seeds))
    noise_M = noise_half_widths(numbers_MES)[:, 0]
    low, high = 0.0, 100.0
    while high - low > 0.01:  # bisection: ranks depend on the difference itself
        middle = (low + high) / 2
        numbers_MES[:, 0] += middle
        difference_M = numbers_MES[:, 0].mean(-1) - numbers_MES[:, 1].mean(-1)
        limit_M = np.maximum(noise_M, gap_half_widths(numbers_MES)[:, 0])
        numbers_MES[:, 0] -= middle
        low, high = (low, middle) if (difference_M > limit_M).mean() >= POWER else (middle, high)
    return high


# One encoding --------------------------------------------------------------------------------------------------------

BIMODAL_SHARE = 2 / 3
"""The part of their range from which on a gap divides the seeds of an encoding into two groups."""


def bimodal_half_width(numbers_ES: list[list[float]]) -> float:
    """The largest half-width of the means of encodings whose seeds fall into two groups; 0 without any.

    Seeds of another encoding may agree by chance, so no interval of a mean is narrower. numbers_ES: the seeds of each
    encoding, which may differ in number.
    """
    half_widths = [0.0]
    for seeds in filter(lambda values: len(values) > 1, numbers_ES):
        numbers_S = np.array(seeds)
        is_bimodal = len(seeds) > 2 and seed_gaps(numbers_S) >= BIMODAL_SHARE * np.ptp(numbers_S)
        if is_bimodal:
            quantile = student_quantile(len(seeds) - 1)
            half_widths.append(quantile * float(numbers_S.std(ddof=1)) / math.sqrt(len(seeds)))
    return max(half_widths)
