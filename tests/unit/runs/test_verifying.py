"""`jarilab verify`: what of a run is damaged, what can still be used, and nothing of it deleted."""

import json
import shutil
from pathlib import Path

import pytest

import jarilab
from helpers.command import command
from helpers.runs import held, newest_of, tiny, train
from jarilab.core.errors import UserError
from jarilab.runs.folder import Run, read_metrics
from jarilab.runs.verifying import DAMAGED, OTHER, WHOLE, verify


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with snapshots. Copied, never changed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder, tiny(training__examples=16 * 6, training__evaluations=3), snapshots=2)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def flip(path: Path, place: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    path.write_bytes(content)


def states(run: Path) -> dict[str, str]:
    return {one.file: one.state for one in verify(run).files}


def test_a_whole_run_is_whole(run: Path) -> None:
    found = verify(run)
    assert found.whole
    assert {one.state for one in found.files} == {WHOLE}
    assert (found.finished, found.answers_from, found.goes_on_from) == (True, 6, None)
    names = [path.name for path in run.iterdir() if path.is_file() and path.name != ".lock"]
    names += [f"{path.parent.name}/{path.name}" for path in run.glob("*/step-*")]
    assert sorted(one.file for one in found.files) == sorted(names)
    said = command("verify", run)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.endswith("It answers from step 6; it is finished.\n")


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("run.json", "run.json"),
        ("metrics.jsonl", "metrics.jsonl"),
        ("result.json", "result.json"),
        ("snapshots/step-000000003.safetensors", "snapshots/step-000000003.safetensors"),
        ("checkpoints/step-000000006/model.safetensors", "checkpoints/step-000000006"),
        ("checkpoints/step-000000006/optimizer.safetensors", "checkpoints/step-000000006"),
        ("checkpoints/step-000000006/state.json", "checkpoints/step-000000006"),
        ("checkpoints/step-000000006/manifest.json", "checkpoints/step-000000006"),
    ],
)
def test_a_damaged_file_is_the_only_one_that_is_named(run: Path, file: str, named: str) -> None:
    flip(run / file)
    assert [one for one, state in states(run).items() if state != WHOLE] == [named]
    said = command("verify", run, "--json")
    assert said.returncode == 1
    (told,) = json.loads(said.stdout)["runs"]
    assert not told["whole"]
    assert told["answers_from"] == (None if file == "run.json" else 4 if file.startswith("check") else 6)


def test_files_that_are_gone_are_damage(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    shutil.rmtree(run / "checkpoints")
    found = verify(run)
    assert [one.file for one in found.files if one.state == DAMAGED] == ["metrics.jsonl"]
    assert found.answers_from is None
    assert "It cannot answer" in command("verify", run).stdout.replace("(--repair), it", "It")
    (run / "run.json").unlink()
    with pytest.raises(UserError, match=r"is not a run: it has no run\.json"):
        verify(run)


def test_repair_puts_aside_what_is_damaged_and_deletes_nothing(run: Path) -> None:
    damaged = [
        run / "metrics.jsonl",
        run / "result.json",
        run / "snapshots" / "step-000000003.safetensors",
        newest_of(run) / "model.safetensors",
    ]
    for path in damaged:
        flip(path)
    spoilt = [path.read_bytes() for path in damaged]
    rows = len(read_curve_rows(run)) - 1
    said = command("verify", run, "--repair")
    assert said.returncode == 0
    assert f"metrics.jsonl keeps its {rows} undamaged lines" in said.stdout
    assert said.stdout.endswith("It answers from step 4, and training continues from there.\n")
    aside = [path.read_bytes() for path in (run / "damaged").rglob("*") if path.is_file()]
    assert all(content in aside for content in spoilt)
    assert {one.state for one in verify(run).files} == {WHOLE}
    assert jarilab.load(run).step == 4
    train(run, tiny(training__examples=16 * 6, training__evaluations=3), snapshots=2)
    assert verify(run).finished


def read_curve_rows(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


def test_a_repaired_curve_of_a_finished_run_is_whole(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert states(run)["metrics.jsonl"] == DAMAGED
    verify(run, repair=True)
    assert {one.state for one in verify(run).files} == {WHOLE}
    assert len(read_metrics(run)) == len(lines) - 1


def test_other_files_and_leftovers_are_no_damage(run: Path) -> None:
    (run / "report.html").touch()
    (run / "checkpoints" / ".step-000000007.1.partial").mkdir()
    found = {one.file: one.state for one in verify(run).files if one.state != WHOLE}
    assert found == {"report.html": OTHER, "checkpoints/.step-000000007.1.partial": OTHER}
    verify(run, repair=True)
    assert not list(run.rglob("*.partial"))
    assert (run / "report.html").exists()


def test_a_run_that_is_trained_is_not_repaired_meanwhile(run: Path) -> None:
    experiment = tiny(training__examples=16 * 6, training__evaluations=3)
    fingerprint = held(run / "run.json")["data"]
    with (
        Run.open(run, experiment, fingerprint, {}),
        pytest.raises(UserError, match="another process is training in"),
    ):
        verify(run, repair=True)
