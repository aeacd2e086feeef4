"""The trials of a study, begun by an engine and followed until they end. One that fails stops nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from jarilab.comparison.processes import Engine, Running
from jarilab.comparison.trial import Trial
from jarilab.runs import metrics_log
from jarilab.runs.signals import StopSignals
from jarilab.training.progress import TrainingProgress


def train_all(trials: Sequence[Trial], engine: Engine) -> dict[str, str]:
    """Run each unfinished trial as `jarilab train` in a process of its own with one thread: the same command a person
    would give, so a trial can be repeated alone and gives the same bits. Gives the names of those that failed, and why.
    """
    waiting = [trial for trial in trials if not trial.finished]
    by_name = {trial.name: trial for trial in waiting}
    running: dict[str, Running] = {}
    failed: dict[str, str] = {}
    shown = {trial.name: len(_curve(trial)) for trial in waiting}

    def end_all() -> None:
        for one in running.values():
            one.end()

    with TrainingProgress(list(by_name)) as progress, StopSignals(end_all) as stop:
        try:
            while waiting or running:
                for trial, begun in engine.start(waiting, running):
                    waiting.remove(trial)
                    running[trial.name] = begun
                time.sleep(engine.every)
                stop.check()
                for name, one in list(running.items()):
                    trial = by_name[name]
                    rows = _curve(trial)
                    news = _as_one(rows[shown[name] :])
                    if news:
                        progress.update(name, news)
                    shown[name] = len(rows)
                    if one.poll() is None:
                        continue
                    del running[name]
                    if one.returncode:
                        failed[name] = one.failure(trial)
                    elif not trial.finished:
                        waiting.insert(0, trial)  # it was waited for, and did not end: it goes on
        except BaseException:  # whatever it was: no trial of this machine outlives the comparison
            end_all()
            for one in running.values():
                one.wait()
            raise
    return failed


def _as_one(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of a curve that came together, told as one: a rate between them would be that of reading them."""
    together: dict[str, Any] = {}
    for row in rows:
        together |= row
    return together


def _curve(trial: Trial) -> list[dict[str, Any]]:
    path = trial.folder / "metrics.jsonl"
    # A damaged line is told by the trial itself, which drops it, and ends nothing here.
    return metrics_log.read(path, trial.experiment.hash).rows if path.exists() else []
