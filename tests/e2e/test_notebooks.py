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
    "compare_encodings": ["none", "rotary", "ceiling", "one seed each"],
    "inside_your_model": ["said: [3, 1, 4, 1, 5, 9, 2]", "changed at places [5]"],
    "look_at_any_module": ["largest difference of the weights", "nothing was recorded"],
    "look_at_hugging_face": [
        "BertForMaskedLM in the folder random-model",
        "encoder.1: gives its output back within",
        ", usually ",
        "holds    rows do not mix",
        "alibi    the heads of the first layer look ",
    ],
}


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
@pytest.mark.parametrize("around", ["repository", "nothing", "another project", "a source named"])
def test_a_notebook_begins_by_installing_what_is_missing(
    path: Path, around: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here := tmp_path / "examples").mkdir()
    (tmp_path / "pyproject.toml").touch()
    if around == "repository":
        (tmp_path / "src" / "jarilab").mkdir(parents=True)
    monkeypatch.delenv("JARILAB_SOURCE", raising=False)
    if around == "a source named":
        monkeypatch.setenv("JARILAB_SOURCE", "jarilab-9.whl")
    first, given = "".join(cells(path)[0]["source"]), list[list[str]]()
    monkeypatch.setattr(subprocess, "run", lambda words, check: given.append(words))
    with contextlib.chdir(here):
        exec(first, {})
        assert given == [] or importlib.util.find_spec("transformers") is None, "all is there"
        given.clear()
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        exec(first, {})
    extras = "[huggingface,text]" if path.stem == "look_at_hugging_face" else ""
    wanted = {"repository": "..", "a source named": "jarilab-9.whl"}.get(around, "jarilab") + extras
    assert given == [[sys.executable, "-m", "pip", "install", "-q", wanted]]


def long_if_it_trains(path: Path) -> Any:
    return pytest.param(path, id=path.stem, marks=[pytest.mark.long] * (path.stem == "compare_encodings"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers while it is imported
@pytest.mark.parametrize("path", [long_if_it_trains(path) for path in NOTEBOOKS])
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    if path.stem == "look_at_hugging_face" and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    names: dict[str, Any] = {"__name__": "notebook"}
    printed = io.StringIO()
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(printed):
        for cell in cells(path):
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
    assert [said for said in SAID[path.stem] if said not in printed.getvalue()] == []
