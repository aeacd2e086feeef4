"""How numbers that judge runs are read, and which of two is better."""

import json

import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.tasks.metrics import (
    METRICS,
    Metric,
    add_metric,
    bleu_tokenizer,
    checked_metrics,
    score_notes,
    vocabulary_note,
)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("exact_match", 0.99984, "99.98%"),
        ("exact_match", 1.0, "100.00%"),
        ("bleu", 41.199, "41.20"),
        ("chrf", 63.5, "63.50"),
        ("loss", 1.73205, "1.7321"),
        ("perplexity", 5.65, "5.650"),
        ("bits_per_character", 1.1, "1.1000"),
    ],
)
def test_a_value_as_a_person_reads_it(name, value, text):
    assert METRICS[name].text(value) == text


def test_a_difference_has_its_sign():
    assert METRICS["exact_match"].text(0.021, "+") == "+2.10%"
    assert METRICS["bleu"].text(-0.5, "+") == "-0.50"
    assert METRICS["loss"].text(0.25, "+") == "+0.2500"


@pytest.mark.parametrize(("name", "best"), [("exact_match", 1.0), ("bleu", 1.0), ("loss", 0.5), ("perplexity", 0.5)])
def test_which_is_better(name, best):
    worst = 1.5 - best
    metric = METRICS[name]
    assert metric.better(best, worst)
    assert not metric.better(worst, best)
    assert not metric.better(best, best), "a tie is no better"


def test_each_metric_is_found_by_its_name():
    assert all(metric.name == name for name, metric in METRICS.items())


MEAN_ERROR = Metric("mean_error", "mean error", higher=False)
RIGHT = Metric("right", "right answers", share=True)


def test_whole_numbers_and_tensors_become_floats():
    measured = {"mean_error": 3, "examples": 20, "mean_error_far": torch.tensor(0.5), "other": torch.tensor([2.0])}
    measured |= {"parts": {"digits": {"2": {"value": torch.tensor(1.5), "examples": 4}}}, "signature": "a"}
    checked = checked_metrics(measured, MEAN_ERROR)
    assert [type(checked[name]) for name in ("mean_error", "examples", "mean_error_far", "other")] == 4 * [float]
    assert json.loads(json.dumps(checked, allow_nan=False)) == checked


@pytest.mark.parametrize(
    ("metric", "measured", "message"),
    [
        (MEAN_ERROR, {"mean_error": float("nan"), "examples": 20.0}, "mean_error: expected a finite number, got nan"),
        (MEAN_ERROR, {"mean_error": None, "examples": 20.0}, "mean_error: expected a finite number, got None"),
        (
            MEAN_ERROR,
            {"mean_error": torch.ones(2), "examples": 20.0},
            "mean_error: expected a finite number, got tensor",
        ),
        (MEAN_ERROR, {"mean_error": 1.0, "examples": 20.0, "other": float("inf")}, "other: expected a finite number"),
        (MEAN_ERROR, {"mean_error": 1.0}, "expected 'examples' among the metrics of the task, got mean_error"),
        (MEAN_ERROR, {"error": 1.0, "examples": 20.0}, "expected 'mean_error' among the metrics"),
        (RIGHT, {"right": 85.0, "examples": 20.0}, "right: expected a share from 0 to 1, got 85"),
        (RIGHT, {"right": 1.0, "examples": 20.0, "right_far": -1}, "right_far: expected a share from 0 to 1, got -1"),
    ],
)
def test_what_is_no_metric_is_refused(metric, measured, message):
    with pytest.raises(UserError, match=message):
        checked_metrics(measured, metric)


def test_a_name_of_the_package_keeps_its_meaning():
    with pytest.raises(UserError, match=r"'accuracy': expected .* share=True and higher=True, got share=False"):
        add_metric(Metric("accuracy", "right answers in percent"))
    add_metric(Metric("accuracy", "right answers", share=True))
    assert METRICS["accuracy"].title == "accuracy"


@pytest.mark.parametrize("name", ["loss", "perplexity", "bits_per_character"])
def test_less_is_better(name):
    assert not METRICS[name].higher


@pytest.mark.parametrize("name", ["exact_match", "accuracy"])
def test_a_share_of_all_answers(name):
    assert METRICS[name].share
    assert METRICS[name].higher


@pytest.mark.parametrize(
    ("texts", "tokenizer"),
    [
        (["a dog runs .", "ein Hund"], "13a"),
        (["강아지가 달린다"], "13a"),
        (["собака бежит"], "13a"),
        (["的一是不了人我在", "有他这为之大来以"], "zh"),
        (["犬が走っている", "猫です"], "char"),
        (["หมาวิ่ง"], "char"),
        (["1 2 3"], "13a"),
    ],
)
def test_bleu_splits_words_by_script(texts: list[str], tokenizer: str) -> None:
    assert bleu_tokenizer(texts) == tokenizer


def test_notes_name_what_spoils_scores() -> None:
    assert score_notes({"bleu": 1.0, "unwritable": 0.0}) == []
    shares = {"training source": 0.0, "held-out target": 0.125}
    signature, unknown, unwritable = score_notes({"signature": "x", "unknown_tokens": shares, "unwritable": 0.5})
    assert signature == "sacreBLEU x"
    assert unknown == "unknown tokens: training source 0.00%, held-out target 12.50%"
    assert unwritable.startswith("50.00% of the held-out targets cannot be written with this vocabulary")
    assert score_notes({"steps": 100}) == []
    (short,) = score_notes({"steps": 11})
    assert "expected 100 steps or more to learn from, got 11; raise --examples or --epochs" in short


def test_means_per_token_of_different_vocabularies_are_not_compared() -> None:
    assert vocabulary_note(["a", None, "a"]) == []
    (note,) = vocabulary_note(["a", "b", None])
    assert "not compared" in note
