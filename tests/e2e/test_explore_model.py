"""`jarilab explore --model FOLDER`, as a person types it."""

import importlib.util
import json
import re

import pytest

from helpers import folders
from helpers.command import command
from helpers.folders import SENTENCE
from helpers.runs import tiny, train

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    folders.bert(root / "bert")
    folders.bert(root / "other", seed=1)
    folders.llama(root / "llama")
    return root


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_page_of_a_folder_and_the_heads_of_a_link(models, here):
    words = ("--input", SENTENCE, "--link", "it", "animal")
    said = command("explore", "--model", str(models / "bert"), *words)
    assert (said.returncode, said.stderr) == (0, "")
    lines = said.stdout.splitlines()
    assert lines[1].split() == ["weight", "usual", "head"]
    assert len(lines) == 2 + 8 + 2
    assert "bert: BertForMaskedLM, 2 attentions; weights times values give their outputs back within" in said.stdout
    page = (here / "bert.html").read_text()
    assert '"query":8,"key":2' in page.replace(" ", "")
    assert SENTENCE.replace("'", "\\u0027") in page or SENTENCE in page


def test_two_models_beside_each_other(models, here):
    both = ("--model", str(models / "bert"), "--against", str(models / "other"))
    said = command("explore", *both, "--input", SENTENCE, "--save", "both.html")
    assert said.returncode == 0
    assert "other: BertForMaskedLM" in said.stdout
    assert (here / "both.html").exists()


def test_a_run_of_jari_beside_a_model(models, here):
    train(here / "run", tiny("none"))
    said = command("explore", "run", "--model", str(models / "bert"), "--input", "1+1", "--save", "both.html")
    assert (said.returncode, said.stderr) == (0, "")
    (held,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', (here / "both.html").read_text(), re.S)
    views = json.loads(held)["views"]
    assert [(view["name"], view["sites"][0]["site"]) for view in views] == [("bert", "encoder.0"), ("run", "encoder.0")]
    assert views[1]["sides"]["source"]["tokens"][:3] == ["1", "+", "1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name one: jarilab explore runs/add, or jarilab explore --model FOLDER --input TEXT"),
        (("--model", "bert"), "--model reads what --input says; add it"),
        (("--model", "nowhere", "--input", "a"), "nowhere is no folder"),
        (
            ("--model", "bert", "--input", "a", "--head", "1"),
            "--head is for runs of jari alone; omit it beside --model",
        ),
        (
            ("--model", "bert", "--input", "a", "--save", "new/"),
            "is one file; expected such as page.html, got --save new/",
        ),
        (("runs/add", "--link", "it", "animal"), "--link goes with --model FOLDER; add it"),
        (("--model", "bert", "--input", SENTENCE, "--link", "it", "cat"), "unknown token 'cat'"),
    ],
)
def test_mistakes_are_one_line(models, here, words, message):
    (here / "bert").symlink_to(models / "bert")
    said = command("explore", *words)
    assert said.returncode == 2
    assert message in said.stderr
    assert len(said.stderr.splitlines()) == 1
