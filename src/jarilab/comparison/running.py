"""Runs the trials of a study on an engine until they end. A trial that fails stops nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from jarilab.comparison.launchers.processes import Engine, Running
from jarilab.comparison.trial import Trial
from jarilab.runs import metrics_log
from jarilab.runs.signals import StopSignals
from jarilab.training.progress import TrainingProgress


def train_all(trials: Sequence[Trial], engine: Engine) -> dict[str, str]:
    """Train each unfinished trial with `jarilab train`, in its own process; return the reason of each failure.

    The command is the one that a user would type, so a trial can be repeated alone with the same bits.
    """
    waiting = [trial for trial in trials if not trial.finished]
    by_name = {trial.name: trial for trial in waiting}
    running: dict[str, Running] = {}
    failures: dict[str, str] = {}
    row_counts = {trial.name: len(_curve(trial)) for trial in waiting}

    def end_all() -> None:
        for handle in running.values():
            handle.end()

    with TrainingProgress(list(by_name)) as progress, StopSignals(end_all) as stop:
        try:
            while waiting or running:
                for trial, handle in engine.start(waiting, running):
                    waiting.remove(trial)
                    running[trial.name] = handle
                time.sleep(engine.poll_seconds)
                stop.check()
                for name, handle in list(running.items()):
                    trial = by_name[name]
                    rows = _curve(trial)
                    update = _merge_rows(rows[row_counts[name] :])
                    if update:
                        progress.update(name, update)
                    row_counts[name] = len(rows)
                    if handle.poll() is None:
                        continue
                    del running[name]
                    if handle.returncode:
                        failures[name] = handle.failure(trial)
                    elif not trial.finished:
                        waiting.insert(0, trial)  # it was waited for, and did not end: it goes on
        except BaseException:  # whatever it was: no trial of this machine outlives the comparison
            end_all()
            for handle in running.values():
                handle.wait()
            raise
    return failures


def _merge_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """New rows of a curve merged into one."""
    together: dict[str, Any] = {}
    for row in rows:
        together |= row
    return together


def _curve(trial: Trial) -> list[dict[str, Any]]:
    path = trial.folder / "metrics.jsonl"
    # A damaged line is told by the trial itself, which drops it, and ends nothing here.
    return metrics_log.read(path, trial.experiment.hash).rows if path.exists() else []
