"""Help and lists are printed from the cache, without torch, until the code or a file changes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from jarilab.cli.static_output import run_static
from jarilab.core.storage import listings
from jarilab.runs import catalog
from jarilab.runs.catalog import runs_in


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JARILAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


class Command:
    """Prints its words and counts its calls. code: its exit code."""

    def __init__(self, code: int = 0):
        self.calls, self.code = 0, code

    def __call__(self, words: Sequence[str]) -> int:
        self.calls += 1
        print(*words)
        return self.code


@pytest.mark.parametrize("words", [["train", "--help"], ["train", "arithmetic", "-h"], ["encodings"], ["tasks"]])
def test_the_second_time_is_from_the_cache(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = Command()
    assert [run_static(words, command) for _ in range(2)] == [0, 0]
    assert command.calls == 1
    assert capsys.readouterr().out == 2 * f"{' '.join(words)}\n"


@pytest.mark.parametrize(
    "words", [["train", "arithmetic"], ["encodings", "mine.py:Mine"], ["predict", "add", "--help"]]
)
def test_what_depends_on_files_or_does_more_is_run(words: list[str]) -> None:
    Path("add").mkdir()  # a run
    command = Command()
    for _ in range(2):
        run_static(words, command)
    assert command.calls == 2


def test_failures_and_changed_code_are_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failing, command = Command(code=2), Command()
    assert [run_static(["encodings"], failing) for _ in range(2)] == [2, 2]
    assert failing.calls == 2
    run_static(["encodings"], command)
    monkeypatch.setattr(listings, "_code", lambda: "changed")
    run_static(["encodings"], command)
    assert command.calls == 2


def test_a_damaged_cache_is_made_anew(cache: Path) -> None:
    run_static(["encodings"], Command())
    (cache / listings.FILE).write_text('{"code": 1')
    command = Command()
    run_static(["encodings"], command)
    run_static(["encodings"], command)
    assert command.calls == 1


def test_a_list_needs_no_torch() -> None:
    columns = shutil.get_terminal_size().columns
    with listings.listings() as entries:
        entries[json.dumps(["encodings", columns])] = "the list\n"
    Path("runs").mkdir()
    program = (
        "import sys; from jarilab.cli import main; assert main() == 0; sys.argv[1:] = ['runs']; assert main() == 0; "
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, "encodings"]
    environment = {**os.environ, "COLUMNS": str(columns)}
    told = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (told.stdout, told.stderr) == ("the list\nno runs in runs\n", "")


def test_facts_of_a_run_are_read_again_when_a_file_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Path("runs/one")
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    facts = {"task": "copy", "history": [], "state": catalog.FINISHED}
    monkeypatch.setattr(catalog, "_facts", lambda _: facts)
    assert runs_in(Path("runs"))[0].task == "copy"
    monkeypatch.setattr(catalog, "_facts", lambda _: {**facts, "task": "sort"})
    assert runs_in(Path("runs"))[0].task == "copy"
    (run / "run.json").write_text("{ }")
    assert runs_in(Path("runs"))[0].task == "sort"
