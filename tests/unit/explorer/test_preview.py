"""Figures of a page's head, and the small page that a notebook draws for a tape."""

import base64
import json
import re

import numpy as np
import pytest
import torch

import jarilab
from helpers.browser import assert_colours, decode_png
from jarilab.core.errors import UserError
from jarilab.inspect.figures.maps import draw_map
from jarilab.pages.kit.data_blocks import unpacked


def tape_of(batch: int = 1, length: int = 5) -> jarilab.Tape:
    torch.manual_seed(0)
    model = jarilab.LanguageModel(11, d_model=16, n_heads=2, n_layers=1, encoding="rotary").eval()
    with torch.no_grad(), jarilab.record(model) as tape:
        model(torch.randint(11, (batch, length)))
    return tape


def payload_of(html: str) -> dict:
    match = re.search(r'<script type="application/json" id="payload">(.*?)</script>', html, re.DOTALL)
    assert match
    return json.loads(match[1])


def test_a_page_is_saved_as_a_figure_of_the_head_at_which_it_opens(tmp_path):
    tape = tape_of()
    page = tape.show(list("ab<$5"))
    for name in ("x.svg", "x.pdf", "x.png"):
        page.save(tmp_path / name)
    site, head = page.payload["site"], page.payload["head"]
    weights = unpacked(page.payload["views"][0]["sites"][0]["weights"])[head]
    assert np.abs(weights - tape.weights(site)[0, head].double().numpy()).max() < 1e-4
    expected = draw_map(weights, "ab<$5", "ab<$5", np.tri(5), title=f"{site}, head {head}")
    assert (tmp_path / "x.svg").read_bytes() == expected.to_bytes(".svg")
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")


def test_a_page_is_saved_under_names_of_pages_only(tmp_path):
    page = tape_of().show()
    page.save(tmp_path / "page.html")
    with pytest.raises(UserError, match=r"ends in \.html for a page, or in \.svg, .*got '\.gif'; name it such as"):
        page.save(tmp_path / "x.gif")
    with pytest.raises(UserError, match=r"\.html for this small page, got '\.svg'; .*tape\.figure"):
        jarilab.preview(tape_of()).save(tmp_path / "x.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_tape_draws_its_maps_in_a_notebook():
    tape = tape_of()
    html = jarilab.preview(tape, ["</script>", "b", "c", "d", "e"]).html
    assert html.count("</script>") == 2, "a token ends no element"
    assert "http" not in re.sub(r"http-equiv|http://www\.w3\.org", "", html)
    (site,) = payload_of(html)["sites"]
    weights = unpacked(site["weights"])
    assert np.abs(weights - tape.weights("decoder.0.self")[0].double().numpy()).max() < 1e-4
    assert unpacked(site["hidden"]).tolist() == (1 - np.tri(5)).tolist()
    assert site["sides"][0][0] == "</script>"
    assert tape._repr_html_() == jarilab.preview(tape)._repr_html_()


def test_of_a_batch_the_first_input_is_drawn():
    tape = tape_of(batch=3)
    payload = payload_of(jarilab.preview(tape).html)
    assert payload["batch"] == 3
    weights = unpacked(payload["sites"][0]["weights"])
    assert np.abs(weights - tape.weights("decoder.0.self")[0].double().numpy()).max() < 1e-4


def test_a_link_to_a_page_has_a_preview_of_its_map():
    tape = tape_of()
    page = tape.show(list('ab<"e'))
    assert "<title>a b &lt; &quot; e · tape</title>" in page.html.replace("&#183;", "·")
    told = dict(re.findall(r'<meta property="og:(\w+)" content="(.*?)">', page.html))
    assert told["description"].endswith(f"Shown: {page.payload['site']}, head {page.payload['head']}.")
    pixels = decode_png(base64.b64decode(told["image"].partition(",")[2]))
    weights = tape.weights(page.payload["site"])[0, page.payload["head"]].numpy()
    for row, colours in enumerate(pixels[40::80, 40::80]):
        assert_colours(colours[: row + 1], weights[row, : row + 1], row + 1)
        assert (colours[row + 1 :] == [0xE8, 0xE5, 0xDC]).all(), "hidden"


def test_a_page_of_a_few_tokens_is_light():
    assert len(tape_of(length=6).show(list("abcdef")).html) < 120_000


def test_large_maps_are_pooled():
    payload = payload_of(jarilab.preview(tape_of(length=400)).html)
    assert max(payload["sites"][0]["weights"]["shape"]) <= 150


def test_words_are_merged():
    (site,) = payload_of(jarilab.preview(tape_of(), list("abcde"), words=[0, 0, 1, 1, 1]).html)["sites"]
    assert site["sides"][0] == ["ab", "cde"]
    assert site["weights"]["shape"] == [2, 2, 2]


def test_a_tape_without_calls_has_no_page():
    assert jarilab.Tape()._repr_html_() is None
