"""Saved pages of Hugging Face models that give vectors or write a text: they compute what Python does."""

import importlib.util
import json
import re
from urllib.parse import quote

import pytest

from helpers import folders
from helpers.browser import until
from helpers.folders import FELT, SENTENCE
from jarilab.explorer import explore, open_explorer

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
    pytest.mark.browser,
]

COMPARED = re.compile(r"larger effect than (\d+) of (\d+) edits")


def edited(pages, document, edits, **how):
    """What a page says of edits, beside random ones."""
    address = f"#edited={quote(json.dumps([[0, edits]]))}"
    page = pages.open(document, "html[data-engines=ready] .edited", address, **how)
    until(page, lambda: COMPARED.search(page.locator(".edited").first.inner_text()))
    return page, page.locator(".edited").first.inner_text()


def test_a_page_of_vectors_moves_them_as_python_does(pages, tmp_path):
    folder = folders.saved(tmp_path / "vectors", "Bert", "Model", **FELT)
    explorer, document = open_explorer(models=[folder]), explore(model=folder, input=SENTENCE).html
    head = {"kind": "head", "site": "encoder.0", "head": 1}
    for edit in (head, {"kind": "token", "side": "source", "key": 3}):
        page, said = edited(pages, document, [edit])
        assert "You can switch heads, links and tokens in this page" in page.locator("#input-note").inner_text()
        effect = explorer.operate(SENTENCE, 0, [edit])["effect"]
        moved = float(re.search(r"vectors moved by ([\d.]+) %", said)[1])
        assert moved == pytest.approx(100 * effect["divergence"], rel=0.02, abs=0.06), "16 bits"
        smaller = sum(control["divergence"] < effect["divergence"] for control in effect["controls"])
        assert [int(number) for number in COMPARED.search(said).groups()] == [smaller, len(effect["controls"])]
        assert page.locator(".said .answer").count() == 0
