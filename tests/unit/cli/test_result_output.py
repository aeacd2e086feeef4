"""Results as text for a terminal."""

import pytest

from jarilab.cli.result_output import _differences, metrics_text
from jarilab.tasks.metrics import METRICS


def test_each_number_is_formatted_by_its_metric():
    metrics = {
        "encoding": "rotary",
        "metric": "bleu",
        "examples": 500.0,
        "bleu": 31.25,
        "chrf": 55.0,
        "perplexity": 4.2,
    }
    metrics |= {"exact_match": 0.125, "signature": "nrefs:1", "best": {"step": 3, "bleu": 32.0}, "steps": 900}
    lines = [" ".join(line.split()) for line in metrics_text(metrics, "run").split("\n")]
    assert lines == [
        "run: rotary, 500 held-out examples",
        "exact match 12.50%",
        "BLEU 31.25",
        "chrF 55.00",
        "perplexity 4.200",
        "sacreBLEU nrefs:1",
        "best checkpoint 32.00 at step 3",
    ]


def test_long_metric_names_widen_the_column():
    metrics = {
        "encoding": "none",
        "metric": "exact_match",
        "examples": 5,
        "exact_match": 0.5,
        "loss": 1.0,
        "steps": 900,
    }
    text = metrics_text({**metrics, "exact_match_reconstructed": 0.25, "loss_of_ink": 2.0}, "run")
    _, *rows = text.split("\n")
    assert "  exact match reconstructed   25.00%" in rows
    assert "  loss of ink                 2.0000" in rows
    assert len({len(row) for row in rows}) == 1


def pair(better, verdict):
    row = {"first": "none", "second": "t5", "difference": 0.5, "low": None, "better": better, "verdict": verdict}
    return row | {"high": None}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([pair(None, "one seed")], ["none - t5: +50.00%: one seed"]),
        ([pair(None, "one seed")] * 3, ["none - t5: +50.00%"] * 3 + ["one seed"]),
        (
            [pair("t5", "t5 is better"), pair(None, "noise"), pair(None, "noise")],
            ["none - t5: +50.00%: t5 is better", *["none - t5: +50.00%"] * 2, "the other pairs: noise"],
        ),
        ([pair(None, "noise"), pair(None, "one seed")], ["none - t5: +50.00%: noise", "none - t5: +50.00%: one seed"]),
    ],
)
def test_a_reason_that_unranked_pairs_share_is_printed_once(rows, expected):
    assert _differences(rows, METRICS["exact_match"]) == expected
