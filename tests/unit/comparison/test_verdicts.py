"""What is said of a pair: the one verdict that the table, the page and the terminal show."""

import pytest

from jarilab.comparison.pairs import Pairs, compare_pairs, describe_pairs, pair_row
from jarilab.tasks.metrics import METRICS


def verdict_of(metric, **values):
    """The judged pair of two encodings."""
    metric = METRICS[metric]
    pairs = compare_pairs(values, 1000, share=metric.share)
    (row,) = pairs.differences
    return pair_row(row, metric, pairs.seeds)


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
    assert description["correction"] == (
        "15 pairs: all intervals hold together in 95 % of studies (Tukey's range over 3 paired seeds and 1,000 "
        "examples), so at most 5 % call any two equal encodings different."
    )
    assert description["power"] == (
        f"With 3 seeds and such noise, a true difference of {100 * description['seen']:.2f} percentage points would "
        "have been seen in four of five studies."
    )


def test_one_pair_of_another_metric():
    pairs = compare_pairs({"a": [20.0, 21.0], "b": [30.0, 30.5]}, 1000, share=False)
    description = describe_pairs(pairs, 1000, METRICS["bleu"])
    assert description["correction"].startswith(
        "1 pair: all intervals hold together in 95 % of studies (Tukey's range over 2"
    )
    assert "examples" not in description["correction"]
    assert f"a true difference of {description['seen']:.2f} would" in description["power"]


def test_one_seed_has_no_description():
    description = describe_pairs(Pairs([], 1, None), 1000, METRICS["exact_match"])
    assert description == {"count": 0, "seeds": 1, "seen": None, "correction": None, "power": None}
