"""A damaged line of the curve is named by whoever reads it; one that was cut off by a kill is no damage."""

import json
import os
import shutil
from pathlib import Path

import pytest

import jarilab
from helpers.command import command
from helpers.runs import PowerCutError, at, cut, held, outcome, seal, tiny, train
from jarilab.core.errors import UserError
from jarilab.runs import metrics_log
from jarilab.runs.folder import read_metrics

ROWS = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25, "value": 1}, {"step": 3, "loss": 0.125}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A curve of three rows."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(metrics_log.sealed_lines(ROWS, "ours")))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Copied, never changed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder, tiny(training__examples=16 * 4))
    return folder


@pytest.fixture
def finished(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def test_rows_come_back_as_they_were(path: Path) -> None:
    assert metrics_log.read(path, "ours", 3) == metrics_log.MetricsLog(ROWS, [])


def test_every_flipped_bit_is_named_and_costs_the_lines_that_it_hit(path: Path) -> None:
    content = path.read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        found = metrics_log.read(path, "ours", 3)
        assert [row for row in found.rows if row not in ROWS] == []
        assert len(found.rows) >= (1 if content[place] == ord("\n") else 2)
        assert all(problem.startswith(f"{path}:") for problem in found.problems)
        assert found.problems, place


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda lines: lines[:1] + lines[2:], ":2 is damaged: 1 lines before it are missing"),
        (lambda lines: [lines[1], lines[0], lines[2]], ":1 is damaged: 1 lines before it are missing"),
        (lambda lines: [*lines, lines[2]], ":4 is damaged: it repeats line 3"),
        (lambda lines: lines[:2], " is damaged: expected 3 lines, got 2"),
        (lambda lines: [], " is damaged: expected 3 lines, got 0"),
        (lambda lines: [*lines[:2], lines[2].replace("0.125", "0.126")], ":3 is damaged: it does not match"),
        (lambda lines: [*lines[:2], '{"step": 3, "loss": 0.125}\n'], ":3 is damaged: it does not match"),
    ],
)
def test_lines_that_are_lost_moved_or_changed_are_told(path: Path, change, problem: str) -> None:
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
    assert metrics_log.read(path, "ours", 3).problems[0].startswith(f"{path}{problem}")


def test_the_curve_of_another_run_is_no_curve_of_this_one(path: Path) -> None:
    found = metrics_log.read(path, "another")
    assert (found.rows, len(found.problems)) == ([], 3)


def test_a_line_that_a_kill_cut_off_is_no_damage(path: Path) -> None:
    whole = path.read_text()
    for end in range(1, len(metrics_log.sealed_lines(ROWS[2:], "ours", 3)[0])):
        path.write_text(whole[:-end])
        assert metrics_log.read(path, "ours").problems == []


@pytest.mark.parametrize("value", ["1e999", "NaN", "-Infinity", "1" + "0" * 400, '"1"', "[1]", "true", "{}"])
def test_a_row_with_a_number_that_is_none_is_no_row(value: str) -> None:
    assert not metrics_log.is_row(json.loads(f'{{"step": 1, "loss": {value}}}'))
    assert metrics_log.is_row({"step": 1, "loss": 1.0})


# What reads it -------------------------------------------------------------------------------------------------------


def spoil(run: Path) -> str:
    """Change a digit of the loss in the second line."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    row = json.loads(lines[1])
    lines[1] = lines[1].replace(str(row["loss"]), str(row["loss"] + 1))
    path.write_text("".join(lines))
    return f"{path}:2 is damaged: it does not match its checksum"


def test_report_runs_and_explore_name_the_line(finished: Path) -> None:
    told = spoil(finished)
    (finished / "result.json").unlink()
    said = command("report", finished)
    assert (said.returncode, f"{told}; `jarilab verify {finished} --repair` keeps" in said.stderr) == (2, True)
    assert not (finished / "report.html").exists()
    assert told in command("runs", finished).stdout
    with pytest.raises(UserError, match=r"metrics\.jsonl:2 is damaged"):
        jarilab.explore(finished, input="1+1", still=True)


def test_training_goes_on_without_a_damaged_line_says_so_and_keeps_a_copy(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = tiny(training__examples=16 * 4)
    run = tmp_path / "run"
    with pytest.raises(PowerCutError):
        train(run, experiment, report=at(3, cut))
    told = spoil(run)
    spoilt = (run / "metrics.jsonl").read_bytes()
    train(run, experiment)
    copy = run / "damaged" / "metrics.jsonl.1"
    assert f"jarilab: {told}; it is left out, and {copy} is a copy of the whole file\n" in capsys.readouterr().err
    assert copy.read_bytes() == spoilt
    (found, curve_found, _), (expected, curve_expected, _) = outcome(run), outcome(whole)
    assert curve_found == [curve_expected[0], *curve_expected[2:]]
    newest = max(expected)
    model, optimizer, state = expected.pop(newest)
    assert found.pop(newest) == (model, optimizer, state | {"rows": len(curve_found)})
    assert found == expected


def test_a_changed_digit_of_the_result_is_told(finished: Path) -> None:
    path = finished / "result.json"
    record = json.loads(path.read_text())
    for name in ("exact_match", "parameters", "seconds"):
        path.write_text(json.dumps(record | {name: record[name] + 0.5}))
        said = command("runs", finished)
        assert f"{path} is damaged: it does not match its checksum" in said.stdout
        with pytest.raises(UserError, match=r"result\.json is damaged: it does not match its checksum"):
            train(finished, tiny(training__examples=16 * 4))


def test_what_the_hash_of_an_experiment_does_not_cover_is_sealed_too(finished: Path) -> None:
    path = finished / "run.json"
    record = json.loads(path.read_text())
    record["environment"]["threads"] = 7
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"run\.json is damaged: it does not match its checksum"):
        jarilab.load(finished)


def test_an_experiment_that_is_not_its_hash_is_refused_where_the_checksum_fits_too(finished: Path) -> None:
    path = finished / "run.json"
    record = held(path)
    record["experiment"]["seed"] = 2
    seal(path, record)
    with pytest.raises(UserError, match=r"run\.json is damaged: its experiment has the hash"):
        jarilab.load(finished)


@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_a_record_without_a_checksum_is_damaged(finished: Path, name: str) -> None:
    (finished / name).write_text(json.dumps(held(finished / name)))
    with pytest.raises(UserError, match=rf"{name} is damaged"):
        train(finished, tiny(training__examples=16 * 4))


# Files that are none -------------------------------------------------------------------------------------------------


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def elsewhere(path: Path) -> None:
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


def vast(path: Path) -> None:
    os.truncate(path, 2**43)


@pytest.mark.parametrize("spoil", [fifo, endless, elsewhere, vast])
@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "result.json"])
def test_nothing_is_waited_for_and_nothing_elsewhere_is_read(finished: Path, name: str, spoil) -> None:
    spoil(finished / name)
    expected = f"{name} is (missing or not a plain file|larger than)|is not a run"
    if name == "metrics.jsonl":
        with pytest.raises(UserError, match=expected):
            read_metrics(finished)
    else:
        with pytest.raises(UserError, match=expected):
            train(finished, tiny(training__examples=16 * 4))
    assert command("runs", finished.parent).returncode == 0


def test_a_seal_is_of_what_is_said_and_not_of_how_it_is_written(tmp_path: Path) -> None:
    seal(tmp_path / "a.json", {"b": 1, "a": [0.1, "é"]})
    path = tmp_path / "a.json"
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert held(path) == {"a": [0.1, "é"], "b": 1}
