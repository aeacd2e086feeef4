"""The trials of a study as processes, side by side. One that fails stops nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jarilab.comparison.trial import Trial
from jarilab.runs import curve
from jarilab.runs.signals import StopSignals
from jarilab.training.progress import TrainingProgress

EVERY = 0.5
"""Seconds between looks at the trials."""


def jobs_for(trials: int, cores: int) -> int:
    """How many trials to run at once, one thread each, so that no core is idle in the last round: 3 trials on 2 cores
    run all at once, 5 in rounds of 3 and 2."""
    rounds = max(1, trials // cores)
    return -(-trials // rounds)


class Outlived:
    """A trial that another process trains: one whose comparison was killed, or a person's own. It is waited for."""

    def __init__(self, trial: Trial):
        self._trial = trial
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """None while it trains."""
        return None if self._trial.is_training else 0

    def send_signal(self, number: int) -> None:
        """It is not ours to end."""

    def wait(self) -> None:
        """Nor to wait for, once we end."""


def train_all(trials: Sequence[Trial], jobs: int, snapshots: int = 0) -> dict[str, str]:
    """Run each unfinished trial as `jarilab train` in a process of its own with one thread: the same command a person
    would give, so a trial can be repeated alone and gives the same bits. Gives the names of those that failed, and why.
    """
    waiting = [trial for trial in trials if not trial.finished]
    running: dict[str, tuple[Trial, subprocess.Popen[bytes] | Outlived]] = {}
    failed: dict[str, str] = {}
    shown = {trial.name: len(_curve(trial)) for trial in waiting}
    names = [trial.name for trial in waiting]

    def end_all() -> None:
        for _, process in running.values():
            process.send_signal(signal.SIGTERM)

    with TrainingProgress(names) as progress, StopSignals(end_all) as stop:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    trial = waiting.pop(0)
                    process = Outlived(trial) if trial.is_training else _start(trial, snapshots)
                    running[trial.name] = (trial, process)
                time.sleep(EVERY)
                stop.check()
                for name, (trial, process) in list(running.items()):
                    rows = _curve(trial)
                    news = _as_one(rows[shown[name] :])
                    if news:
                        progress.update(name, news)
                    shown[name] = len(rows)
                    if process.poll() is None:
                        continue
                    del running[name]
                    if process.returncode:
                        failed[name] = _reason(trial, process.returncode)
                    elif not trial.finished:
                        waiting.insert(0, trial)  # it was waited for, and did not end: it goes on
        except BaseException:  # whatever it was: no trial outlives the comparison
            end_all()
            for _, process in running.values():
                process.wait()
            raise
    return failed


def _as_one(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of a curve that came together, told as one: a rate between them would be that of reading them."""
    together: dict[str, Any] = {}
    for row in rows:
        together |= row
    return together


def _start(trial: Trial, snapshots: int) -> subprocess.Popen[bytes]:
    _, *words = trial.command
    # -P: the current folder is not on the import path, so that a statistics.py lying there is not executed.
    command = [sys.executable, "-P", "-m", "jarilab", *words, "--snapshots", str(snapshots)]
    with trial.log.open("wb") as log:
        # A session of its own: Ctrl-C reaches the trials through us, once.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def _curve(trial: Trial) -> list[dict[str, Any]]:
    path = trial.folder / "metrics.jsonl"
    # A damaged line is told by the trial itself, which drops it, and ends nothing here.
    return curve.read(path, trial.experiment.hash).rows if path.exists() else []


def _reason(trial: Trial, code: int) -> str:
    """What a trial said last: of a mistake (2) the whole message, without the program's name, which stands before ours;
    else the last line."""
    if code < 0:
        return f"it was ended by the signal {signal.Signals(-code).name}"
    text = trial.log.read_text(encoding="utf-8", errors="replace").strip()
    beginning = "\njarilab: " if code == 2 else "\n"
    _, _, last = f"\n{text}".rpartition(beginning)
    return last.replace("\n", "\n  ")
