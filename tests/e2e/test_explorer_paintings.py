"""The explorer's page of a run that paints, in a browser: its image, what codes look at, and who looks at a word."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import jarilab
from helpers.browser import IMAGE, Pages, assert_cover, image_pixels, middle_of_patch
from helpers.explorer import made_page, made_site, made_view
from jarilab.explorer import open_explorer, render
from jarilab.explorer.page_file import saved_page
from jarilab.pages.kit.data_blocks import block, unpacked

pytestmark = pytest.mark.browser

NAMES = ["<bos>", "red", "<picture>", "0,0", "0,1", "1,0", "1,1"]
CAPTION = "a small red 3 top left"
# Each looks at what came before, and at itself; each row adds up to 1.
WEIGHTS = numpy.array(
    [
        [1.0, 0, 0, 0, 0, 0, 0],
        [0.5, 0.5, 0, 0, 0, 0, 0],
        [0.2, 0.2, 0.6, 0, 0, 0, 0],
        [0.1, 0.8, 0.0, 0.1, 0, 0, 0],
        [0.2, 0.2, 0.1, 0.4, 0.1, 0, 0],
        [0.1, 0.4, 0.1, 0.1, 0.1, 0.2, 0],
        [0.1, 0.0, 0.1, 0.2, 0.1, 0.4, 0.1],
    ]
)


def painted_page() -> str:
    """Two by two codes under a word."""
    hidden = numpy.triu(numpy.ones((7, 7)), 1)
    view = made_view([made_site("decoder.0.self", [WEIGHTS], "target", "target", hidden)], target=NAMES)
    pixels = numpy.tile(numpy.arange(4) * 60, (4, 1))[..., None].repeat(3, -1)
    place = {"rows": 2, "columns": 2, "height": 2, "width": 2, "first": 3, "pool": None}
    view["sides"]["target"]["picture"] = {"pixels": block(torch.as_tensor(pixels), "uint8"), **place}
    return render(made_page(view))


@pytest.mark.long
def test_a_code_pointed_at_shows_what_it_looked_at(pages: Pages) -> None:
    page = pages.open(painted_page(), at="#query=3&key=1")
    assert image_pixels(page, "pixels")[0, :, 0].tolist() == [0, 60, 120, 180]
    page.mouse.move(*middle_of_patch(page, 1, 0, 2, 2))
    assert page.locator("#readout").text_content().startswith("row 1, column 0 (token 5)")
    assert_cover(page, [[0.5, 0.5], [1.0, 0.0]])  # what came later has no weight
    words = page.locator(".image-row .word")
    assert words.all_text_contents() == ["<bos>0.100", "red0.400", "<picture>0.100"], "its keys are the caption too"
    assert "largest at 1,0: 0.200" in page.locator(".image-said").text_content()


@pytest.mark.long
def test_a_word_pointed_at_shows_which_codes_look_at_it(pages: Pages) -> None:
    page = pages.open(painted_page(), at="#query=6&key=5")
    word = page.locator(".image-row button", has_text="red")
    word.hover()
    column = (WEIGHTS[3:, 1] / 0.8).reshape(2, 2)
    assert_cover(page, column)
    assert "key red, over the queries" in page.locator("#image .legend").text_content()
    assert "largest at 0,0: 0.800; query 1,1: 0" in page.locator(".image-said").text_content()
    page.mouse.move(2, 2)
    assert_cover(page, (WEIGHTS[6, 3:] / 0.4).reshape(2, 2))
    word.click()
    page.mouse.move(2, 2)
    assert_cover(page, column)
    assert word.get_attribute("aria-pressed") == "true"
    assert page.locator("[data-keep=image-side]").input_value() == "key"
    page.mouse.click(*middle_of_patch(page, 0, 0, 2, 2))  # a code taken as a key: by which it is looked at
    assert_cover(page, (WEIGHTS[3:, 3] / 0.4).reshape(2, 2))
    page.locator("[data-keep=image-side]").select_option("query")
    assert_cover(page, (WEIGHTS[6, 3:] / 0.4).reshape(2, 2))


@pytest.mark.long
def test_a_word_as_a_query_comes_before_the_image(pages: Pages) -> None:
    page = pages.open(painted_page(), at="#query=1&key=0")
    assert page.locator(f"{IMAGE} .cover").is_hidden()
    assert page.locator(".image-said").text_content() == "This query comes before the image and cannot look at it."


@pytest.fixture(scope="module")
def shown(painted_runs: Path) -> dict[str, Any]:
    return saved_page(open_explorer([painted_runs / "painter"]), CAPTION, None, 0)


@pytest.mark.slow
def test_the_image_is_the_painted_one_and_its_codes_are_those_of_the_map(
    pages: Pages, shown: dict[str, Any], painted_runs: Path
) -> None:
    task: Any = jarilab.load(painted_runs / "painter").task
    how = {"guidance": task.guidance, "temperature": task.temperature}
    (painting,) = jarilab.predict(painted_runs / "painter", [CAPTION], count=1, **how)
    image = painting.images[0]
    page = pages.open(render(shown), at="#site=decoder.1.self&head=1&query=20&key=3")
    assert numpy.array_equal(image_pixels(page, "pixels")[..., :3], image.permute(1, 2, 0))
    weights = unpacked(shown["views"][0]["sites"][1]["weights"])[1]
    page.locator(".image-row button", has_text="red").hover()
    column = weights[8:, 3].reshape(8, 8)
    assert_cover(page, column / column.max())
    page.mouse.move(*middle_of_patch(page, 7, 7, 8, 8))
    row = weights[71, 8:].reshape(8, 8)
    assert_cover(page, row / row.max())


@pytest.mark.long
def test_it_says_in_the_language_of_the_page_that_it_cannot_paint(pages: Pages, shown: dict[str, Any]) -> None:
    page = pages.open(render(shown), at="#lang=ko")
    page.wait_for_selector("#input-note:has-text('captions')")
    assert "의 답은 페이지가 스스로 계산할 수 없습니다" in page.locator("#input-note").text_content()


def test_it_opens_at_a_place_of_the_image_with_the_caption_and_the_map_beside_it(
    pages: Pages, shown: dict[str, Any]
) -> None:
    first = shown["views"][0]["sides"]["target"]["picture"]["first"]
    assert shown["query"] >= first
    page = pages.open(render(shown), width=1440)
    assert page.locator(f"{IMAGE} .patch.query").is_visible()
    image, field = page.locator(IMAGE).bounding_box(), page.locator(".field").bounding_box()
    caption = page.locator(".image-row .word", has_text="red").bounding_box()
    assert field["x"] > image["x"] + image["width"], "side by side"
    assert max(image["y"] + image["height"], caption["y"] + caption["height"]) < 900, "on the first screen"
    assert field["y"] < 600
    assert page.locator(".outputs").is_hidden(), "the codes are there on request"


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_page_stays_narrow_in_both_languages(pages: Pages, shown: dict[str, Any], scheme: str) -> None:
    about = {"en": "caption and image → caption and image", "ko": "설명과 이미지 → 설명과 이미지"}
    for language, words in about.items():
        page = pages.open(render(shown), at=f"#lang={language}", width=420, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        assert words in page.locator("#overview").text_content()
        assert page.locator(IMAGE).bounding_box()["width"] >= 280
