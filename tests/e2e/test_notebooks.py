"""The notebooks run from top to bottom, and are kept without what they printed."""

import contextlib
import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SAID = {
    "choose_an_encoding": ["none", "rotary", "ceiling", "one seed each", "torch.Size([1, 4, 10, 16])"],
    "learn_attention": ["hidden weights: 0.0", "does not matter: True", "it does: True"],
    "look_into_your_model": [
        "largest difference of the weights",
        "nothing was recorded",
        "said: [3, 1, 4, 1, 5, 9, 2]",
        "changed at places [5]",
    ],
    "study_your_sentences": [
        "BertForMaskedLM in the folder random-model",
        "encoder.1: gives its output back within",
        ", usually ",
        "holds    rows do not mix",
        "alibi    the heads of the first layer look ",
        "L0H0: entropy ",
    ],
    "train_a_translator": ["256 pairs", "heute sieht der Hund den Apfel", "heute looks at  sees"],
}
EXTRAS = {"study_your_sentences": "[huggingface,text]", "train_a_translator": "[text]"}
ADDRESS = "https://example.org/someone/jari"


def cells(path: Path) -> list[dict[str, Any]]:
    """The cells of code."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def test_there_are_these() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(SAID)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_no_outputs(path: Path) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("around", ["repository", "nothing", "an address", "a source named"])
def test_a_notebook_begins_by_installing_what_is_missing(
    path: Path, around: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the checkout, from a source that is named, or from the repository's address: never by name from an index."""
    (here := tmp_path / "examples").mkdir()
    if around == "repository":
        (tmp_path / "src" / "jarilab").mkdir(parents=True)
    monkeypatch.delenv("JARILAB_SOURCE", raising=False)
    if around == "a source named":
        monkeypatch.setenv("JARILAB_SOURCE", "jarilab-9.whl")
    first, given = "".join(cells(path)[0]["source"]), list[list[str]]()
    if around == "an address":
        first = first.replace('REPOSITORY = ""', f'REPOSITORY = "{ADDRESS}"')
    monkeypatch.setattr(subprocess, "run", lambda words, check: given.append(words))
    monkeypatch.chdir(here)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    exec(first, {})
    assert given == [], "all is there"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    extras = EXTRAS.get(path.stem, "")
    wanted = {"repository": f"..{extras}", "a source named": "jarilab-9.whl"}
    if around == "nothing":
        with pytest.raises(SystemExit, match="into REPOSITORY"):
            exec(first, {})
    else:
        exec(first, {})
        source = wanted.get(around, f"jarilab{extras} @ git+{ADDRESS}")
        assert given == [[sys.executable, "-m", "pip", "install", "-q", source]]


def long_if_it_trains(path: Path) -> Any:
    return pytest.param(path, id=path.stem, marks=[pytest.mark.long] * (path.stem == "choose_an_encoding"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers while it is imported
@pytest.mark.parametrize("path", [long_if_it_trains(path) for path in NOTEBOOKS])
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    if path.stem == "study_your_sentences" and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    names: dict[str, Any] = {"__name__": "notebook"}
    printed = io.StringIO()
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(printed):
        for cell in cells(path):
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
    assert [said for said in SAID[path.stem] if said not in printed.getvalue()] == []
