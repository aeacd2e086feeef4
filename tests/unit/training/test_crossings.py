"""A run keeps the crossing points that it was begun with, and so does a study."""

import pytest

from helpers.command import command
from helpers.runs import PowerCutError, at, cut, held, newest_of, seal, timeless, tiny, train
from jarilab.attention import crossings
from jarilab.attention.crossings import PACKAGE, Crossings
from jarilab.comparison.study import Study
from jarilab.errors import UserError
from jarilab.storage.files import write_json

FUSED = Crossings(fused_float32=1)
"""Under which the tiny model of these tests computes by another kernel than by the package's."""
SHORT = tiny("none", model__dropout=0.0)


@pytest.fixture(autouse=True)
def own_file(tmp_path, monkeypatch):
    """What this person measured, nothing at first."""
    monkeypatch.setenv("JARILAB_TUNED", str(tmp_path / "kernels.json"))
    monkeypatch.setattr(crossings, "_chosen", None)


def weights(folder):
    return (newest_of(folder) / "model.safetensors").read_bytes()


def test_a_run_goes_on_with_the_points_it_was_begun_with_and_says_so(tmp_path, capsys):
    crossings.keep(FUSED)
    train(tmp_path / "whole", SHORT)
    record = held(tmp_path / "whole" / "run.json")
    assert record["environment"]["crossings"] == str(FUSED)
    assert set(record["kernels"].values()) == {"fused"}

    with pytest.raises(PowerCutError):
        train(tmp_path / "run", SHORT, report=at(5, cut))
    crossings.forget()
    capsys.readouterr()
    train(tmp_path / "run", SHORT)
    said = capsys.readouterr().err
    assert "goes on by the crossing points of kernels that it was begun with" in said
    assert "fused_float32 1, now 49" in said
    assert "not bit-exact" not in said
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert held(tmp_path / "run" / "run.json")["environment"]["crossings"] == str(FUSED)
    assert crossings.current() == PACKAGE, "after the run"

    capsys.readouterr()
    train(tmp_path / "run", SHORT)  # finished: nothing goes on
    assert "crossing" not in capsys.readouterr().err


def test_a_run_of_before_goes_on_with_the_package(tmp_path):
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", SHORT, report=at(5, cut))
    record = held(tmp_path / "run" / "run.json")
    assert record["environment"].pop("crossings") == str(PACKAGE)
    seal(tmp_path / "run" / "run.json", record)
    crossings.keep(FUSED)
    train(tmp_path / "run", SHORT)
    train(tmp_path / "tuned", SHORT)
    crossings.forget()
    train(tmp_path / "whole", SHORT)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole") != weights(tmp_path / "tuned")


def test_a_damaged_record_is_told(tmp_path):
    train(tmp_path / "run", SHORT)
    record = held(tmp_path / "run" / "run.json")
    record["environment"]["crossings"] = 7
    seal(tmp_path / "run" / "run.json", record)
    with pytest.raises(UserError, match=r"run\.json: unknown crossing point '7'.* put the file back"):
        train(tmp_path / "run", SHORT)


def test_a_repeated_run_takes_the_points_of_its_pattern(tmp_path):
    small = ["--examples", "32", "--batch", "16", "--evaluations", "1", "--evaluation-examples", "4", "--width", "16",
             "--heads", "2", "--encoder-layers", "1", "--decoder-layers", "1", "--threads", "1"]  # fmt: skip
    said = command("train", "arithmetic:maximum=9", *small, "--crossings", "fused_float32=1", "--out", tmp_path / "a")
    assert said.returncode == 0, said.stderr
    said = command("train", "--from", tmp_path / "a", "--out", tmp_path / "b")
    assert said.returncode == 0, said.stderr
    assert "not as in" not in said.stderr
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    said = command("train", "--from", tmp_path / "a", "--crossings", "package", "--out", tmp_path / "c")
    assert f"not as in {tmp_path / 'a'}: crossings is package, was {FUSED}" in said.stderr
    first, other = (timeless(held(tmp_path / name / "run.json"))["kernels"] for name in "ac")
    assert set(first.values()) == {"fused"}
    assert set(other.values()) == {"explicit"}
    said = command("train", "arithmetic", "--crossings", "fussed_float32=1", "--out", tmp_path / "d")
    assert said.returncode == 2
    assert "did you mean 'fused_float32'" in said.stderr


def test_all_trials_of_a_study_have_those_it_was_begun_with(tmp_path, capsys):
    crossings.keep(FUSED)
    study = Study.of("arithmetic", ["none"], 2, {"model.width": 16})
    study.write(tmp_path)
    crossings.forget()
    grown = Study.read(tmp_path).extended(["+t5"], 3)
    for same in (grown, Study.of("arithmetic", ["none"], 2, {"model.width": 16}).begun_in(tmp_path)):
        for trial in same.trials(tmp_path):
            where = trial.command.index("--crossings")
            assert Crossings.read(trial.command[where + 1]) == FUSED
    assert "fused_float32 1, now 49" in capsys.readouterr().err


def test_a_study_of_before_has_those_of_the_package(tmp_path):
    Study.of("arithmetic", ["none"], 1, {"model.width": 16}).write(tmp_path)
    record = held(tmp_path / "study.json")
    del record["crossings"]
    write_json(tmp_path / "study.json", record)
    assert Crossings.read(Study.read(tmp_path).crossings) == PACKAGE
