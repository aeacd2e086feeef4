"""The explorer as a file, in a browser: what it draws, says and lets out, and that it asks nobody."""

import copy
import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import jarilab
from helpers.browser import (
    Pages,
    assert_colours,
    assert_count,
    assert_linear_colours,
    canvas_bytes,
    colours_at,
    decode_png,
    read_cells,
    read_pixels,
    until,
)
from helpers.explorer import made_page, made_site, made_view, random_rows
from jarilab.explorer import open_explorer, render
from jarilab.explorer.page_file import saved_page
from jarilab.inspect.record.capture import record
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.pages.kit.page import read

pytestmark = pytest.mark.browser

MAP = ".field >> nth=0"
PANELS = re.findall(r"panels/(\w+)\.js", read("jarilab.explorer", "panels.js"))
HATCH = [(0xFA, 0xF9, 0xF5), (0xE8, 0xE5, 0xDC)]
SMALL = [[0.05, 0.25, 0.7], [0.4, 0.6, 0.0]]


@pytest.fixture(scope="module")
def payload(runs: Path) -> dict[str, Any]:
    """Two trained models on one input, as a file has them."""
    return saved_page(open_explorer([runs / "none", runs / "rotary"]), "12+7", "encoder.0", 0)


@pytest.fixture
def trained(payload: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(payload)


def small_page(weights: Any = SMALL, hidden: Any = None) -> dict[str, Any]:
    """A cross-attention of 2 queries a, b and 3 keys x, y, z."""
    site = made_site("decoder.0.cross", [weights], "target", "source", hidden)
    return made_page(made_view([site], source="xyz", target="ab"))


def say(page: Any) -> str:
    return page.locator("#live").text_content()


# The first sentences -------------------------------------------------------------------------------------------------


def asked_page(*effects: float, largest: float = 0.2, turns: Any = None, share: float = 0.9) -> dict[str, Any]:
    """A page whose answer is one token, with the effect of each head and the largest of random changes.

    turns: what becomes of the answer without head 1. share: the token's probability.
    """
    count = len(effects)
    site = made_site("encoder.0", numpy.tile(numpy.eye(3, k=-1) + numpy.diag([1.0, 0, 0]), (count, 1, 1)))
    measured = {"effect": [*effects], "largest": [largest] * count, "draws": [39] * count, "layer": -4.0}
    measured["hit"] = [[0, effect, turns if head == 1 else None] for head, effect in enumerate(effects)]
    of_view = {"unit": "nats", "controls": 39, "smallest": 0.0005, "done": True, "tokens": ["3"]}
    outputs = [{"token": "3", "top": [["3", share], ["4", 1 - share]]}]
    view = made_view([site], source="1+2") | {"answer": "3", "expected": "3", "outputs": outputs}
    view["effects"] = of_view | {"sites": {"encoder.0": measured}}
    return made_page(view, head=1) | {"language": "en"}


def test_the_first_sentences_say_what_the_model_does_and_which_head_does_it(pages: Pages) -> None:
    page = pages.open(render(asked_page(-0.1, -2.5, 0.3, -0.9, -0.8, turns=[0, "7"])))
    finding = page.locator("#finding")
    assert finding.inner_text() == (
        "Adds numbers. It answers 3 (90 %). encoder.0, head 1 has the largest effect: it looks at the token before "
        "with 100 % of its weight on average (spread evenly it would be 33.3 %). Without it the answer is 12 times "
        "less likely (−2.50 nats), and 3 becomes 7. None of 39 random changes of the same size does as much. Heads "
        "that do more than random changes: 4 of 5; about 0.1 would by chance. 1 of 5 heads decides this answer: "
        "without it, the model gives another one."
    )
    bars = page.locator("#bars .bar i").evaluate_all("bars => bars.map((bar) => bar.style.getPropertyValue('--share'))")
    assert [float(share) for share in bars] == pytest.approx([2.5 / 4, 0.2 / 4, 1])
    page.locator("[data-head='0']").first.click()
    assert "Without it the answer is 9.5 % less likely" in finding.inner_text()
    assert "Random changes of the same size do as much" in finding.inner_text()
    page.get_by_role("button", name="the head with the largest effect").click()
    assert page.locator("[data-head='1']").first.get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="한국어").click()
    assert "encoder.0, 헤드 1: 효과가 가장 큰 헤드입니다." in finding.inner_text()


@pytest.mark.parametrize(
    ("effects", "turns", "said"),
    [
        ([-0.1, -0.5], None, "No single head decides this answer: it stays the same without any one of them."),
        ([-0.1, -0.1], [0, "7"], "No single head decides this answer: where one changes it, random changes do, too."),
        ([-0.1, -0.5], [0, "7"], "1 of 2 heads decides this answer: without it, the model gives another one."),
    ],
)
def test_whether_a_head_decides_is_said_as_it_follows(pages: Pages, effects: Any, turns: Any, said: str) -> None:
    assert pages.open(render(asked_page(*effects, turns=turns))).locator("#finding b").last.inner_text() == said


def test_the_heads_after_the_best_are_named_where_there_is_no_answer(pages: Pages) -> None:
    shown = asked_page(-0.1, -2.5, -0.9, -0.3)
    shown["views"][0] |= {"answer": None, "outputs": [], "says": "vectors"}
    shown["views"][0]["effects"]["unit"] = "moved"
    said = pages.open(render(shown)).locator("#finding b").last.inner_text()
    assert said == "It is not alone: next come encoder.0, head 2 (90 %) and encoder.0, head 3 (30 %)."


def test_a_page_saved_before_all_was_measured_says_so(pages: Pages) -> None:
    shown = asked_page(-0.1, -2.5)
    effects = shown["views"][0]["effects"]
    effects["done"], effects["sites"]["encoder.0"]["draws"] = False, [39, 12]
    page = pages.open(render(shown))
    finding = page.locator("#finding")
    assert "12 random changes of the same size; the page was saved before all 39 were tried." in finding.inner_text()
    assert "not fully compared with chance" in page.locator(".disc-key").inner_text()
    page.locator("[data-head='0']").first.click()
    assert finding.inner_text().endswith("so this may be chance. the head with the largest effect: encoder.0, head 1")
    effects["sites"] = {}
    assert (
        "saved before the effects of the heads were measured"
        in pages.open(render(shown)).locator(".disc-key").inner_text()
    )


def test_a_long_answer_is_cut_above_its_tokens(pages: Pages) -> None:
    shown = asked_page(-0.1, -2.5)
    shown["views"][0]["answer"] = "street " * 60
    answer = pages.open(render(shown)).locator(".model .token.big")
    assert len(answer.inner_text()) <= 120
    assert answer.get_attribute("title").count("street") == 60


def test_a_text_without_an_answer_has_tokens_instead(pages: Pages) -> None:
    page = asked_page(-0.1, -0.5)
    page["views"][0]["answer"] = None
    finding = pages.open(render(page)).locator("#finding").inner_text()
    assert (
        "Without it the tokens of the text are on average 39.3 % less likely (−0.50 nats a token). None of" in finding
    )
    assert "decides" not in finding


def test_layers_have_a_column_only_where_effects_are_known(pages: Pages) -> None:
    heads = pages.open(render(small_page())).locator(".heads").first
    assert "layer off" not in heads.inner_text()
    assert "layer off" in pages.open(render(asked_page(-0.1, -0.2))).locator(".heads").first.inner_text()


def test_the_words_of_a_text_stand_once(pages: Pages) -> None:
    """A still page has no field for its text, and a text that goes on lists only the token after it."""
    site = made_site("decoder.0.self", random_rows(1, 3, 3), "target", "target")
    outputs = [{"token": token, "top": [[token, 0.5], ["x", 0.5]]} for token in "bcd"]
    view = made_view([site], target="abc") | {"outputs": outputs, "says": "next", "answer": "d"}
    page = pages.open(render(made_page(view)))
    assert page.locator(".sentence .word").all_text_contents() == ["a", "b", "c"]
    assert page.locator(".outputs button").all_text_contents() == ["d50 %"]
    assert page.locator("#input").count() == 0
    page.locator(".sentence .word").first.hover()
    assert page.locator(".likely bdi").first.inner_text() == "b", "what was likely after a"


def test_a_disc_has_the_area_of_the_effect_and_a_ring_where_the_answer_is_better(pages: Pages) -> None:
    page = pages.open(render(asked_page(-0.1, -2.4, 0.6)))
    radii = page.locator("#overview [data-head] circle").evaluate_all("all => all.map((one) => one.r.baseVal.value)")
    assert radii[1] ** 2 == pytest.approx(15**2 * 2.4 / 3), "3 nats are the full disc"
    assert (radii[2] + 1.5) ** 2 == pytest.approx(radii[1] ** 2 / 4), "with the ring's half width"
    marks = page.locator("#overview [data-head] svg").evaluate_all("all => all.map((one) => [...one.classList].at(-1))")
    assert marks == ["chance", "passes", "helps"]
    assert page.locator(".whole[data-layer]").inner_text() == "−4.00"
    assert_count(page.locator("#overview [data-head] rect"), 3)  # all look at the token before


def test_hover_previews_a_head_and_a_click_chooses_it(pages: Pages) -> None:
    weights = random_rows(3, 4, 4)
    page = pages.open(render(made_page(made_view([made_site("encoder.0", weights)], source="abcd"))))
    heads = page.locator("#overview [data-head]")
    title = page.locator("#head-title")
    heads.nth(2).hover()
    until(page, lambda: title.inner_text() == "encoder.0, head 2")
    assert_colours(canvas_bytes(page)[..., :3], weights[2])
    assert "head=" not in page.url
    page.locator("h1").hover()
    until(page, lambda: title.inner_text() == "encoder.0, head 0")
    assert_colours(canvas_bytes(page)[..., :3], weights[0])
    heads.nth(2).click()
    assert "head=2" in page.url
    page.locator("h1").hover()
    assert_colours(canvas_bytes(page)[..., :3], weights[2])


# Maps ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_query_goes_down_and_key_across(pages: Pages, scheme: str) -> None:
    page = pages.open(render(small_page()), color_scheme=scheme)
    assert page.locator(".queries bdi").all_text_contents() == ["a", "b"]
    assert page.locator(".keys bdi").all_text_contents() == ["x", "y", "z"]
    assert_colours(read_cells(page.locator(MAP), 2, 3), SMALL, scheme=scheme)
    # the label of a row or column stands beside that row or above that column
    size = page.locator(MAP).bounding_box()
    assert size["width"] * 2 == pytest.approx(size["height"] * 3)
    query, key = page.locator(".queries bdi").nth(1).bounding_box(), page.locator(".keys bdi").nth(2).bounding_box()
    assert query["y"] == pytest.approx(size["y"] + size["height"] / 2, abs=1)
    assert query["x"] + query["width"] <= size["x"] + 1
    assert key["x"] == pytest.approx(size["x"] + size["width"] * 2 / 3, abs=1)
    assert key["y"] + key["height"] <= size["y"] + 1


def test_pointer_reads_the_weight_under_it(pages: Pages) -> None:
    page = pages.open(render(small_page()))
    size = page.locator(MAP).bounding_box()
    page.mouse.move(size["x"] + size["width"] * 5 / 6, size["y"] + size["height"] / 4)
    assert page.locator("#readout").text_content() == "the a at place 0 → the z at place 2weight 0.7000 · rank 1 of 3"


def test_hidden_cells_have_no_colour(pages: Pages) -> None:
    weights = [[1, 0, 0], [0.4, 0.6, 0], [0.2, 0.3, 0.5]]
    hidden = numpy.triu(numpy.ones((3, 3)), 1)
    site = made_site("decoder.0.self", [weights], "target", "target", hidden)
    page = pages.open(render(made_page(made_view([site], target="abc"))), at="#query=1&key=1")
    assert (canvas_bytes(page)[..., 3] == 255 * (1 - hidden)).all()
    image = read_pixels(page.locator(MAP))
    cell = len(image) // 3
    seen = image[4 : cell - 4, 2 * cell + 4 : -4].reshape(-1, 3)  # query 0, key 2: between two colours of the hatch
    low, high = numpy.min(HATCH, 0), numpy.max(HATCH, 0)
    assert ((seen >= low - 1) & (seen <= high + 1)).all()
    assert (seen.min(0) < low + 8).all()
    assert (seen.max(0) > high - 8).all()
    found = read_cells(page.locator(MAP), 3, 3)
    assert_colours(found[hidden == 0][None], numpy.array(weights)[hidden == 0][None], visible_keys(hidden)[hidden == 0])
    page.locator(MAP).focus()
    page.keyboard.press("Home")
    page.keyboard.press("End")
    assert "hidden: this query may not look at this key" in say(page)


def visible_keys(hidden: numpy.ndarray) -> numpy.ndarray:
    """For each cell, how many keys its query may see."""
    return numpy.broadcast_to((hidden == 0).sum(-1, keepdims=True), hidden.shape)


def test_colours_are_the_weights(pages: Pages) -> None:
    weights = random_rows(2, 9, 13)
    sites = [
        made_site("decoder.0.cross", weights, "target", "source"),
        made_site("decoder.1.cross", weights[::-1], "target", "source"),
    ]
    document = render(made_page(made_view(sites, source="abcdefghijklm", target="ABCDEFGHI"), head=1))
    page = pages.open(document)
    written = numpy.rint(weights * 65535) / 65535
    assert_colours(canvas_bytes(page)[..., :3], written[1])
    assert_colours(read_cells(page.locator(MAP), 9, 13), written[1])
    page.locator("[data-site='decoder.1.cross'][data-head='1']").click()  # the other layer has them the other way round
    assert_colours(canvas_bytes(page)[..., :3], written[0])
    assert "A row of 13 keys ends at 13×" in page.locator("#legend").text_content()
    page.locator("[data-keep=scale]").select_option(index=1)
    assert_linear_colours(canvas_bytes(page)[..., :3], written[0])
    page.locator("[data-keep=scale]").select_option(index=2)
    assert_linear_colours(canvas_bytes(page)[..., :3], written[0] / written[0].max())
    assert f"{written[0].max():.3f}" in page.locator("#legend").text_content()


def test_a_uniform_head_is_empty_at_every_length(pages: Pages) -> None:
    grounds = []
    for keys in (4, 12):
        even = numpy.full((1, keys, keys), 1 / keys)
        page = pages.open(render(made_page(made_view([made_site("encoder.0", even)], source="abcdefghijkl"[:keys]))))
        grounds.append(canvas_bytes(page)[..., :3].reshape(-1, 3))
    assert numpy.abs(numpy.concatenate(grounds) - colours_at(0.5)).max() <= 2


@pytest.mark.long
def test_values_and_rollout_can_be_drawn_instead(pages: Pages, trained: dict[str, Any]) -> None:
    page = pages.open(render(trained))
    views = trained["views"]
    valued = [unpacked(view["sites"][0]["details"]["0"]["valued"]) for view in views]
    choice = page.locator("[data-keep=drawn]")
    choice.select_option(index=1)
    highest = max(norms.max() for norms in valued)
    for number, norms in enumerate(valued):
        assert_linear_colours(canvas_bytes(page, number)[..., :3], norms / highest)
    assert "Norms do not add up to 1" in page.locator("#head-about").text_content()
    choice.select_option(index=2)
    for number, view in enumerate(views):
        assert_colours(canvas_bytes(page, number)[..., :3], unpacked(view["rollout"]))
    with page.expect_download() as download:
        page.locator("[data-keep='save npz']").click()
    assert download.value.suggested_filename == "none-rotary-rollout.npz"
    with numpy.load(download.value.path(), allow_pickle=False) as arrays:
        assert numpy.abs(arrays["rollout_1_rotary"] - unpacked(views[1]["rollout"])).max() < 1e-6
        assert any("attention rollout" in line for line in arrays["caption"])
    page.locator("[data-view='0'][data-site='decoder.0.cross'][data-head='0']").click()
    assert "Rollout is available for encoders only" in page.locator(".pane").first.text_content()


def test_heads_of_models_trained_apart_are_matched_before_they_are_subtracted(pages: Pages) -> None:
    weights = random_rows(3, 4, 4)
    views = [
        made_view([made_site("encoder.0", weights[order])], name, source="abcd") | {"experiment": name}
        for name, order in (("one", [0, 1, 2]), ("two", [1, 2, 0]))
    ]
    page = pages.open(render(made_page(*views)))
    difference = page.locator(".pane").nth(2)
    assert difference.locator("h3").inner_text() == "two, head 2 − one, head 0"
    assert "head 2 of two is the one nearest to head 0. Mean divergence of the rows: 0 nats" in difference.inner_text()
    snapshots = [view | {"experiment": "same"} for view in views]
    page = pages.open(render(made_page(*snapshots)))
    assert page.locator(".pane h3").nth(2).inner_text() == "two − one"


def test_special_tokens_are_left_out_and_rows_add_up_to_1_again(pages: Pages) -> None:
    weights = [[[0.8, 0.1, 0.1, 0.0], [0.5, 0.4, 0.1, 0.0], [0.2, 0.2, 0.6, 0.0], [0.25, 0.25, 0.25, 0.25]]]
    tokens = ["[CLS]", "a", "[MASK]", "[SEP]"]
    view = made_view([made_site("encoder.0", weights)], source=tokens)
    page = pages.open(render(made_page(view)), at="#plain=1&scale=full")
    drawn = canvas_bytes(page)
    assert (drawn[..., 3] > 0).tolist() == [[False, True, True, False]] * 4, "a mask stands for a word"
    assert_linear_colours(drawn[:, 1:3, :3], numpy.array([[0.5, 0.5], [0.8, 0.2], [0.25, 0.75], [0.5, 0.5]]))
    assert page.locator("details.proof").count() == 0, "what was verified is another map"
    page.locator("[data-keep=plain]").uncheck()
    assert (canvas_bytes(page)[..., 3] > 0).all()


def test_weights_from_one_sentence_to_the_other(pages: Pages) -> None:
    weights = [[[0.4, 0.1, 0.1, 0.4], [0.5, 0.2, 0.1, 0.2], [0.2, 0.2, 0.6, 0.0], [0.25, 0.25, 0.25, 0.25]]]
    view = made_view([made_site("encoder.0", weights)], source="abcd")
    assert pages.open(render(made_page(view))).get_by_label("Sentences").count() == 0
    view["sides"]["source"]["second"] = 1
    page = pages.open(render(made_page(view)))
    whole = canvas_bytes(page)
    page.get_by_label("Sentences").select_option("first → second")
    drawn = canvas_bytes(page)
    assert (drawn[..., 3] > 0).tolist() == [[False, True, True, True], *[[False] * 4] * 3]
    assert (drawn[0, 1:] == whole[0, 1:]).all(), "a colour stays that of the whole row"
    assert page.locator("details.proof").count() == 0, "what was verified is another map"
    assert "not between the chosen sentences" in page.locator("#legend").inner_text()
    page.get_by_label("Sentences").select_option("second → first")
    drawn = canvas_bytes(page)
    assert (drawn[..., 3] > 0).tolist() == [[False] * 4, *[[True, False, False, False]] * 3]
    lines = pages.open(render(made_page(view)), at="#display=lines&every=1&top=10&pair=ab")
    assert_count(lines.locator(".lines path"), 3)


def test_the_difference_is_orange_where_the_second_is_larger(pages: Pages) -> None:
    first, second = [[0.1, 0.5, 0.4]], [[0.6, 0.0, 0.4]]
    views = [
        made_view([made_site("decoder.0.cross", [rows], "target", "source")], name, source="xyz", target="a")
        for name, rows in (("one", first), ("two", second))
    ]
    page = pages.open(render(made_page(*views)))
    assert page.locator(".pane h3").all_text_contents() == ["one step 1954", "two step 1954", "two − one"]
    assert_colours(canvas_bytes(page, 0)[..., :3], first)
    assert_colours(canvas_bytes(page, 1)[..., :3], second)
    plus, minus, same = read_cells(page.locator(".field").nth(2), 1, 3)[0]
    assert tuple(plus) == (0x7A, 0x32, 0x03)  # the largest difference has the ends of the scale
    assert tuple(minus) == (0x08, 0x30, 0x6B)
    assert numpy.abs(same - (0xF5, 0xF5, 0xF2)).max() <= 2
    page.locator(".field").nth(2).focus()
    page.keyboard.press("Home")
    assert "two − one +0.5000" in say(page)
    page.keyboard.press("ArrowRight")
    assert "two − one −0.5000" in say(page)


@pytest.mark.long
def test_models_with_other_tokens_have_no_difference(pages: Pages, runs: Path) -> None:
    two = jarilab.explore(runs / "none", runs / "lm", input="1+2", site="decoder.0.self").html
    page = pages.open(two)
    difference = page.locator(".pane").nth(2)
    why = "No difference: the models cut text into other tokens (their vocabularies differ)."
    assert why in difference.text_content()
    assert difference.locator("canvas").count() == 0
    page.locator("[data-site='encoder.0']").first.click()
    why = "This model has no encoder.0, head 0; it has decoder.0.self – decoder.5.self. Choose it at the top to see"
    assert why in page.locator(".pane").nth(1).text_content()
    assert "No difference: one of the models does not have this map." in page.locator(".pane").nth(2).text_content()


# Reading without a mouse or without eyes -----------------------------------------------------------------------------


@pytest.mark.slow
def test_keyboard_path(pages: Pages, trained: dict[str, Any]) -> None:
    page = pages.open(render(trained))
    focused = "[document.activeElement.id, document.activeElement.className, document.activeElement.role].join(' ')"

    def tab_to(wanted: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if wanted in page.evaluate(focused):
                return
        raise AssertionError(f"{wanted} cannot be reached by Tab")

    def press(*keys: str) -> str:
        for key in keys:
            page.keyboard.press(key)
        return say(page)

    tab_to("skip")
    tab_to("field")
    weights = unpacked(trained["views"][0]["sites"][0]["weights"])
    tokens = trained["views"][0]["sides"]["source"]["tokens"]
    roles = trained["views"][0]["lens"]["places"]["source"]
    names = {0: " (ones)", 1: " (tens)", 2: " (hundreds)"}
    places = {at: names[role["place"]] for at, role in enumerate(roles) if role["place"] is not None}
    press("ArrowUp", "ArrowUp", "ArrowUp", "ArrowUp", "Home")

    def told(query: int, key: int, head: int = 0) -> str:
        asked, seen = (f"{tokens[at]}{places.get(at, '')} at {at}" for at in (query, key))
        return f"query {asked}, key {seen}; none {weights[head, query, key]:.4f}"

    assert told(0, 0) in say(page)
    assert told(0, 0) in press("ArrowLeft")
    assert told(1, 1) in press("ArrowDown", "ArrowRight")
    assert told(1, len(tokens) - 1) in press("End")
    assert told(len(tokens) - 1, 0) in press("PageDown", "Home")
    assert press("Enter").startswith(f"pinned; {told(len(tokens) - 1, 0)}")
    assert f"query {len(tokens) - 1} → key 0" in page.locator("#panels-cell").text_content()
    press("ArrowUp", "Escape")
    assert told(len(tokens) - 1, 0) in say(page)
    assert press("]") == "encoder.0, head 1"
    assert page.locator("#head-title").text_content() == "encoder.0, head 1"
    assert told(len(tokens) - 2, 0, 1) in press("ArrowUp")
    assert press("[") == "encoder.0, head 0"
    assert press("}") == "encoder.0, head 0"  # it has one layer only
    assert "field" in page.evaluate(focused)
    tab_to("tab")
    for name in [*PANELS[1:], PANELS[0]]:
        press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == f"tab-{name}"
        assert page.locator("[role=tab][aria-selected=true]").get_attribute("id") == f"tab-{name}"
        assert page.locator("[role=tabpanel]:visible").get_attribute("id") == f"panel-{name}"
        until(page, lambda name=name: page.locator(f"#panel-{name}").text_content() not in ("", "Computing…"))
        assert "could not be drawn" not in page.locator(f"#panel-{name}").text_content()
    press("End", "Tab")
    assert page.evaluate("document.activeElement.id") == "panel-tasklens"


def test_layers_by_key(pages: Pages) -> None:
    sites = [made_site(f"encoder.{layer}", random_rows(2, 3, 3, layer)) for layer in range(3)]
    page = pages.open(render(made_page(made_view(sites, source="abc"), site="encoder.1")))
    page.locator(MAP).focus()
    for key, title in (("}", "encoder.2, head 0"), ("{", "encoder.1, head 0"), ("{", "encoder.0, head 0")):
        page.keyboard.press(key)
        assert (say(page), page.locator("#head-title").text_content()) == (title, title)
        assert "field" in page.evaluate("document.activeElement.className")


@pytest.mark.parametrize("scheme", ["dark", pytest.param("light", marks=pytest.mark.long)])
def test_axe_finds_nothing(pages: Pages, trained: dict[str, Any], scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = pages.open(render(trained), color_scheme=scheme, bypass_csp=True)
    found = {}
    for number, panel in enumerate(PANELS):
        page.locator(f"#tab-{panel}").click()
        until(page, lambda panel=panel: page.locator(f"#panel-{panel}").text_content() not in ("", "Computing…"))
        page.locator("[data-keep=display]").select_option(index=number % 2)
        result = Axe().run(page, None if number < 2 else f"#panel-{panel}")
        for violation in result.response["violations"]:
            nodes = sorted({node["html"][:160] for node in violation["nodes"]})
            found[f"{panel}: {violation['id']}"] = [
                violation["help"],
                nodes[:5],
                violation["nodes"][0]["failureSummary"],
            ]
    assert not found, json.dumps(found, indent=1)


def test_korean(pages: Pages, trained: dict[str, Any]) -> None:
    page = pages.open(render(trained))
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("h1").text_content() == "Where the model looks"
    hangul = re.compile("[가-힣]")
    assert hangul.findall(page.locator("main").inner_text()) == []
    page.locator("#language button[lang]").click()
    assert page.locator("html").get_attribute("lang") == "ko"
    assert page.locator("h1").text_content() == "모델은 어디를 보는가"
    for words in ("h1", "#lede", "#models", "#overview", "#head-about", "#tools", "#legend", "#panels-cell", "#tabs"):
        assert hangul.search(page.locator(words).inner_text()), words
    for panel in PANELS:
        page.locator(f"#tab-{panel}").click()
        until(page, lambda panel=panel: bool(hangul.search(page.locator(f"#panel-{panel}").inner_text())))
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator("html").get_attribute("lang") == "ko"
    page.locator("#language button[lang]").click()
    assert page.locator("h1").text_content() == "Where the model looks"
    assert pages.open(render(trained), locale="ko-KR").locator("html").get_attribute("lang") == "ko"


# What is looked at, in the address -----------------------------------------------------------------------------------


def test_the_address_brings_back_what_was_looked_at(pages: Pages, trained: dict[str, Any]) -> None:
    page = pages.open(render(trained))

    def shown() -> tuple[str, ...]:
        return (
            page.locator("#head-title").text_content(),
            page.locator("#panels-cell").text_content(),
            page.locator("[role=tab][aria-selected=true]").get_attribute("id"),
            page.locator("input[name=view] >> nth=1").is_checked(),
        )

    began = shown()
    page.locator("[data-view='0'][data-site='decoder.0.cross'][data-head='1']").click()
    page.locator("#tab-parts").click()
    page.locator("input[name=view] >> nth=1").check()
    page.locator(MAP).focus()
    page.keyboard.press("Home")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.locator("[data-keep=scale]").select_option(index=2)
    chosen, image = shown(), canvas_bytes(page)
    assert chosen[0] == "decoder.0.cross, head 1"
    assert "key 3, in rotary" in chosen[1]
    assert chosen[2:] == ("tab-parts", True)
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert shown() == chosen
    assert (canvas_bytes(page) == image).all()
    page.go_back()
    until(page, lambda: not shown()[3])
    assert shown()[2] == "tab-parts"
    page.go_back()
    until(page, lambda: shown()[2] == "tab-walk")
    page.go_back()
    until(page, lambda: shown()[0] == began[0])
    assert shown() == began
    page.go_forward()
    until(page, lambda: shown()[0] == "decoder.0.cross, head 1")


@pytest.mark.parametrize(
    "at",
    ["#head=999999&site=nowhere&panel=none&view=7&query=50&key=50&lock=nan&steps=9:9", "#%E0%A4%A", "#__proto__=1"],
)
def test_an_address_of_something_else_is_mended(pages: Pages, trained: dict[str, Any], at: str) -> None:
    page = pages.open(render(trained), at=at)
    assert page.locator("#head-title").text_content() in ("encoder.0, head 0", "encoder.0, head 1")
    assert_count(page.locator(".field canvas"), 3)
    assert page.locator("[role=tab][aria-selected=true]").get_attribute("id") == "tab-walk"


def test_training_steps_of_a_file(pages: Pages, trained: dict[str, Any]) -> None:
    page = pages.open(render(trained))
    newest = canvas_bytes(page)
    page.locator("#scrub").focus()
    page.keyboard.press("Home")
    until(page, lambda: "step 0" in page.locator(".pane h3").first.text_content())
    frame = next(frame for frame in trained["frames"] if frame["step"] == 0)
    assert_colours(canvas_bytes(page)[..., :3], unpacked(frame["views"][0]["sites"][0]["weights"])[0])
    assert "steps=" in page.url
    page.keyboard.press("End")
    until(page, lambda: "step 12" in page.locator(".pane h3").first.text_content())
    assert (canvas_bytes(page) == newest).all()


def test_a_file_without_room_for_training_steps_keeps_the_curve(pages: Pages, trained: dict[str, Any]) -> None:
    page = pages.open(render({key: value for key, value in trained.items() if key != "frames"}))
    assert page.locator("#scrubbing svg").is_visible()
    assert page.locator("#scrub").is_hidden()


# Files that leave the page -------------------------------------------------------------------------------------------


def save(page: Any, kind: str) -> bytes:
    with page.expect_download() as download:
        page.locator(f"[data-keep='save {kind}']").click()
    assert download.value.suggested_filename == f"one-two-decoder.0.self-head1.{kind}"
    return Path(download.value.path()).read_bytes()


def exported(pages: Pages) -> tuple[Any, list[numpy.ndarray], numpy.ndarray]:
    """A page of two models with a mask and a formula for a token; the weights of head 1 in both, and the mask."""
    hidden = numpy.triu(numpy.ones((4, 4)), 1)
    views, weights = [], []
    for number, name in enumerate(("one", "two")):
        rows = random_rows(2, 4, 4, number) * (1 - hidden)
        rows /= rows.sum(-1, keepdims=True)
        views.append(made_view([made_site("decoder.0.self", rows, "target", "target", hidden)], name, target=TOKENS))
        weights.append(numpy.rint(rows[1] * 65535) / 65535)
    return pages.open(render(made_page(*views, head=1))), weights, hidden


TOKENS = ["a", "=1+2", 'say "x", y', "나"]
FACTS = [
    "one: experiment 9f3a0123456789",
    "step 1954",
    "decoder.0.self head 1",
    "colours by how often the even share of its row a weight is, 1/16 to 16 times",
    "encoding rotary",
]


def test_a_printed_page_has_no_controls(pages: Pages, trained: dict[str, Any]) -> None:
    page = pages.open(render(trained))
    page.locator("[data-head='1']").first.click()
    page.emulate_media(media="print")
    assert not page.locator("#options, #language, .cut, [role=switch], #finding button").filter(visible=True).count()
    assert page.locator("#readout").evaluate("node => getComputedStyle(node).position") == "static"


def test_lines_of_one_tone_differ_by_dashes(pages: Pages) -> None:
    site = made_site("decoder.0.self", random_rows(9, 4, 4, 0), "target", "target")
    page = pages.open(render(made_page(made_view([site], target="abcd"))), at="#display=lines&heads=1")
    looks = page.locator(".lines path").evaluate_all(
        "lines => lines.map((line) => [line.getAttribute('stroke'), line.getAttribute('stroke-dasharray')].join())"
    )
    assert len(set(looks)) == 9


def test_a_curve_is_read_where_one_points(pages: Pages, trained: dict[str, Any]) -> None:
    page = pages.open(render(trained))
    chart, caption = page.locator(".chart"), page.locator("#scrubbing figcaption")
    before = caption.inner_text()
    step = trained["views"][0]["curve"][0][0]
    page.mouse.move(0, 0)
    chart.hover(position={"x": 75, "y": 40})
    assert f"at step {step}: none " in caption.inner_text()
    assert caption.inner_text() != before
    page.mouse.move(0, 0)
    assert caption.inner_text() == before


def test_the_name_at_the_end_of_a_curve_is_whole(pages: Pages, trained: dict[str, Any]) -> None:
    first = {**trained["views"][0], "name": "add-rotary"}
    page = pages.open(render({**trained, "views": [first, *trained["views"][1:]]}), width=375)
    name, chart = (
        page.locator(".chart .end", has_text="add-rotary").bounding_box(),
        page.locator(".chart").bounding_box(),
    )
    assert name["x"] + name["width"] <= chart["x"] + chart["width"]


def test_csv_has_the_weights(pages: Pages) -> None:
    page, weights, hidden = exported(pages)
    lines = save(page, "csv").decode().splitlines()
    caption = [line for line in lines if line.startswith("# ")]
    assert all(fact in " ".join(caption) for fact in FACTS)
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[len(caption) :]))))
    for name, values in (("one", weights[0]), ("two", weights[1]), ("two − one", weights[1] - weights[0])):
        own = [row for row in rows if row["map"] == name]
        assert [(row["query"], row["key"]) for row in own] == [(str(q), str(k)) for q in range(4) for k in range(4)]
        found = [float(row["value"]) if row["value"] else -1 for row in own]
        assert found == pytest.approx(numpy.where(hidden == 1, -1, values).ravel().tolist(), abs=6e-7)
        assert [row["key_token"] for row in own[:4]] == ["a", "'=1+2", 'say "x", y', "나"]


def test_npz_has_the_weights(pages: Pages) -> None:
    page, weights, hidden = exported(pages)
    with numpy.load(io.BytesIO(save(page, "npz")), allow_pickle=False) as arrays:
        assert all(fact in " ".join(arrays["caption"]) for fact in FACTS)
        assert numpy.abs(arrays["weights_0_one"] - weights[0]).max() < 1e-7
        assert numpy.abs(arrays["weights_1_two"] - weights[1]).max() < 1e-7
        assert numpy.abs(arrays["weights_difference"] - (weights[1] - weights[0])).max() < 2e-7
        assert (arrays["hidden_0_one"] == (hidden == 1)).all()
        assert arrays["queries_0_one"].tolist() == arrays["keys_1_two"].tolist() == TOKENS


def drawn_cells(text: bytes) -> tuple[list[str], list[tuple[numpy.ndarray, list[int]]]]:
    """The texts of a drawing, and of each map's cells the middle in points and the colour."""
    space = "{http://www.w3.org/2000/svg}"
    drawing = ElementTree.fromstring(text)
    cells = []
    for group in drawing.findall(f"{space}g"):
        left, top = map(float, re.findall(r"[\d.]+", group.get("transform", ""))[:2])
        for rect in group.findall(f"{space}rect"):
            x, y, width, height = (float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
            if rect.get("fill", "").startswith("rgb") and width == height:
                colour = [int(part) for part in re.findall(r"\d+", rect.get("fill", ""))]
                cells.append((numpy.array([left + x + width / 2, top + y + height / 2]), colour))
    return [element.text or "" for element in drawing.iter(f"{space}text")], cells


@pytest.mark.long
def test_svg_and_png_have_the_colours(pages: Pages) -> None:
    page, weights, hidden = exported(pages)
    texts, cells = drawn_cells(save(page, "svg"))
    assert all(fact in " ".join(texts) for fact in FACTS)
    seen = hidden == 0
    assert len(cells) == 3 * seen.sum()
    places = numpy.array([place for place, _ in cells[: seen.sum()]])
    size = numpy.diff(numpy.unique(places[:, 0])).min()
    steps = numpy.rint((places - places[0]) / size).astype(int)
    assert steps.tolist() == [[key, query] for query, key in numpy.argwhere(seen).tolist()]
    for number in (0, 1):
        colours = numpy.array([colour for _, colour in cells[number * seen.sum() :][: seen.sum()]])
        assert_colours(colours[None], weights[number][seen][None], visible_keys(hidden)[seen])
    image = decode_png(save(page, "png"))
    for (x, y), colour in cells:
        assert numpy.abs(image[int(2 * y), int(2 * x)] - colour).max() <= 2


# Other people's text -------------------------------------------------------------------------------------------------

HOSTILE = [
    "</script><script>document.title='attacked'</script>",
    "<img src=x onerror=alert(1)>",
    "\u202eשלום\u0000\u200b",
    "😀" * 10_000,
]
VISIBLE = [HOSTILE[0], HOSTILE[1], "‹202E›שלום␀‹200B›", HOSTILE[3]]
TEXTS = {
    "tokens",
    "row_names",
    "column_names",
    "answer",
    "expected",
    "input",
    "name",
    "run",
    "encoding",
    "token",
    "top",
}


def made_hostile(value: Any, names: dict[str, str], under: str = "") -> Any:
    """The same payload with other texts where texts of a task or of a person stand."""
    if isinstance(value, dict):
        return {key: made_hostile(item, names, key) for key, item in value.items()}
    if isinstance(value, list):
        return [made_hostile(item, names, under) for item in value]
    return names.get(value, value) if isinstance(value, str) and under in TEXTS else value


@pytest.mark.parametrize("width", [420, pytest.param(1280, marks=pytest.mark.long)])
def test_hostile_text_is_text(pages: Pages, trained: dict[str, Any], width: int) -> None:
    names = {**dict(zip("12+7", HOSTILE, strict=True)), "none": HOSTILE[1], "rotary": HOSTILE[0], "12+7": HOSTILE[2]}
    page = pages.open(render(made_hostile(trained, names)), width=width)
    assert page.locator(".queries").first.locator("bdi").all_text_contents() == VISIBLE
    assert page.locator(".pane h3 bdi").all_text_contents()[:2] == [HOSTILE[1], HOSTILE[0]]
    for panel in PANELS:
        page.locator(f"#tab-{panel}").click()
        until(page, lambda panel=panel: page.locator(f"#panel-{panel}").text_content() not in ("", "Computing…"))
        assert page.evaluate("document.documentElement.scrollWidth") == width, panel
    page.locator("summary").first.click()
    for place in range(4):
        page.locator(MAP).focus()
        page.keyboard.press("ArrowDown" if place else "Home")
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.scrollWidth") == width, place
    page.locator("[data-keep=display]").select_option(index=1)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.documentElement.scrollHeight") < 12_000
    assert_count(page.locator("script"), 3)
    assert page.locator("img").count() == 0
    assert "attacked" not in page.title().partition("·")[0]
    for kind in ("svg", "csv"):
        with page.expect_download() as download:
            page.locator(f"[data-keep='save {kind}']").click()
        text = Path(download.value.path()).read_text()
        assert len(download.value.suggested_filename) < 120
        if kind == "svg":
            assert {element.tag.partition("}")[2] for element in ElementTree.fromstring(text).iter()} <= {
                "svg", "defs", "pattern", "rect", "g", "text", "title", "path", "line", "circle", "tspan"
            }  # fmt: skip


def test_a_page_inside_a_notebook(pages: Pages) -> None:
    model = jarilab.EncoderDecoder(
        9, 9, d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, encoding="alibi"
    ).eval()
    with record(model) as tape, torch.no_grad():
        model(torch.randint(3, 9, (1, 5)), torch.randint(3, 9, (1, 3)))
    shown = tape.show({"source": list("12+12"), "target": ["<bos>", "2", "4"]}, title="notebook")
    page = pages.open(f"<!doctype html><title>notebook</title>{shown._repr_html_()}", ready="iframe")
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for(state="attached")
    assert frame.locator(".pane h3").first.text_content() == "notebook"
    frame.locator("[data-head='1']").first.click()
    assert frame.locator("#head-title").text_content() == "encoder.0, head 1"
    frame.locator("#how > summary").click()
    frame.locator("#tab-measures").click()
    assert_count(frame.locator("#panel-measures table"), 1)
    assert_count(frame.get_by_role("tab"), 1)  # of a tape there is nothing else to say
    inside = frame.locator("body").evaluate("body => body.getBoundingClientRect().height")
    assert inside > 720, "the page scrolls in its frame"
    until(page, lambda: page.locator("iframe").bounding_box()["height"] == 720)


def test_a_tape_inside_a_notebook(pages: Pages) -> None:
    model = jarilab.LanguageModel(9, d_model=16, n_heads=2, n_layers=2, encoding="rotary").eval()
    with record(model) as tape, torch.no_grad():
        model(torch.randint(9, (1, 6)))
    frame = jarilab.preview(tape, ["<b>", "&", *"cdef"])._repr_html_()
    page = pages.open(f"<!doctype html><title>notebook</title>{frame}", ready="iframe")
    inside = page.frame_locator("iframe")
    inside.locator("html[data-ready]").wait_for(state="attached")
    drawing = inside.locator("#map svg")
    assert drawing.bounding_box()["width"] < 400
    until(page, lambda: page.locator("iframe").bounding_box()["height"] < 500)
    assert drawing.get_attribute("aria-label") == "decoder.0.self, head 0"
    first = drawing.locator("rect").nth(1).get_attribute("fill")
    assert first == "rgb(248 246 239)", "the first token sees itself alone: there was nothing to choose"
    assert_count(drawing.locator("g[shape-rendering] rect"), 21)  # masked keys are left out
    inside.locator("#head").select_option("decoder.1.self, head 1")
    assert drawing.get_attribute("aria-label") == "decoder.1.self, head 1"
    assert "<b>" in drawing.text_content()


def test_measures_show_what_stands_out(pages: Pages) -> None:
    site = made_site("encoder.0", random_rows(2, 3, 3))
    site["measures"] = {"previous": {"value": [0.9, 0.25], "chance": [0.2, 0.2], "untrained": [0.3, 0.2]}}
    page = pages.open(render(made_page(made_view([site], source="abc"))), at="#panel=measures")
    rows = page.locator("#panel-measures tr[data-site]")
    assert_count(rows, 2)
    assert rows.first.locator("td").get_attribute("title") == "0.900, by chance 0.200, untrained 0.300"
    assert "It looks at the token just before." in page.locator("#panel-measures dl").text_content()
    page.locator("[data-keep=measures-standing]").check()
    assert [row.get_attribute("data-head") for row in rows.all()] == ["0"]


PANEL = """import { note } from "kit/controls.js";
import { adopt, refill } from "kit/elements.js";
import { speaking } from "kit/words.js";
import { WORDS } from "../words.js";

const t = speaking({ title: ["Mine", "내 것"], about: ["Head {0}", "헤드 {0}번"] }, WORDS);

adopt(".mine p { color: rgb(1, 2, 3); }");

const draw = (root, app) => refill(root, note(t("about", app.state.head)));
export const panel = { id: "mine", title: () => t("title"), draw };
"""


def test_a_panel_is_one_module_and_a_line_in_one_list(
    pages: Pages, trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = read("jarilab.explorer", "panels.js")
    more = f'import {{ panel as mine }} from "./panels/mine.js";\n{listed.replace("tasklens];", "tasklens, mine];")}'
    monkeypatch.setattr(
        "jarilab.pages.kit.page.read",
        lambda package, name: {"panels.js": more, "panels/mine.js": PANEL}.get(name) or read(package, name),
    )
    page = pages.open(render(trained))
    assert page.locator("[role=tab]").all_text_contents()[-1] == "Mine"
    page.locator("#tab-mine").click()
    words = page.locator("#panel-mine p")
    assert words.text_content() == "Head 0"
    assert words.evaluate("node => getComputedStyle(node).color") == "rgb(1, 2, 3)", "no policy is in the way"
    page.locator("#language button[lang]").click()
    assert (page.locator("#tab-mine").text_content(), words.text_content()) == ("내 것", "헤드 0번")
