"""Where trials run: what is asked of an engine, and the engine of this machine, a process for each trial."""

from __future__ import annotations

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch

from jarilab.comparison.job import tied
from jarilab.comparison.trial import Trial


class Running(ABC):
    """A trial that was begun. returncode: of its command, once it has ended."""

    returncode: int | None = None

    @abstractmethod
    def poll(self) -> int | None:
        """None while it trains or waits for its turn; then its returncode."""

    @abstractmethod
    def end(self) -> None:
        """Let it end as by SIGTERM, where it is ours to end."""

    @abstractmethod
    def wait(self) -> None:
        """Until it has ended, where it is ours to end."""

    @abstractmethod
    def failure(self, trial: Trial) -> str:
        """Why it failed."""


class Engine(ABC):
    """Who runs trials. every: seconds between looks at them."""

    every = 0.5

    @abstractmethod
    def start(
        self, waiting: Sequence[Trial], running: Mapping[str, Running]
    ) -> list[tuple[Trial, Running]]:
        """Begin those of the waiting trials that may run now, beside those that are running, by their names."""


class Outlived(Running):
    """A trial that another process trains: one that still ends after its comparison was killed, or a person's own. It
    is waited for."""

    def __init__(self, trial: Trial):
        self._trial = trial

    def poll(self) -> int | None:
        """None while it trains; where it did not end, it waits for its turn again."""
        if not self._trial.is_training:
            self.returncode = 0
        return self.returncode

    def end(self) -> None:
        """It is not ours to end."""

    def wait(self) -> None:
        """Nor to wait for, once we end."""

    def failure(self, trial: Trial) -> str:
        return said_last(trial, 1)


class Process(Running):
    """A trial that is a child of this process, and ends with it, however that ends."""

    def __init__(self, child: subprocess.Popen[bytes], gpu: int | None):
        self._child = child
        self.gpu = gpu

    def poll(self) -> int | None:
        if self._child.poll() is not None:
            self.wait()
        return self.returncode

    def end(self) -> None:
        # Not by a signal: on Windows that would end it without a checkpoint.
        assert self._child.stdin is not None
        self._child.stdin.close()

    def wait(self) -> None:
        self.returncode = self._child.wait()
        assert self._child.stdin is not None
        self._child.stdin.close()

    def failure(self, trial: Trial) -> str:
        assert self.returncode is not None
        return said_last(trial, self.returncode)


class ThisMachine(Engine):
    """jobs: trials at once. snapshots: of the weights of each. gpus: how many of them share the trials, each trial on
    one; none where there are none."""

    def __init__(self, jobs: int, snapshots: int = 0, gpus: int | None = None):
        self._jobs = jobs
        self._snapshots = snapshots
        self._gpus = gpus_here() if gpus is None else gpus

    def start(
        self, waiting: Sequence[Trial], running: Mapping[str, Running]
    ) -> list[tuple[Trial, Running]]:
        begun: list[tuple[Trial, Running]] = []
        for trial in waiting[: self._jobs - len(running)]:
            if trial.is_training:
                begun.append((trial, Outlived(trial)))
                continue
            beside = [*running.values(), *(one for _, one in begun)]
            gpu = least_used([getattr(one, "gpu", None) for one in beside], self._gpus)
            begun.append((trial, start(trial, self._snapshots, gpu)))
        return begun


def start(trial: Trial, snapshots: int, gpu: int | None = None) -> Process:
    """Begin a trial, its log anew. gpu: the only one that it sees, counted among those that this process sees."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if gpu is not None:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        named = [name.strip() for name in seen.split(",") if name.strip()]
        environment["CUDA_VISIBLE_DEVICES"] = named[gpu] if named else str(gpu)
    with trial.log.open("wb") as log:
        child = subprocess.Popen(
            tied(trial.words(snapshots)),
            stdin=subprocess.PIPE,  # it ends where this is closed, which the system does whatever ends us
            stdout=log,
            stderr=log,
            # Ctrl-C reaches the trials through us, once
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
            env=environment,
        )
    return Process(child, gpu)


def gpus_here() -> int:
    """How many there are for trials."""
    return torch.cuda.device_count()


def least_used(used: Sequence[int | None], gpus: int) -> int | None:
    """The GPU that the fewest trials are on; None where there are none."""
    return min(range(gpus), key=used.count, default=None)


def jobs_for(trials: int, cores: int, gpus: int = 0) -> int:
    """How many trials to run at once, so that no GPU or, one thread each, no core is idle in the last round: 3 trials
    on 2 cores run all at once, 5 in rounds of 3 and 2. A GPU has one at a time."""
    if gpus:
        return min(trials, gpus)
    rounds = max(1, trials // cores)
    return -(-trials // rounds)


def said_last(trial: Trial, code: int) -> str:
    """What a trial said last: of a mistake (2) the whole message, without the program's name, which stands before ours;
    else the last line."""
    if code < 0:
        return f"it was ended by the signal {signal.Signals(-code).name}"
    text = trial.log.read_text(encoding="utf-8", errors="replace").strip()
    beginning = "\njarilab: " if code == 2 else "\n"
    _, _, last = f"\n{text}".rpartition(beginning)
    return last.replace("\n", "\n  ")
