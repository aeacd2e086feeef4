"""What is said of a pair: the one verdict that the table, the page and the terminal show."""

import pytest

from jarilab.comparison.pairs import Pairs, compare_pairs
from jarilab.comparison.verdicts import describe_pairs, pair_row
from jarilab.tasks.metrics import METRICS


def verdict_of(metric, **values):
    """The judged pair of two encodings."""
    metric = METRICS[metric]
    pairs = compare_pairs(values, 1000, share=metric.share)
    (found,) = pairs.differences
    return pair_row(found, metric, pairs.seeds)


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
    found = verdict_of("exact_match", a=a, b=b)
    assert found["verdict"] == verdict
    assert found["better"] == (verdict[0] if verdict.endswith("is better") else None)
    assert (found["first"], found["second"]) == ("a", "b")
    assert found["difference"] == pytest.approx(sum(a) / len(a) - sum(b) / len(b))
    if len(a) == 1:
        assert (found["low"], found["high"]) == (None, None)
    else:
        assert found["low"] < found["difference"] < found["high"]


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
def test_verdicts_go_by_what_is_better(metric, a, b, verdict):
    assert verdict_of(metric, a=a, b=b)["verdict"] == verdict


def test_the_number_of_pairs_and_the_power_are_said():
    values = {name: [0.5, 0.52, 0.51] for name in "abcdef"}
    values["f"] = [0.9, 0.91, 0.94]
    told = describe_pairs(compare_pairs(values, 1000), 1000, METRICS["exact_match"])
    assert (told["count"], told["seeds"]) == (15, 3)
    assert told["correction"] == (
        "15 pairs: all intervals hold together in 95 % of studies (Tukey's range over 3 paired seeds and 1,000 "
        "examples), so at most 5 % call any two equal encodings different."
    )
    assert told["power"] == (
        f"With 3 seeds and such noise, a true difference of {100 * told['seen']:.2f} percentage points would have been "
        "seen in four of five studies."
    )


def test_one_pair_of_what_is_no_share():
    pairs = compare_pairs({"a": [20.0, 21.0], "b": [30.0, 30.5]}, 1000, share=False)
    told = describe_pairs(pairs, 1000, METRICS["bleu"])
    assert told["correction"].startswith("1 pair: all intervals hold together in 95 % of studies (Tukey's range over 2")
    assert "examples" not in told["correction"]
    assert f"a true difference of {told['seen']:.2f} would" in told["power"]


def test_nothing_is_said_of_one_seed():
    told = describe_pairs(Pairs([], 1, None), 1000, METRICS["exact_match"])
    assert told == {"count": 0, "seeds": 1, "seen": None, "correction": None, "power": None}
