"""The examples do what they say."""

import json
import sys
from pathlib import Path

import pytest

import jarilab
from helpers.command import command
from jarilab.inspect.measure.measures import MEASURES
from jarilab.laws import check_encoding

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["my_encoding.py:Kerple:slope=0.5", "my_encoding2d.py:Rings:rings=4"])
def test_an_encoding_of_ones_own_keeps_the_laws(encoding: str) -> None:
    outcomes = check_encoding(f"{EXAMPLES}/{encoding}")
    assert not [outcome for outcome in outcomes if outcome.verdict == "broken"]
    assert {o.law: o.verdict for o in outcomes}["agrees with its formula"] == "holds"


@pytest.mark.slow
def test_labelled_relations_find_the_parent_and_nothing_else_does() -> None:
    sys.path.insert(0, str(EXAMPLES))
    import family  # pyright: ignore[reportMissingImports]

    assert family.accuracy("shaw:labels=4", steps=150) > 0.95
    assert family.accuracy("none", steps=150) < 0.5


@pytest.mark.slow
def test_a_measure_of_ones_own_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = f"{EXAMPLES}/my_measure.py:Nearby:within=2"
    monkeypatch.setitem(MEASURES, spec, MEASURES["entropy"])  # so that it is taken away again
    small = ["--d-model", 16, "--n-heads", 2, "--n-encoder-layers", 1, "--n-decoder-layers", 1, "--threads", 1, *SHORT]
    run, page = tmp_path / "run", tmp_path / "page.html"
    verb("train", "arithmetic:maximum=9", "--out", run, *small)
    verb("explore", run, "--measure", spec, "--still", "--save", page)
    assert "my_measure.py:Nearby:within=2" in page.read_text()


# A task and a model of one's own, through every verb ------------------------------------------------------------------

SHORT = ["--examples", 128, "--batch-size", 32, "--evaluations", 1, "--evaluation-examples", 8]
TASK = f"{EXAMPLES}/my_task.py:Distance"
MODEL = f"{EXAMPLES}/my_model.py:Parallel"
LANGUAGE_MODEL = f"{EXAMPLES}/my_model.py:ParallelLM"
TRUSTED = "--trust-code"


def verb(*words: object) -> str:
    """What a command prints. It ends well."""
    said = command(*words)
    assert said.returncode == 0, said.stderr
    return said.stdout


def looked_into(run: Path, line: str, sites: int) -> None:
    """walk, explore live and saved."""
    assert line in verb("walk", run, "--input", line, TRUSTED)
    page = run.parent / "page.html"
    verb("explore", run, "--input", line, "--save", page, TRUSTED)
    assert page.stat().st_size > 100_000
    from fastapi.testclient import TestClient

    from jarilab.explorer import open_explorer, server

    explorer = open_explorer([run], trust_code=True)
    client = TestClient(server.application(explorer, line, {"testserver"}))
    view = client.post("/api/look", json={"input": line}).json()["views"][0]
    assert len(view["sites"]) == sites
    first = view["sites"][0]["site"]
    assert client.post("/api/head", json={"input": line, "site": first, "head": 0}).json()["steps"]
    edit = {"kind": "head", "site": first, "head": 1}
    edited = client.post("/api/surgery", json={"input": line, "edits": [edit]}).json()
    assert edited["effect"]["divergence"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("trials_here")
def test_a_task_of_ones_own_goes_through_every_verb(tmp_path: Path) -> None:
    run, line = tmp_path / "run", "a-bc-a-d"
    told = verb("train", TASK, "--encoding", "rotary", "--out", run, "--threads", 1, *SHORT)
    assert "mean error in places" in told
    assert "mean_error" in json.loads(verb("evaluate", run, TRUSTED, "--json"))
    answer = json.loads(verb("predict", run, line, TRUSTED, "--json"))["answer"]
    assert answer["deviation"] > 0
    hotter = json.loads(verb("predict", run, line, TRUSTED, "--json", "--temperature", 9))["answer"]
    assert hotter["mean"] != answer["mean"], "an option of its own"
    assert "--temperature" in verb("predict", run, "--help", TRUSTED)
    looked_into(run, line, sites=2)
    compared = verb("compare", TASK, "--encodings", "none,rotary", "--out", tmp_path / "two", *SHORT)
    assert "mean error in places" in compared
    report = (tmp_path / "two" / "report.html").read_text()
    assert "mean error in places" in report
    assert line in report


@pytest.mark.slow
@pytest.mark.usefixtures("trials_here")
@pytest.mark.parametrize(
    "task", ["arithmetic", *(pytest.param(task, marks=pytest.mark.long) for task in ("translation", "text"))]
)
def test_a_model_of_ones_own_goes_through_every_verb(tmp_path: Path, task: str) -> None:
    pairs, text = tmp_path / "pairs.tsv", tmp_path / "text.txt"
    pairs.write_text("one two\teins zwei\ntwo one\tzwei eins\n" * 20)
    text.write_text("one two three four\n" * 60)
    words = {
        "arithmetic": ("arithmetic", "--maximum", 30),
        "translation": ("translation", "--train", pairs, "--valid", pairs, "--tokenizer", "words", "--longest", 8),
        "text": ("text", "--train", text, "--context-length", 16, "--tokenizer", "characters"),
    }[task]
    line = {"arithmetic": "12+3", "translation": "one two", "text": "one two"}[task]
    model = LANGUAGE_MODEL if task == "text" else MODEL
    how = ("--model", model, "--d-model", 16, "--n-heads", 2, "--n-layers", 1, *SHORT)
    run = tmp_path / "run"
    verb("train", *words, "--out", run, "--threads", 1, *how)
    verb("evaluate", run, TRUSTED)
    assert verb("predict", run, line, TRUSTED)
    if task != "text":
        assert verb("predict", run, line, TRUSTED, "--beam-size", 3, "--n-best", 2).count("\n") == 2
    looked_into(run, line, sites=1 if task == "text" else 3)
    verb("compare", *words, "--encodings", "none,rotary", "--out", tmp_path / "two", *how)
    assert (tmp_path / "two" / "report.html").is_file()
    table = json.loads((tmp_path / "two" / "table.json").read_text())
    assert [row["encoding"] for row in table["encodings"]] == ["none", "rotary"]


def test_a_model_that_lacks_a_method_is_told_which(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from torch import nn\n\n\nclass Mine(nn.Module):\n    pass\n")
    with pytest.raises(
        jarilab.UserError, match=r"needs a model that can write token by token, .*Mine has no start: write"
    ):
        jarilab.train("arithmetic", tmp_path / "run", model=f"{path}:Mine")
    assert not (tmp_path / "run").exists()
