"""What a saved page computes of Hugging Face models equals what a live one gives, number by number."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import wavfile

from helpers import folders
from helpers.folders import FELT, SENTENCE
from jarilab.explorer import open_explorer
from jarilab.explorer.page_file import saved_page
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.pages.kit.page import bundle

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
    pytest.mark.browser,
]

OPEN = """async (text) => {
    window.engine = await engineModule.Engine.open(JSON.parse(text));
    return { still: window.engine.still, apart: window.engine.apart };
}"""
OPERATE = """async ([input, edits, controls]) => {
    const { view, effect } = await window.engine.operate(input, edits, controls);
    const plain = ({ data, shape }) => ({ data: [...data], shape });
    const sites = view.sites.map(({ site, weights, hidden }) => ({ site, weights: plain(weights), hidden }));
    return { effect, sites };
}"""


class Engine:
    """The engine of a page with one model, and the live explorer of the same model."""

    def __init__(self, browser: Any, folder: Path, line: str):
        self.live, self.line = open_explorer(models=[folder]), line
        (self.view,) = saved_page(self.live, line)["views"]
        self.page = browser.new_page()
        self.page.set_content("<p>engine</p>")
        script = bundle("jarilab.explorer", "engine.js")
        self.page.add_script_tag(
            content=f"window.workerPayload = {{ language: 'en', base: '' }};\n{script}\nwindow.engineModule = engine$;"
        )
        self.opened = self.page.evaluate(OPEN, json.dumps(self.view))

    def both(self, *edits: dict[str, Any], controls: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
        """The effects of edits in the page and live, whose numbers are compared."""
        found = self.page.evaluate(OPERATE, [self.view["input"], list(edits), controls])
        live = self.live.operate(self.line, 0, list(edits), **({} if controls else {"proceed": None}))
        assert_near(found["effect"], live["effect"])
        hidden = [site["hidden"] for site in self.view["sites"]]
        assert [site["hidden"] for site in found["sites"]] == hidden, "as before: only edits hide more"
        # A live page gets only the maps that change.
        sites = {site["site"]: site for site in [*self.view["sites"], *live["view"]["sites"]]}
        for ours in found["sites"]:
            theirs = sites[ours["site"]]
            assert ours["weights"]["shape"][1:] == theirs["shape"]
            weights = np.array(ours["weights"]["data"]).reshape(ours["weights"]["shape"])
            assert np.abs(weights - unpacked(theirs["weights"])).max() < 2e-3
        return found["effect"], live["effect"]


def assert_near(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["divergence"] == pytest.approx(theirs["divergence"], rel=1e-3, abs=1e-5)
    assert [token["token"] for token in ours["tokens"]] == [token["token"] for token in theirs["tokens"]]
    for when in ("before", "after"):
        shares = [[token[when] for token in effect["tokens"]] for effect in (ours, theirs)]
        assert shares[0] == pytest.approx(shares[1], abs=1e-4)
        if theirs["log_probability"] is not None:
            assert ours["log_probability"][when] == pytest.approx(theirs["log_probability"][when], abs=1e-2)
    assert len(ours["controls"]) == len(theirs.get("controls", []))


def sound(folder: Path) -> str:
    seconds = np.arange(8000) / 16000
    wavfile.write(folder / "tone.wav", 16000, (9000 * np.sin(880 * np.pi * seconds)).astype("int16"))
    return str(folder / "tone.wav")


def bart(folder: Path) -> Path:
    return folders.bart(folder, vocab_size=17)


def t5(folder: Path) -> Path:
    return folders.t5(folder, vocab_size=17)


def marian(folder: Path) -> Path:
    return folders.marian(folder, vocab_size=17)


LANGUAGES = {
    **{"is_multilingual": True, "lang_to_id": {"<|en|>": 5, "<|de|>": 6}, "no_timestamps_token_id": 9},
    **{"task_to_id": {"transcribe": 7, "translate": 8}, "task": "transcribe", "return_timestamps": False},
}
WRITERS = {
    "plain": (bart, {"seed": 1}),
    "bart": (bart, {"forced_bos_token_id": 5, "no_repeat_ngram_size": 3, "min_length": 12}),
    "t5": (t5, {"seed": 1, "suppress_tokens": [1, 2, 4], "no_repeat_ngram_size": 2}),
    "marian": (marian, {"bad_words_ids": [[1], [2], [4]], "no_repeat_ngram_size": 2, "num_beams": 4}),
    "whisper": (folders.whisper, {"begin_suppress_tokens": [3, 14], "no_repeat_ngram_size": 2}),
    "detects": (folders.whisper, {**LANGUAGES, "suppress_tokens": [0, 1], "no_repeat_ngram_size": 2}),
}


ALWAYS = ("t5", "detects")


@pytest.mark.parametrize(
    "name", [each if each in ALWAYS else pytest.param(each, marks=pytest.mark.long) for each in WRITERS]
)
def test_an_answer_is_written_anew_as_python_writes_it(browser: Any, tmp_path: Path, name: str) -> None:
    make, settings = WRITERS[name]
    folder = folders.writer(tmp_path / name, make, **settings)
    engine = Engine(browser, folder, sound(tmp_path) if make is folders.whisper else SENTENCE)
    view = engine.view
    assert (engine.opened["still"], view["engine"]["text"]["rewriting"]["exact"]) == (None, True)
    assert view["engine"]["text"]["rewriting"]["prompt"] == view["prompt"] == (3 if name == "detects" else 0)
    edits = [{"kind": "head", "site": site["site"], "head": 1} for site in view["sites"]]
    edits.append({"kind": "token", "side": "target", "key": 1})
    edits.append({"kind": "link", "site": "decoder.1.cross", "head": None, "query": 0, "key": 2, "how": "force"})
    if make is not folders.whisper:
        edits.append({"kind": "token", "side": "source", "key": 3})
    changed = 0
    for edit in edits:
        ours, theirs = engine.both(edit)
        cut = ours["answer"].removesuffix(" …")
        assert theirs["answer"].startswith(cut) if cut != ours["answer"] else theirs["answer"] == cut, edit
        changed += theirs["answer"] != view["answer"]
        assert ours["note"] is None
    assert changed > 2
    engine.both(*edits[:2], controls=True)


def test_an_answer_of_which_no_token_is_allowed_is_written_anew(browser: Any, tmp_path: Path) -> None:
    folder = folders.writer(tmp_path / "t5", t5, suppress_tokens=list(range(17)))
    engine = Engine(browser, folder, SENTENCE)
    assert engine.opened["still"] is None
    ours, theirs = engine.both({"kind": "head", "site": "encoder.0", "head": 1})
    assert ours["answer"] == theirs["answer"] == engine.view["answer"]


@pytest.mark.parametrize(
    ("family", "head", "settings"),
    [("Bert", "Model", {}), ("Mistral", "ForCausalLM", {"num_key_value_heads": 2, "sliding_window": 3})],
)
def test_what_is_not_written_changes_as_python_says(
    browser: Any, tmp_path: Path, family: str, head: str, settings: dict[str, int]
) -> None:
    folder = folders.saved(tmp_path / family, family, head, **FELT, **settings)
    engine = Engine(browser, folders.rounded(folder), SENTENCE)
    site = engine.view["sites"][0]["site"]
    engine.both({"kind": "head", "site": site, "head": 1}, controls=True)


def test_a_page_says_where_its_answer_may_differ(browser: Any, tmp_path: Path) -> None:
    make, settings = WRITERS["t5"]
    engine = Engine(browser, folders.writer(tmp_path / "t5", make, **settings), SENTENCE)
    off = {"kind": "head", "site": "decoder.0.self", "head": 1}
    engine.page.evaluate("() => { window.engine.text.rewriting.exact = false; }")
    assert "Spaces between the tokens may differ" in engine.both(off)[0]["note"][0]
    # The page would choose other tokens than Python, as a wrong rule does here.
    text = engine.view["engine"]["text"]
    text["rewriting"]["suppressed"].append(text["labels"][4])
    opened = engine.page.evaluate(OPEN, json.dumps(engine.view))
    assert "without an edit, it writes other tokens than Python" in opened["still"][0]
    effect = engine.both(off)[0]
    assert (effect["answer"], effect["note"]) == (None, opened["still"])


def test_given_tokens_stay_after_another_language(browser: Any) -> None:
    # Tokens: start 2, languages 0 and 1, given 7 and 8, end 9.
    rules = {
        "prompt": 3,
        "max_length": 6,
        "eos_token_ids": [9],
        "min_length": 0,
        "suppressed": [],
        "begin_suppressed": [],
        "begin_index": 3,
        "forced": {},
        "allowed": {"0": [0, 1]},
        "no_repeat_ngram_size": 0,
    }
    rows = np.zeros((5, 10))
    rows[range(5), [1, 4, 4, 5, 9]] = 1  # the likeliest after each place, if the given ones were not given
    page = browser.new_page()
    page.set_content("<p>rewriting</p>")
    script = bundle("jarilab.explorer", "rewriting.js")
    page.add_script_tag(content=f"window.workerPayload = {{}};\n{script}\nwindow.rewritten = rewriting$.rewritten;")
    written = page.evaluate(
        """([rules, rows]) => {
            const scores = { shape: [5, 10], data: Float32Array.from(rows.flat()) };
            return window.rewritten(rules, [2, 0, 7, 8, 3, 9], scores, async () => scores, 6);
        }""",
        [rules, rows.tolist()],
    )
    page.close()
    assert written == {"ids": [1, 7, 8, 5, 9], "ended": True}
