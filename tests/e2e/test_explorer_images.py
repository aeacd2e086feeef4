"""The explorer's page of an image, in a browser: weights over patches, cells that follow, boxes of object queries."""

import base64
import copy
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from helpers.browser import IMAGE, Pages, assert_count, assert_cover, image_pixels, middle_of_patch
from helpers.explorer import made_page, made_site, made_view
from jarilab.explorer import open_explorer, payload, render
from jarilab.explorer.page_file import saved_page

pytestmark = pytest.mark.browser

# A class token, then patches of 2 rows and 3 columns; each row adds up to 1.
LAST = [0.0, 0, 0, 0, 0.5, 0.5, 0]
WEIGHTS = [[0.1, 0.3, 0.05, 0.15, 0.2, 0.1, 0.1], *([[0.4, 0.0, 0.1, 0.2, 0.1, 0.15, 0.05]] * 5), LAST]
NAMES = ["[0]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]


def image_page(pool: str = "class", pixels: Any = None, **fields: Any) -> str:
    """Greys from left to right under 2 x 3 patches."""
    view = made_view([made_site("encoder.0", [WEIGHTS])], source=NAMES)
    pixels = numpy.tile(numpy.arange(6) * 50, (4, 1))[..., None] if pixels is None else pixels
    place = {"rows": 2, "columns": 3, "height": 2, "width": 3, "first": 1, "pool": pool}
    view["sides"]["source"]["picture"] = {"pixels": payload.block(torch.as_tensor(pixels), "uint8"), **place}
    return render(made_page(view | fields))


def patch_of(page: Any, name: str) -> tuple[float, float]:
    """Row and column of a frame, in patches."""
    area, frame = page.locator(IMAGE).bounding_box(), page.locator(f"{IMAGE} .patch.{name}").bounding_box()
    return (frame["y"] - area["y"]) / area["height"] * 2, (frame["x"] - area["x"]) / area["width"] * 3


def test_the_image_shows_its_pixels_and_what_the_query_looks_at(pages: Pages) -> None:
    page = pages.open(image_page(), at="#query=6&key=4")
    shown = image_pixels(page, "pixels")
    assert shown.shape == (4, 6, 4)
    assert shown[2, :, 0].tolist() == shown[2, :, 2].tolist() == [0, 50, 100, 150, 200, 250]
    assert_cover(page, [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])  # up to the largest of the row, 0.5
    assert page.locator(IMAGE).bounding_box()["height"] * 3 == pytest.approx(
        page.locator(IMAGE).bounding_box()["width"] * 2, rel=0.02
    )
    assert patch_of(page, "query") == (pytest.approx(1, abs=0.03), pytest.approx(2, abs=0.03))
    assert patch_of(page, "key") == (pytest.approx(1, abs=0.03), pytest.approx(0, abs=0.03))
    assert "largest at 1,0: 0.500; key 1,0: 0.500" in page.locator(".image-said").text_content()


@pytest.mark.long
def test_a_image_in_colour_is_not_grey(pages: Pages) -> None:
    pixels = numpy.zeros((2, 3, 3))
    pixels[0, 1] = (255, 128, 0)
    page = pages.open(image_page(pixels=pixels))
    assert image_pixels(page, "pixels")[0, 1].tolist() == [255, 128, 0, 255]


def test_a_patch_pointed_at_is_a_query_of_the_map_and_a_click_pins_it(pages: Pages) -> None:
    page = pages.open(image_page(), at="#query=1&key=3")
    page.mouse.move(*middle_of_patch(page, 1, 2, 2, 3))
    assert (
        page.locator("#readout")
        .text_content()
        .startswith("row 1, column 2 (token 6) → row 0, column 2 (token 3)weight 0.0000")
    )
    assert_cover(page, [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    page.mouse.move(2, 2)
    assert page.locator("#readout").text_content().startswith("row 0, column 0 (token 1)")
    page.mouse.click(*middle_of_patch(page, 1, 2, 2, 3))
    page.mouse.move(2, 2)
    assert page.locator("#readout").text_content().startswith("row 1, column 2 (token 6)")
    page.locator("[data-keep=image-side]").select_option("key")
    page.mouse.click(*middle_of_patch(page, 1, 1, 2, 3))
    page.mouse.move(2, 2)
    assert (
        page.locator("#readout")
        .text_content()
        .startswith("row 1, column 2 (token 6) → row 1, column 1 (token 5)weight 0.5000")
    )


@pytest.mark.long
def test_the_map_moves_the_image(pages: Pages) -> None:
    page = pages.open(image_page(), at="#query=1&key=3")
    field = page.locator(".field >> nth=0")
    area = field.bounding_box()
    field.hover(position={"x": area["width"] * 4.5 / 7, "y": area["height"] * 6.5 / 7})
    assert_cover(page, [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    assert patch_of(page, "query") == (pytest.approx(1, abs=0.03), pytest.approx(2, abs=0.03))


@pytest.mark.long
def test_keys_walk_over_the_patches_and_say_where(pages: Pages) -> None:
    page = pages.open(image_page(), at="#query=1&key=3")
    page.locator(IMAGE).focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.locator("#readout").text_content().startswith("row 1, column 2 (token 6)")
    assert page.locator("#live").text_content().startswith("query 1,2")
    assert page.locator(IMAGE).evaluate("node => node === document.activeElement")


@pytest.mark.parametrize(("pool", "row"), [("class", WEIGHTS[0]), ("mean", numpy.mean(WEIGHTS[1:], 0))])
def test_what_a_class_is_read_from_lies_over_the_image(pages: Pages, pool: str, row: Any) -> None:
    page = pages.open(image_page(pool))
    page.locator("[data-keep=image-of]").select_option(index=1)
    patches = numpy.array(row)[1:].reshape(2, 3)
    assert_cover(page, patches / patches.max())
    assert page.locator(f"{IMAGE} .patch.query").is_hidden()


def test_tokens_without_a_place_are_chosen_beside_the_image(pages: Pages) -> None:
    page = pages.open(image_page(), at="#query=1&key=3")
    page.locator(".image-row button", has_text="[0]").click()
    assert page.locator("#readout").text_content().startswith("the [0] at place 0")
    patches = numpy.array(WEIGHTS[0])[1:].reshape(2, 3)
    assert_cover(page, patches / patches.max())


def test_no_folder_of_the_machine_stands_in_what_is_passed_on(pages: Pages) -> None:
    page = pages.open(image_page(input="/home/somebody/secret/cat.png"))
    assert page.title().startswith("cat.png ·")
    for kind in ("CSV", "SVG"):
        with page.expect_download() as download:
            page.get_by_role("button", name=kind).click()
        text = Path(download.value.path()).read_text()
        assert "cat.png" in text
        assert "secret" not in text


def test_text_has_no_image(pages: Pages) -> None:
    page = pages.open(render(made_page(made_view([made_site("encoder.0", [WEIGHTS])], source=NAMES))))
    assert page.locator("#image").is_hidden()


@pytest.fixture(scope="module")
def found(image_runs: Path) -> dict[str, Any]:
    page = saved_page(open_explorer([image_runs / "detection"]), "#3", None, 0)
    page["views"][0]["outputs"][2] |= {"token": "7", "top": [["7", 0.9]]}
    return page


@pytest.mark.slow
def test_a_query_is_chosen_and_its_box_and_attention_are_shown(pages: Pages, found: dict[str, Any]) -> None:
    page = pages.open(render(found))
    assert "found, with a probability of 0.5 or more" in page.locator(".model").text_content()
    page.locator("[data-keep='object 2']").click()
    assert page.locator("#head-title").text_content().startswith("decoder.0.cross")
    assert page.locator("[data-keep='object 2']").get_attribute("aria-pressed") == "true"
    box = page.locator(f"{IMAGE} .box.chosen")
    assert_count(box, 1)
    assert box.text_content() == "7 · q2"
    area, frame = page.locator(IMAGE).bounding_box(), box.bounding_box()
    left, top, right, bottom = found["views"][0]["sides"]["target"]["boxes"][2]
    assert (frame["x"] - area["x"]) / area["width"] == pytest.approx(left, abs=0.02)
    assert (frame["y"] - area["y"]) / area["height"] == pytest.approx(top, abs=0.02)
    assert frame["width"] / area["width"] == pytest.approx(max(right - left, 8 / area["width"]), abs=0.02)
    assert frame["height"] / area["height"] == pytest.approx(max(bottom - top, 8 / area["height"]), abs=0.02)
    site = next(site for site in found["views"][0]["sites"] if site["site"] == "decoder.0.cross")
    row = numpy.frombuffer(base64.b64decode(site["weights"]["data"]), "<u2").reshape(2, 4, 36)[0, 2]
    assert_cover(page, (row / row.max()).reshape(6, 6))


@pytest.mark.parametrize("how", ["pointer", "keys"])
def test_a_box_is_pressed_for_its_query(pages: Pages, found: dict[str, Any], how: str) -> None:
    apart = copy.deepcopy(found)
    sides = apart["views"][0]["sides"]
    sides["target"]["boxes"] = [[0, 0, 0.2, 0.2], [0.8, 0, 1, 0.2], [0.4, 0.4, 0.7, 0.7], [0.1, 0.1, 1, 1]]
    page = pages.open(render(apart), at="#site=encoder.0&query=0&key=0")
    box = page.locator(f"{IMAGE} [data-keep='box 2']")
    assert box.get_attribute("aria-label").startswith("object query 2: 7, 90")
    if how == "keys":
        box.focus()
        page.keyboard.press("Enter")
    else:
        box.click()
    assert page.locator("#head-title").text_content().startswith("decoder.1.cross")
    assert "query=2" in page.evaluate("location.hash")
    assert page.locator(f"{IMAGE} button.box.chosen").get_attribute("aria-pressed") == "true"
    assert box.evaluate("node => node === document.activeElement")
    before = page.evaluate("location.hash")
    area = box.bounding_box()
    page.mouse.click(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
    after = page.evaluate("location.hash")
    assert "query=2" in after, "pressed again, it is the patch under it that is chosen"
    assert after != before


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_a_narrow_page_stays_narrow_in_both_languages(pages: Pages, found: dict[str, Any], scheme: str) -> None:
    for language, heading in (("en", "The image"), ("ko", "이미지")):
        page = pages.open(render(found), at=f"#site=decoder.0.cross&lang={language}", width=420, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        assert page.locator("#image h3").text_content() == heading
        assert page.locator(IMAGE).bounding_box()["width"] >= 280
