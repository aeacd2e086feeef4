"""A report of language models that answer behind their sources: their own attention is drawn, what is ahead hatched."""

from pathlib import Path
from typing import Any

import pytest

import jarilab
from helpers.browser import Pages

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETTINGS: dict[str, Any] = {
    "task.symbols": 10,
    "task.lines": 200,
    "task.held_out": 20,
    "task.lengths": "1..5",
    "model.d_model": 16,
    "model.n_heads": 2,
    "training.batch_size": 16,
    "training.examples": 64,
    "training.evaluations": 1,
}
ENCODINGS = ["none", "alibi"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, trials_here: None) -> Path:
    out = tmp_path_factory.mktemp("joined") / "study"
    jarilab.compare("copy", out, encodings=ENCODINGS, seeds=1, settings=SETTINGS, model="decoder", precision="float32")
    return out


def test_source_and_answer_are_the_rows_and_the_columns_of_each_map(pages: Pages, study: Path) -> None:
    page = pages.open((study / "report.html").read_text(), "#why", width=1440)
    tokens = page.locator("#hero .queries").last.locator(".token").all_text_contents()
    assert tokens[:7] == ["1", "0", "9", "1", "0", "<eos>", "<bos>"]
    assert tokens == page.locator("#hero .keys").last.locator(".token").all_text_contents()
    assert "hatched" in page.locator("#kind").text_content()
    assert "decoder self-attention" in page.locator("#controls").text_content()


def test_causal_models_have_no_ceiling(study: Path) -> None:
    opened = jarilab.load(study / "none-1")
    assert opened.task.one_sequence
    assert opened.task.ceiling() is None
    assert jarilab.evaluate(opened, threads=1)["ceiling"] is None
