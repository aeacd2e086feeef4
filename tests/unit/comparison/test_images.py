"""A report of runs that see: its examples are drawn, with the class they have and those they were given."""

from pathlib import Path
from typing import Any

import numpy
import pytest

import jarilab
from helpers.browser import READ_CANVAS, Pages, assert_count, assert_cover, image_pixels
from jarilab.comparison.examples import blind_of, example_of, lead_example, weights_of
from jarilab.comparison.report import render
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.runs.folder import read_experiment, read_run
from jarilab.tasks.base import Task

pytestmark = pytest.mark.browser

NAMES = ["none", "rotary2d"]


@pytest.fixture(scope="module")
def payload(image_runs: Path) -> dict[str, Any]:
    trials = [(read_experiment(read_run(image_runs / name), image_runs / name), image_runs / name) for name in NAMES]
    task: Task = jarilab.load(image_runs / "none").task
    examples = [example_of(task, line, trials) for line in ("#0", "#1")]
    metric = {"name": "accuracy", "title": "accuracy", "higher": True, "share": True, "digits": 2}
    made = {
        "title": "digits",
        "model": "vit",
        "task": {"name": "digits", "sentence": "", "metric": metric, "held_out": 360, "ceiling": None},
    }
    made |= {
        "tones": {"none": 6, "rotary2d": 4},
        "examples": examples,
        "what_ran": {},
        "summary": [],
        "trials": [],
        "differences": [],
    }
    return made | {"blind": blind_of(examples), "opening": lead_example(examples, NAMES)}


def test_examples_show_image_expected_and_actual_answer(pages: Pages, payload: dict[str, Any]) -> None:
    page = pages.open(render(payload), "#why")
    cards = page.locator(".gallery button")
    assert_count(cards, 2)
    for card, example in zip(cards.all(), payload["examples"], strict=True):
        rows, columns, numbers = card.locator("canvas").evaluate(READ_CANVAS)
        shown = numpy.array(numbers).reshape(rows, columns, 4)[..., 0]
        assert shown.tolist() == unpacked(example["image"]["pixels"])[..., 0].tolist()
        words = card.text_content()
        assert f"{example['input']} · expected {example['expected']}" in words
        for model in example["models"]:
            assert f"{model['encoding']} {model['answer']} {'✓' if model['correct'] else '✗'}" in words
    cards.nth(1).click()
    assert cards.nth(1).get_attribute("aria-pressed") == "true"


def test_the_hero_shows_the_image_with_the_framed_row_over_it(pages: Pages, payload: dict[str, Any]) -> None:
    page = pages.open(render(payload), "#hero .field", width=1440)
    opening = payload["opening"]
    example = payload["examples"][opening["example"]]
    better = example["models"][opening["models"][-1]]
    site = next(site for site in better["sites"] if site["name"] == opening["site"])
    row = weights_of(site, opening["head"])[opening["query"]]
    assert_cover(page.locator("#hero .pane").last, (row / row.max()).reshape(4, 4))
    assert image_pixels(page.locator("#hero .pane").last, "pixels").shape == (8, 8, 4)
    field, board = (page.locator(f"#hero {name}").last.bounding_box() for name in (".image-field", ".field"))
    assert field["x"] > board["x"] + board["width"], "beside the map"
    assert field["y"] + field["height"] < 900, "on the first screen"


def test_the_image_next_to_a_large_map_follows_the_cell(pages: Pages, payload: dict[str, Any]) -> None:
    page = pages.open(render(payload), "#large .field")
    page.locator("#large .field").first.focus()
    page.keyboard.press("ArrowDown")
    area = page.locator("#large .image-field").first.bounding_box()
    mark = page.locator("#large .image-field .patch.query").first.bounding_box()
    assert (mark["x"] - area["x"]) / area["width"] == pytest.approx(0.25, abs=0.02), "the second patch of four in a row"
    assert mark["y"] - area["y"] < 4


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_a_narrow_report_stays_narrow_in_both_languages(pages: Pages, payload: dict[str, Any], scheme: str) -> None:
    for language, words in (("en", "expected"), ("ko", "정답")):
        page = pages.open(render(payload), "#why", at=f"#lang={language}", width=420, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        assert words in page.locator(".gallery").text_content()
