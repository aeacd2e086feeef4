"""All pairs of encodings compared: paired over seeds and held-out examples, corrected for the number of pairs.

Of six equal encodings with three seeds, separate tests of each pair find a difference in every second study. Here all
intervals are corrected together. A difference has two noises, squared and added:

- of seeds, see `jarilab.comparison.seed_noise`;
- of held-out examples. All encodings are measured on the same ones, so what makes an example hard for all of them
  cancels. What remains is the covariance of two seeds' differences over examples: the interaction of encodings and
  examples in a model with crossed random effects of seeds and examples. Without outcomes of single examples, the
  examples of two shares are taken as independent (Newcombe 1998), which is far wider.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jarilab.comparison.seed_noise import (
    common_noise,
    detectable_over_seeds,
    gap_half_widths,
    noise_half_widths,
    seed_gaps,
    seeds_that_settle,
    tukey_quantile,
    without_seed_effects,
)
from jarilab.comparison.statistics import wilson
from jarilab.core.errors import counted
from jarilab.tasks.metrics import Metric

Outcomes = Mapping[str, np.ndarray]
"""For each encoding the outcome of each held-out example `(S, N)`; their mean is the value of a seed."""


@dataclass(frozen=True)
class Difference:
    """first - second, with the ends of its interval; None if they are unknown.

    scattered: the encoding whose seeds lie so far apart that the pair is not ranked, and their gap; None for others.
    """

    first: str
    second: str
    difference: float
    low: float | None = None
    high: float | None = None
    scattered: tuple[str, float] | None = None

    @property
    def ranked(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Pairs:
    """All pairs of a study.

    seeds: the number that every encoding has. detectable: the true difference that four of five studies with this noise
    would detect; None without intervals. has_outcomes: whether they are paired over examples. missing: the number of
    seeds that an encoding lacks and another has, for each such encoding.
    """

    differences: list[Difference]
    seeds: int
    detectable: float | None
    has_outcomes: bool = False
    missing: Mapping[str, int] = field(default_factory=dict)


def compare_pairs(
    values: Mapping[str, Sequence[float]],
    held_out: int,
    *,
    share: bool = True,
    outcomes: Outcomes | None = None,
) -> Pairs:
    """Every pair of encodings, with intervals corrected for all pairs.

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
    half_widths = zip(
        noise_half_widths(numbers_ES).tolist(), gap_half_widths(numbers_ES).tolist(), strict=True
    )
    gaps_E = seed_gaps(without_seed_effects(numbers_ES))
    widest = (list(values)[int(gaps_E.argmax())], float(gaps_E.max()))
    differences, example_widths = [], [0.0]
    for (a, b), (noise, gap) in zip(pairs, half_widths, strict=True):
        below = above = 0.0
        if outcomes is not None:
            below = above = _shared_example_width(outcomes[a] - outcomes[b], encodings, share)
        elif share:
            below, above = _example_widths(means[a], means[b], held_out, encodings)
        example_widths += [below, above]
        one = _interval(a, b, means[a] - means[b], max(noise, gap), below, above, share)
        if not one.ranked and _interval(a, b, one.difference, noise, below, above, share).ranked:
            one = replace(one, scattered=widest)
        differences.append(one)
    has_interval = any(one.low is not None for one in differences)
    seed_difference = float(common_noise(numbers_ES)) * detectable_over_seeds(encodings, seeds)
    detectable = math.hypot(seed_difference, max(example_widths)) if has_interval else None
    return Pairs(differences, seeds, detectable, outcomes is not None)


def _interval(
    first: str,
    second: str,
    difference: float,
    half_width: float,
    below: float,
    above: float,
    share: bool,
) -> Difference:
    """The pair with its interval. half_width: over seeds; below, above: over examples."""
    low = difference - math.hypot(half_width, below)
    high = difference + math.hypot(half_width, above)
    if share:  # two shares differ by 1 at most
        low, high = max(-1.0, low), min(1.0, high)
    if high <= low:
        return Difference(first, second, difference)
    return Difference(first, second, difference, low, high)


def _shared_example_width(difference_SN: np.ndarray, encodings: int, share: bool) -> float:
    """How far another sample of shared examples may move a difference, beyond what seeds do."""
    seeds, examples = difference_SN.shape
    of_means = float(difference_SN.mean(0).var(ddof=1))
    of_seeds = float(difference_SN.var(1, ddof=1).mean())
    # The mean covariance of two different seeds. The rest of the variance is in the noise of seeds already.
    covariance = max(0.0, (seeds * of_means - of_seeds) / (seeds - 1))
    # One more example in favour of each encoding (Agresti and Min 2005): no difference in a sample does not mean none.
    additional = 2.0 if share else 0.0
    variance = (examples * covariance + additional) / examples**2
    return tukey_quantile(encodings, examples - 1) * math.sqrt(variance)


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


# Verdicts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """The upper bound of an encoding without positions. above: the encodings whose seeds all pass it."""

    encoding: str
    limit: float
    above: frozenset[str]

    @staticmethod
    def of(
        encoding: str, limit: float, values: Mapping[str, Sequence[float]], held_out: int
    ) -> Bound | None:
        """The bound of `encoding`; None if it passes the bound itself.

        values: the seeds of each encoding. A seed passes if Wilson's interval of its examples, corrected for all pairs,
        lies above the limit. No second seed is needed, since the bound holds for every seed of the other encoding.
        """
        z = tukey_quantile(max(2, len(values)), math.inf)
        passing = [
            name for name, seeds in values.items() if wilson(min(seeds), held_out, z)[0] > limit
        ]
        return None if encoding in passing else Bound(encoding, limit, frozenset(passing))

    def better(self, difference: Difference) -> str | None:
        """The encoding of a pair that passes the bound of the other one; None if there is none."""
        if self.encoding not in (difference.first, difference.second):
            return None
        is_first = difference.first == self.encoding
        other = difference.second if is_first else difference.first
        return other if other in self.above else None


def pair_row(
    difference: Difference, metric: Metric, pairs: Pairs, bound: Bound | None = None
) -> dict[str, Any]:
    """A pair in the table.

    better: the better encoding, or None if the pair is not ranked. limit: the bound that decided it alone. scattered:
    the encoding whose seeds keep the pair from being ranked, their gap, and the number of seeds that would settle it.
    """
    better = limit = scattered = None
    if difference.ranked:
        is_better = metric.better(difference.difference, 0.0)
        better = difference.first if is_better else difference.second
    elif bound is not None and (better := bound.better(difference)):
        limit = bound.limit
    elif difference.scattered is not None:
        encoding, gap = difference.scattered
        enough = seeds_that_settle(len(pairs.differences))
        scattered = {"encoding": encoding, "gap": gap, "seeds": enough}
    row = {
        "first": difference.first,
        "second": difference.second,
        "difference": difference.difference,
        "low": difference.low,
        "high": difference.high,
        "better": better,
        "limit": limit,
        "scattered": scattered,
    }
    return {**row, "verdict": _verdict(row, metric, pairs)}


def _verdict(row: Mapping[str, Any], metric: Metric, pairs: Pairs) -> str:
    if row["limit"] is not None:
        limit = metric.text(row["limit"])
        return f"{row['better']} is better: above {limit}, the upper bound without positions"
    if row["better"] is not None:
        return f"{row['better']} is better"
    if row["scattered"] is not None:
        return _scattered_verdict(row["scattered"], metric, pairs.seeds)
    if row["low"] is not None:
        has_examples = metric.share or pairs.has_outcomes
        noise = "seeds and examples" if has_examples else "the seeds"
        return f"below the noise of {noise}; not ranked"
    if pairs.seeds > 1:
        return "the seeds do not differ at all, so not ranked"
    if pairs.missing:
        lacks = ", ".join(
            f"{name} lacks {counted(n, 'seeds')}" for name, n in pairs.missing.items()
        )
        return f"one seed in common, so not ranked: {lacks}; compare again to train them"
    return "one seed each, so not ranked: --seeds 5 would tell chance from encoding"


def _scattered_verdict(scattered: Mapping[str, Any], metric: Metric, seeds: int) -> str:
    gap = f"{100 * scattered['gap']:.2f} points" if metric.share else metric.text(scattered["gap"])
    text = f"seeds of {scattered['encoding']} lie {gap} apart, so not ranked"
    more = f": --seeds {scattered['seeds']} may settle it"
    return text + more if scattered["seeds"] > seeds else text


def describe_pairs(pairs: Pairs, held_out: int, metric: Metric) -> dict[str, Any]:
    """How all pairs were compared: their number, the seeds, the correction and the detectable difference."""
    return {
        "count": len(pairs.differences),
        "seeds": pairs.seeds,
        "missing": dict(pairs.missing),
        "seen": pairs.detectable,
        "outcomes": pairs.has_outcomes,
        "correction": _correction(pairs, held_out, metric),
        "power": _power(pairs, metric),
    }


def _correction(pairs: Pairs, held_out: int, metric: Metric) -> str | None:
    if pairs.detectable is None:
        return None
    pairs_text = counted(len(pairs.differences), "pairs")
    examples = f" and {held_out:,} paired examples"
    if not pairs.has_outcomes:
        taken = f" and {held_out:,} examples, taken as independent"
        ignored = ", without the noise of examples"
        examples = (taken if metric.share else ignored) + ": single outcomes were not kept"
    return (
        f"{pairs_text}, corrected together over {pairs.seeds} paired seeds{examples}. At most 5 % of simulated studies "
        "call two encodings different whose runs are distributed alike."
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
