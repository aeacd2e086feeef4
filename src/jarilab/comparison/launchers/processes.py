"""Trials as processes of this machine."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from jarilab.comparison.study import Trial


class Running(ABC):
    """A trial that was started. returncode: of its command, once it has ended."""

    returncode: int | None = None

    @abstractmethod
    def poll(self) -> int | None:
        """None while the trial trains or waits for its turn; then its return code."""

    @abstractmethod
    def end(self) -> None:
        """End it as by SIGTERM, if this process started it."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until it has ended, if this process started it."""


class OtherProcess(Running):
    """A trial that another process trains, such as one that outlived its comparison."""

    def __init__(self, trial: Trial):
        self._trial = trial

    def poll(self) -> int | None:
        """None while it trains, then 0."""
        # 0 even if it failed: a trial without a result is started again, here.
        if not self._trial.is_training:
            self.returncode = 0
        return self.returncode

    def end(self) -> None:
        """Does nothing: this process did not start it."""

    def wait(self) -> None:
        """Does nothing: this process did not start it."""


class Process(Running):
    """A trial that is a child of this process, and ends with it."""

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


class TrialServer:
    """A process that has loaded PyTorch and forks trials: see `jarilab.cli.trial_server`."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "jarilab.cli.trial_server", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=_environment(None),
            )
        self._received = b""  # of an answer that is not complete
        self._codes: dict[int, int] = {}
        self._count = 0

    def fork(self, words: Sequence[str], log: int) -> Fork:
        """Start a trial. log: a file descriptor for its output."""
        self._count += 1
        source, lifeline = os.pipe()
        request = {"number": self._count, "words": words, "folder": str(Path.cwd())}
        text = json.dumps({**request, "environment": _environment(None)}).encode() + b"\n"
        with suppress(OSError):  # a server that has ended is noticed by `code`
            sent = socket.send_fds(self._socket, [text], [source, log])
            self._socket.sendall(text[sent:])
        os.close(source)
        return Fork(self, self._count, lifeline)

    def code(self, number: int, *, wait: bool = False) -> int | None:
        """The exit code of a trial; None while it runs, unless `wait`."""
        while number not in self._codes:
            self._socket.settimeout(None if wait else 0.0)
            try:
                part = self._socket.recv(1 << 16)
            except BlockingIOError:
                return None
            except OSError:
                part = b""
            if not part:  # the server was killed
                return -signal.SIGKILL
            *lines, self._received = (self._received + part).split(b"\n")
            self._codes |= {int(name): int(code) for name, code in map(bytes.split, lines)}
        self._socket.settimeout(None)
        return self._codes[number]

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """End the server, not its trials."""
        self._socket.close()
        self._process.wait()


class Fork(Running):
    """A trial that a server forked. It ends when its lifeline is closed, as with this process."""

    gpu = None

    def __init__(self, server: TrialServer, number: int, lifeline: int):
        self._server, self._number, self._lifeline = server, number, lifeline

    def poll(self) -> int | None:
        self.returncode = self._server.code(self._number)
        if self.returncode is not None:
            self.end()
        return self.returncode

    def end(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def wait(self) -> None:
        self.returncode = self._server.code(self._number, wait=True)
        self.end()


@cache
def _new_server() -> TrialServer:
    server = TrialServer()
    atexit.register(server.close)
    return server


def trial_server() -> TrialServer:
    """The server of this process, which ends with it; another one if it was killed."""
    if _new_server().has_ended:
        _new_server.cache_clear()
    return _new_server()


class LocalProcesses:
    """Starts a process for each trial.

    poll_seconds: between two checks of their state. jobs: trials at once. snapshots: weights to keep of each. gpus: how
    many GPUs share the trials, one trial each.
    """

    poll_seconds = 0.5

    def __init__(self, jobs: int, snapshots: int = 0, gpus: int | None = None):
        self._jobs = jobs
        self._snapshots = snapshots
        self._gpus = count_gpus() if gpus is None else gpus

    def start(
        self, waiting: Sequence[Trial], running: Mapping[str, Running]
    ) -> list[tuple[Trial, Running]]:
        """Start those of the waiting trials that may run now. running: handles of the others, by name."""
        handles: list[tuple[Trial, Running]] = []
        for trial in waiting[: self._jobs - len(running)]:
            if trial.is_training:
                handles.append((trial, OtherProcess(trial)))
                continue
            active = [*running.values(), *(handle for _, handle in handles)]
            gpu = least_used_gpu([getattr(handle, "gpu", None) for handle in active], self._gpus)
            handles.append((trial, start(trial, self._snapshots, gpu)))
        return handles


def tied(words: Sequence[str]) -> list[str]:
    """The command `jarilab` with these words, which ends when its standard input is closed."""
    # -P: the current folder is not on the import path, so that a statistics.py lying there is not executed.
    return [sys.executable, "-P", "-m", "jarilab.cli.supervised_child", *words]


def _environment(gpu: int | None) -> dict[str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = [name.strip() for name in visible.split(",") if name.strip()]
        environment["CUDA_VISIBLE_DEVICES"] = names[gpu] if names else str(gpu)
    return environment


def start(trial: Trial, snapshots: int, gpu: int | None = None) -> Process | Fork:
    """Start a trial with a new log. gpu: the only GPU that it sees, counted among those visible here."""
    with trial.log.open("wb") as log:
        if gpu is None and sys.platform == "linux":
            return trial_server().fork(trial.words(snapshots), log.fileno())
        child = subprocess.Popen(
            tied(trial.words(snapshots)),
            stdin=subprocess.PIPE,  # the trial ends when it closes; the system closes it even after kill -9
            stdout=log,
            stderr=log,
            # Without the terminal's Ctrl-C: the driver ends the trials, so that each gets one signal.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
            env=_environment(gpu),
        )
    return Process(child, gpu)


def count_gpus() -> int:
    """The number of GPUs for trials."""
    return torch.cuda.device_count()


def least_used_gpu(used: Sequence[int | None], gpus: int) -> int | None:
    """The GPU with the fewest trials; None without GPUs."""
    return min(range(gpus), key=used.count, default=None)


def jobs_for(trials: int, cores: int, gpus: int = 0) -> int:
    """How many trials to run at once, so that no core and no GPU is idle in the last round.

    With one thread each, 3 trials on 2 cores run all at once, and 5 run in rounds of 3 and 2. A GPU runs one at a time.
    """
    if gpus:
        return min(trials, gpus)
    rounds = max(1, trials // cores)
    return -(-trials // rounds)


def last_message(trial: Trial, code: int) -> str:
    """The reason in a trial's log: the whole last message for exit code 2 (a UserError), otherwise the last line.

    code: exit code; a negative one is the number of a signal.
    """
    if code < 0:
        return f"it was ended by the signal {signal.Signals(-code).name}"
    text = trial.log.read_text(encoding="utf-8", errors="replace").strip()
    start = "\njarilab: " if code == 2 else "\n"
    _, _, message = f"\n{text}".rpartition(start)
    return message.replace("\n", "\n  ")
