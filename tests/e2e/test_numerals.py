"""The places of digits on the axes of large maps: a bracket over each number, a letter for each place, and in words."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy
import pytest

from helpers.browser import Pages
from helpers.explorer import made_page, made_site, made_view
from jarilab.explorer import render

pytestmark = pytest.mark.browser

SOURCE, TARGET = list("21+211"), ["<bos>", *"232"]
PLACES = [1, 0, None, 2, 1, 0]


def sum_page() -> str:
    """The maps of 21+211=232; of the target, the places are of what is written next."""
    sites = [
        made_site("encoder.0", [numpy.eye(6)]),
        made_site("decoder.0.cross", [numpy.eye(4, 6)], "target", "source"),
    ]
    view = made_view(sites, source=SOURCE, target=TARGET)
    written = [{"role": "answer", "place": place} for place in (2, 1, 0, None)]
    source = [{"role": "left", "place": place} for place in PLACES]
    no = {"value": [None], "chance": [None]}
    view["lens"] = {"kind": "arithmetic", "onesFirst": False, "places": {"source": source, "target": written},
                    "carries": [False] * 4, "share": {"encoder.0": no, "decoder.0.cross": no}}  # fmt: skip
    return render(made_page(view))


def numbers_of(page: Any, axis: str) -> list[str]:
    """What stands between the beginning and the end of each bracket."""
    found: list[str] = []
    for classes, text in page.locator(f".board .{axis} .meant").evaluate_all(
        "nodes => nodes.map((node) => [[...node.classList], node.textContent])"
    ):
        if "start" in classes:
            found.append("")
        found[-1] += text + ("." if "end" in classes else "")
    return found


def test_each_number_has_a_bracket_and_each_digit_its_place(pages: Pages) -> None:
    page = pages.open(sum_page(), at="#site=decoder.0.cross")
    assert numbers_of(page, "keys") == ["21.", "211."]
    assert numbers_of(page, "queries") == ["232."], "a digit of the answer has its own place, and <bos> none"
    read = "nodes => nodes.map((node) => [node.dataset.short, node.title])"
    assert page.locator(".board .queries .meant").evaluate_all(read) == [
        ["H", "2: hundreds"], ["T", "3: tens"], ["O", "2: ones"]
    ]  # fmt: skip
    assert page.locator(".board .keys .token:not(.meant)").text_content() == "+"
    bracket = page.locator(".board .keys .meant").first.evaluate(
        "node => getComputedStyle(node, '::after').borderTopWidth"
    )
    assert float(bracket.removesuffix("px")) >= 1


def test_places_are_told_in_words_and_in_korean(pages: Pages) -> None:
    page = pages.open(sum_page(), at="#site=encoder.0&lang=ko&query=0&key=0")
    assert page.locator(".board .keys .meant").evaluate_all("nodes => nodes.map((node) => node.dataset.short)") == list(
        "십일백십일"
    )
    page.locator(".field").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#live").text_content().startswith("쿼리 2 (십의 자리), 위치 0, 키 1 (일의 자리), 위치 1")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_a_saved_drawing_has_the_brackets_too(pages: Pages, tmp_path: Path, scheme: str) -> None:
    page = pages.open(sum_page(), at="#site=decoder.0.cross", color_scheme=scheme)
    with page.expect_download() as saved:
        page.locator("[data-keep='save svg']").click()
    path = tmp_path / "map.svg"
    saved.value.save_as(path)
    drawing = ElementTree.parse(path).getroot()
    space = "{http://www.w3.org/2000/svg}"
    brackets = drawing.findall(f".//{space}polyline")
    assert len(brackets) == 3
    assert {bracket.get("stroke") for bracket in brackets} == {"#1e2328"}, "dark on white, whatever the theme"
    letters = [text.text for text in drawing.iter(f"{space}text") if text.text in ("H", "T", "O")]
    assert sorted(letters) == sorted("HTO" + "TO" + "HTO")
