"""The notebooks run from top to bottom, and are kept without what they printed."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SAID = {
    "compare_encodings": ["none", "rotary", "ceiling", "one seed each"],
    "inside_your_model": ["said: [3, 1, 4, 1, 5, 9, 2]", "changed at places [5]"],
    "look_at_any_module": ["largest difference of the weights", "computed no attention that could be heard"],
}


def cells(path: Path) -> list[dict[str, Any]]:
    """The cells of code."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(SAID)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_no_outputs(path: Path) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(path))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "notebook"}
    printed = io.StringIO()
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(printed):
        for cell in cells(path):
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
    assert [said for said in SAID[path.stem] if said not in printed.getvalue()] == []
