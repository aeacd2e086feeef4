"""Saved pages of Hugging Face models that give vectors or write a text: they compute what Python does."""

import importlib.util
import json
import re
from urllib.parse import quote

import pytest

from helpers import folders
from helpers.browser import read_change, until
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


def shown(effect):
    """The change of the log-probability a token, as far as a page shows it."""
    log = effect["log_probability"]
    return pytest.approx((log["after"] - log["before"]) / len(effect["tokens"]), abs=6e-3)


def t5(folder):
    return folders.t5(folder, vocab_size=17)


ANEW = {"seed": 1, "suppress_tokens": [1, 2, 4], "no_repeat_ngram_size": 2}


def test_a_page_writes_another_answer_as_python_does(pages, tmp_path):
    folder = folders.writer(tmp_path / "t5", t5, **ANEW)
    explorer, document = open_explorer(models=[folder]), explore(model=folder, input=SENTENCE).html
    edit = {"kind": "head", "site": "decoder.0.self", "head": 1}
    page, said = edited(pages, document, [edit])
    assert "You can switch heads, links and tokens in this page" in page.locator("#input-note").inner_text()
    view = explorer.look(SENTENCE, live=False)["views"][0]
    before, outputs = view["answer"], view["outputs"]
    ruled = sum(output["top"][0][0] != output["token"] for output in outputs)
    sentence = f"It answers {before}. At {ruled} of its {len(outputs)} tokens, a rule of generation chose a less likely"
    assert 0 < ruled < len(outputs)
    assert sentence in page.locator("#finding").inner_text()
    effect = explorer.operate(SENTENCE, 0, [edit])["effect"]
    assert effect["answer"] != before
    assert f"answer {effect['answer']} instead of {before}" in said
    assert read_change(said) == shown(effect)
    smaller = sum(control["divergence"] < effect["divergence"] for control in effect["controls"])
    assert [int(number) for number in COMPARED.search(said).groups()] == [smaller, len(effect["controls"])]
    # The maps have the rows of the answer before, whose tokens stand beside them.
    rows = len(explorer.look(SENTENCE, live=False)["views"][0]["sides"]["target"]["tokens"])
    assert page.locator(".field canvas").first.evaluate("canvas => canvas.height") == rows


def test_a_page_says_why_it_writes_no_other_answer(pages, tmp_path):
    folder = folders.writer(tmp_path / "t5", t5, **ANEW, repetition_penalty=1.5)
    document = explore(model=folder, input=SENTENCE).html
    edits = [{"kind": "head", "site": "decoder.0.self", "head": 1}]
    _, said = edited(pages, document, edits)
    setting = "generation_config.json sets repetition_penalty, which a page does not follow"
    assert f"The page does not write the changed answer: {setting}." in said
    assert "instead of" not in said
    effect = open_explorer(models=[folder]).operate(SENTENCE, 0, edits, proceed=None)["effect"]
    assert read_change(said) == shown(effect)
    address = f"#edited={quote(json.dumps([[0, edits]]))}&lang=ko"
    page = pages.open(document, "html[data-engines=ready] .edited", address)
    until(page, lambda: "바뀐 답을 쓰지 않습니다" in page.locator(".edited").first.inner_text())


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
