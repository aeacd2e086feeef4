"""Hostile runs whose checksums fit, and single bits that flip: a sentence or the same answer, never a traceback."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.mutants import HostileRun, Mutant
from helpers.runs import language_run, newest_of, tiny, train
from jarilab import api
from jarilab.comparison import curves
from jarilab.comparison.study import Trial
from jarilab.comparison.table import tabulate
from jarilab.core.errors import UserError
from jarilab.core.storage.files import read_json, seal_record, write_json
from jarilab.runs import loaded, snapshots
from jarilab.runs.catalog import runs_in
from jarilab.runs.folder import read_experiment, read_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a snapshot. Copied, never changed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder, tiny(training__examples=16 * 3, training__evaluations=3), snapshots=1)
    return folder


def faults(run: HostileRun, count: int | None) -> list[str]:
    """Of so many mutants, drawn with one seed, or of all."""
    mutants = run.mutants()
    random.Random(18).shuffle(mutants)
    found = [(one, run.fault(one)) for one in mutants[:count]]
    return [f"{one}: {fault!r}" for one, fault in found if fault is not None]


@pytest.mark.usefixtures("unchecked")
def test_some_hostile_runs_give_a_sentence(whole: Path, tmp_path: Path) -> None:
    assert faults(HostileRun(whole, tmp_path, "1+1"), 15) == []


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")
def test_every_hostile_run_gives_a_sentence(whole: Path, tmp_path: Path) -> None:
    assert faults(HostileRun(whole, tmp_path / "one", "1+1"), None) == []
    (tmp_path / "text").mkdir()
    text = language_run(tmp_path / "text")
    assert faults(HostileRun(text, tmp_path / "other", "one two"), None) == []


def test_the_check_for_tracebacks_can_fail(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Path) -> None:
        raise KeyError("seed")

    monkeypatch.setattr("helpers.mutants.runs_in", broken)
    run = HostileRun(whole, tmp_path, "1+1")
    run.records = {"result.json": run.records["result.json"]}
    assert len(faults(run, 5)) == 5


# Single bits ---------------------------------------------------------------------------------------------------------


def shown(run: Path) -> dict[str, Any]:
    """What of a run is compared, drawn, listed and answered; a sentence in the place of what is refused."""
    return {use.__name__: _said(use, run) for use in (listed, drawn, compared, answered, looked_back)}


def _said(use: Any, run: Path) -> Any:
    try:
        return use(run)
    except UserError as error:
        return f"refused: {error}"


def listed(run: Path) -> Any:
    (one,) = runs_in(run)
    told = one.as_dict()
    if one.problem is not None:
        raise UserError(one.problem)
    return {name: value for name, value in told.items() if name not in ("age", "size")}


def drawn(run: Path) -> Any:
    return curves.payload([curves.curve_of(run)])


def compared(run: Path) -> Any:
    experiment = read_experiment(read_run(run), run / "run.json")
    return tabulate([Trial("trial", experiment, run)], experiment.resolved.build_task())


def answered(run: Path) -> Any:
    return [one.record() for one in api.predict(loaded.load(run), ["12+3", "30-4"])]


def looked_back(run: Path) -> Any:
    """The weights of the snapshot, as they are looked at."""
    opened = loaded.load(run)
    (step,) = snapshots.steps_of(run, opened.experiment.hash)
    model = snapshots.load(run, opened.experiment, opened.task, step)
    return [parameter.sum().item() for parameter in model.parameters()]


def silent_changes(run: Path, count: int) -> tuple[list[str], int]:
    """Flip so many bits, one at a time, over all files of a run, each file as often as any other; those that change
    what is shown without a word, and how many were told."""
    chance = random.Random(18)
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.stat().st_size]
    expected, silent, told = shown(run), [], 0
    for number in range(count):
        path = files[number % len(files)]
        content = path.read_bytes()
        bit = chance.randrange(8 * len(content))
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        for name, value in shown(run).items():
            refused = str(value).startswith("refused: ")
            told += refused
            if not refused and value != expected[name]:
                silent.append(f"{path.relative_to(run)}, bit {bit}: {name}")
        path.write_bytes(content)
    return silent, told


def test_a_flipped_bit_changes_nothing_without_a_word(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    silent, told = silent_changes(run, 12)
    assert silent == []
    assert told > 5, "the bits were flipped"


@pytest.mark.long
def test_a_thousand_flipped_bits_change_nothing_without_a_word(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    assert silent_changes(run, 1000)[0] == []


def test_the_check_for_silent_changes_can_fail(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "snapshots")
    for path in (run / "checkpoints").iterdir():
        if path != newest_of(run):
            shutil.rmtree(path)
    monkeypatch.setattr("jarilab.runs.checkpoint.verify", lambda _: None)
    monkeypatch.setattr(f"{__name__}.shown", lambda run: {"bytes": sorted(run.rglob("*"))[-1].read_bytes()})
    assert silent_changes(run, 20)[0]


@pytest.mark.parametrize("spec", ["{}:Evil", "{}@x", "{}:Evil@text", "none+{}@x", "[none,{}@x]", "none,{}:Evil@image"])
@pytest.mark.parametrize("field", ["encoding", "encoder_encoding", "positions"])
def test_no_file_that_a_run_names_is_executed(whole: Path, tmp_path: Path, spec: str, field: str) -> None:
    """A regression of an attack on 0.1.0, where `evil.py@x` was executed."""
    run = shutil.copytree(whole, tmp_path / "run")
    trace = tmp_path / "executed"
    (tmp_path / "evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Evil: pass\n")
    hostile = HostileRun(run, tmp_path / "copy", "1+1")
    section = "training" if field == "positions" else "model_options"
    named = spec.format(tmp_path / "evil.py")
    assert hostile.fault(Mutant("run.json", ("experiment", section, field), named)) is None
    assert not trace.exists()


@pytest.mark.parametrize(
    "name", ["checkpoints", "snapshots", "tensorboard", "damaged", "metrics.jsonl", "checkpoints/step-000000099"]
)
def test_links_of_a_run_are_refused_and_their_targets_untouched(whole: Path, tmp_path: Path, name: str) -> None:
    run, target = tmp_path / "run", tmp_path / "target"
    shutil.copytree(whole, run)
    (run / "result.json").unlink()
    (target / "inner").mkdir(parents=True)
    (target / "precious").write_text("precious")
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target / "precious" if name == "metrics.jsonl" else target)
    with pytest.raises(UserError, match=r"is a link.*its own folder.*replace"):
        train(run, tiny(training__examples=16 * 3, training__evaluations=3), snapshots=1)
    assert sorted(one.name for one in target.iterdir()) == ["inner", "precious"]
    assert (target / "precious").read_text() == "precious"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"environment": {}}, "environment: threads is missing"),
        ({"environment": {"threads": [1]}}, "environment: threads: expected an integer"),
        ({"hash": "no hash " * 1000}, "is damaged: its experiment has the hash"),
    ],
)
def test_a_record_with_values_that_jari_does_not_write(
    whole: Path, tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    record = {**read_json(run / "run.json"), **change}
    write_json(run / "run.json", seal_record({name: record[name] for name in record if name != "sha256"}))
    with pytest.raises(UserError, match=told) as refused:
        read_experiment(read_run(run), run / "run.json")
    assert len(str(refused.value)) < 600


def test_a_run_without_checkpoints_says_that_it_begins_again(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints")
    train(run, tiny(training__examples=16 * 3, training__evaluations=3), snapshots=1)
    assert "no checkpoint: training begins again at step 0" in capsys.readouterr().err
