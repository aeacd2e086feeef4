"""Weights kept on the way, to look at how a model came about."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import jarilab
from helpers.runs import PowerCutError, at, cut, outcome, tiny, train
from jarilab.core.errors import UserError
from jarilab.runs import snapshots
from jarilab.runs.signals import Interrupted
from jarilab.tasks.arithmetic import Arithmetic


def test_they_are_spread_evenly_up_to_the_last_step() -> None:
    assert snapshots.evenly_spread(12, 4) == {3, 6, 9, 12}
    assert snapshots.evenly_spread(12, 0) == set()
    assert snapshots.evenly_spread(3, 100) == {1, 2, 3}


def test_a_run_with_them_is_the_same_run(tmp_path: Path) -> None:
    train(tmp_path / "with", snapshots=6)
    train(tmp_path / "without")
    assert outcome(tmp_path / "with") == outcome(tmp_path / "without")
    run = jarilab.load(tmp_path / "with")
    assert snapshots.steps_of(tmp_path / "with", run.experiment.hash) == [2, 4, 6, 8, 10, 12]
    assert snapshots.steps_of(tmp_path / "without", run.experiment.hash) == []


def test_an_interrupted_evaluation_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate, calls = Arithmetic.evaluate, []

    def interrupted(*arguments: Any) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return evaluate(*arguments)

    monkeypatch.setattr(Arithmetic, "evaluate", interrupted)
    with pytest.raises(Interrupted):
        train(tmp_path, snapshots=2)
    train(tmp_path, snapshots=2)
    assert snapshots.steps_of(tmp_path, tiny().hash) == [6, 12]


def test_the_last_is_the_model_and_the_one_before_the_first_is_the_seeds(tmp_path: Path) -> None:
    train(tmp_path, snapshots=2)
    run = jarilab.load(tmp_path)
    models = {step: snapshots.load(tmp_path, run.experiment, run.task, step) for step in (0, 6, 12)}
    fresh = run.experiment.resolved.build_model(run.task)
    jarilab.initialise(fresh, run.experiment.seed)

    def equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))

    assert equal(models[12], run.model)
    assert equal(models[0], fresh)
    assert not equal(models[6], models[12])


def test_a_run_that_was_cut_off_has_all_of_them_in_the_end(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError):
        train(tmp_path, snapshots=6, report=at(5, cut))
    train(tmp_path, snapshots=6)
    assert snapshots.steps_of(tmp_path, tiny().hash) == [2, 4, 6, 8, 10, 12]


def test_foreign_and_damaged_ones_are_told(tmp_path: Path) -> None:
    train(tmp_path, snapshots=1)
    with pytest.raises(UserError, match=f"expected a snapshot of the run other, got one of {tiny().hash}"):
        snapshots.steps_of(tmp_path, "other")
    path = next((tmp_path / "snapshots").iterdir())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="damaged or no safetensors file"):
        snapshots.steps_of(tmp_path, tiny().hash)


def test_a_changed_weight_or_another_steps_weights_are_told(tmp_path: Path) -> None:
    train(tmp_path, tiny(training__examples=32), snapshots=2)
    run = jarilab.load(tmp_path)
    first, second = sorted((tmp_path / "snapshots").iterdir())
    content = first.read_bytes()
    for spoilt in (content[:-1] + bytes([content[-1] ^ 1]), second.read_bytes()):
        first.write_bytes(spoilt)
        with pytest.raises(UserError, match=f"{first.name} is damaged: it does not match its checksum"):
            snapshots.load(tmp_path, run.experiment, run.task, 1)
    first.write_bytes(content)
    snapshots.load(tmp_path, run.experiment, run.task, 1)
