"""What is said of a pair: the one verdict that the table, the page and the terminal show."""

import numpy as np
import pytest

from jarilab.comparison.pairs import Bound, Pairs, compare_pairs, describe_pairs, pair_row
from jarilab.tasks.metrics import METRICS


def verdict_of(metric, **values):
    """The judged pair of two encodings."""
    metric = METRICS[metric]
    pairs = compare_pairs(values, 1000, share=metric.share)
    (row,) = pairs.differences
    return pair_row(row, metric, pairs)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([0.9, 0.92, 0.91], [0.1, 0.12, 0.1], "a is better"),
        ([0.1, 0.12, 0.1], [0.9, 0.92, 0.91], "b is better"),
        ([0.5, 0.9, 0.1], [0.4, 0.2, 0.8], "below the noise of seeds and examples; not ranked"),
        ([0.5, 0.5], [0.5, 0.5], "below the noise of seeds and examples; not ranked"),
        ([0.501] * 3, [0.5] * 3, "below the noise of seeds and examples; not ranked"),
        ([0.99], [0.01], "one seed each, so not ranked: --seeds 5 would tell chance from encoding"),
    ],
)
def test_verdicts(a, b, verdict):
    row = verdict_of("exact_match", a=a, b=b)
    assert row["verdict"] == verdict
    assert row["better"] == (verdict[0] if verdict.endswith("is better") else None)
    assert (row["first"], row["second"]) == ("a", "b")
    assert row["difference"] == pytest.approx(sum(a) / len(a) - sum(b) / len(b))
    if len(a) == 1:
        assert (row["low"], row["high"]) == (None, None)
    else:
        assert row["low"] < row["difference"] < row["high"]


@pytest.mark.parametrize(
    ("metric", "a", "b", "verdict"),
    [
        ("bleu", [30.1, 30.6, 30.3], [20.0, 20.6, 20.1], "a is better"),
        ("bleu", [20.0, 20.6, 20.1], [30.1, 30.6, 30.3], "b is better"),
        ("loss", [1.50, 1.52, 1.51], [1.40, 1.43, 1.42], "b is better"),
        ("loss", [1.40, 1.43, 1.42], [1.50, 1.52, 1.51], "a is better"),
        ("loss", [1.4, 1.9, 1.6], [1.5, 1.3, 1.8], "below the noise of the seeds; not ranked"),
        ("loss", [1.5, 1.5], [1.4, 1.4], "the seeds do not differ at all, so not ranked"),
    ],
)
def test_verdicts_follow_the_direction_of_the_metric(metric, a, b, verdict):
    assert verdict_of(metric, a=a, b=b)["verdict"] == verdict


def test_the_number_of_pairs_and_the_power_are_described():
    values = {name: [0.5, 0.52, 0.51] for name in "abcdef"}
    values["f"] = [0.9, 0.91, 0.94]
    description = describe_pairs(compare_pairs(values, 1000), 1000, METRICS["exact_match"])
    assert (description["count"], description["seeds"]) == (15, 3)
    correction = description["correction"]
    for part in ("15 pairs", "3 paired seeds", "1,000 examples", "independent", "5 % of simulated studies"):
        assert part in correction
    assert description["power"] == (
        f"With 3 seeds and such noise, a true difference of {100 * description['seen']:.2f} percentage points would "
        "have been seen in four of five studies."
    )


def test_one_pair_of_another_metric():
    pairs = compare_pairs({"a": [20.0, 21.0], "b": [30.0, 30.5]}, 1000, share=False)
    description = describe_pairs(pairs, 1000, METRICS["bleu"])
    assert description["correction"].startswith("1 pair, corrected together over 2 paired seeds,")
    assert "without the noise of examples" in description["correction"]
    assert f"a true difference of {description['seen']:.2f} would" in description["power"]


def test_one_seed_has_no_description():
    description = describe_pairs(Pairs([], 1, None), 1000, METRICS["exact_match"])
    assert description == {
        "count": 0, "seeds": 1, "missing": {}, "seen": None, "outcomes": False, "correction": None, "power": None,
    }  # fmt: skip


def test_pairs_over_examples_are_described():
    outcomes = {"a": np.eye(4)[:2], "b": np.eye(4)[2:]}
    pairs = compare_pairs({"a": [0.25, 0.25], "b": [0.25, 0.25]}, 4, outcomes=outcomes)
    description = describe_pairs(pairs, 4, METRICS["exact_match"])
    assert description["outcomes"]
    assert "2 paired seeds and 4 paired examples." in description["correction"]
    assert "independent" not in description["correction"]
    pairs = compare_pairs({"a": [0.25, 0.26], "b": [0.25, 0.24]}, 4, share=False, outcomes=outcomes)
    assert pair_row(pairs.differences[0], METRICS["loss"], pairs)["verdict"].startswith(
        "below the noise of seeds and examples"
    )


VALUES = {"none": [0.0274], "rotary": [0.9995], "alibi": [0.0431]}


def decided(values, limit, held_out=40_000, blind="none"):
    """The better encoding of each pair, and the limit that decided it."""
    metric = METRICS["exact_match"]
    pairs = compare_pairs(values, held_out)
    bound = Bound.of(blind, limit, values, held_out)
    rows = [pair_row(one, metric, pairs, bound) for one in pairs.differences]
    return {(row["first"], row["second"]): (row["better"], row["limit"], row["verdict"]) for row in rows}


def test_the_upper_bound_decides_without_a_second_seed():
    rows = decided(VALUES, 0.0433)
    better, limit, verdict = rows["none", "rotary"]
    assert (better, limit) == ("rotary", 0.0433)
    assert "above 4.33%" in verdict
    assert "upper bound" in verdict
    for pair in (("none", "alibi"), ("rotary", "alibi")):
        assert rows[pair][:2] == (None, None)
        assert "one seed each" in rows[pair][2]


def test_the_upper_bound_decides_where_seeds_scatter():
    values = {"none": [0.02, 0.03, 0.02], "rotary": [0.98, 0.99, 0.98], "alibi": [0.03, 0.99, 0.98]}
    rows = decided(values, 0.0433)
    assert rows["none", "rotary"][0] == "rotary"
    assert rows["none", "alibi"][0] is None, "one of its seeds has not passed the bound"
    # What the intervals rank needs no bound.
    values = {"none": [0.02, 0.03, 0.02], "rotary": [0.98, 0.99, 0.98]}
    assert decided(values, 0.0433)["none", "rotary"][1] is None


def test_a_bound_that_its_own_encoding_passes_decides_nothing():
    assert Bound.of("none", 0.0433, {"none": [0.06], "rotary": [0.99]}, 40_000) is None
    assert decided(VALUES | {"none": [0.06]}, 0.0433)["none", "rotary"][0] is None
    # A few examples above it are chance.
    assert decided(VALUES | {"none": [0.045]}, 0.0433)["none", "rotary"][0] == "rotary"
    assert decided(VALUES | {"rotary": [0.06]}, 0.0433, held_out=100)["none", "rotary"][0] is None


def test_seeds_far_apart_are_named():
    values = {name: [0.98, 0.99, 0.98, 0.99, 0.98] for name in "bdefg"}
    values |= {"a": [0.02, 0.03, 0.02, 0.03, 0.02], "c": [0.98, 0.99, 0.98, 0.99, 0.03]}
    pairs = compare_pairs(values, 10**9)
    rows = [pair_row(one, METRICS["exact_match"], pairs) for one in pairs.differences]
    row = next(row for row in rows if (row["first"], row["second"]) == ("b", "a"))
    assert row["better"] is None
    assert row["scattered"] == {"encoding": "c", "gap": pytest.approx(0.95), "seeds": 6}
    for part in ("seeds of c", "95.00 points apart", "not ranked", "--seeds 6"):
        assert part in row["verdict"]
