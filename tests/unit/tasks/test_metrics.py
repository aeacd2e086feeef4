"""How numbers that judge runs are read, and which of two is better."""

import pytest

from jarilab.tasks.metrics import METRICS, bleu_tokenizer, score_notes, vocabulary_note


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
