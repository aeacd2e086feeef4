"""Verdicts on pairs of encodings: which one is better, or that the pair is not ranked."""

from __future__ import annotations

from typing import Any

from jarilab.comparison.pairs import Difference, Pairs
from jarilab.tasks.metrics import Metric


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
