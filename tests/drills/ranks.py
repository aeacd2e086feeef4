"""A run on several processes: torchrun's agent, and the ranks that it starts. They end as one process would say it.

Ranks, too, may be forks of the process that has imported torch: torchrun is the real one, but where it would start
Python for a rank it forks itself. A rank is a session of its own, as torchrun has it, so it outlives an agent that is
killed; it has to end by itself then.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drills.processes import DONE, KILLED, MISTAKE, TERMINATED, Attempt, as_begun, said, state_of

EXIT = re.compile(r"exitcode\s*: (-?\d+)")
"""How a rank ended, in what torchrun says of it."""
TOLD = re.compile(r"SignalException: .* got signal: (\d+)")
"""What torchrun says where it was told to end itself."""


def torchrun(ranks: int, log: Path) -> list[str]:
    """The words between `torchrun` and those of the command: what ranks say goes into files of their own."""
    words = ["--nnodes", "1", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", "localhost:0", "--log-dir", str(_folder(log)), "--redirects", "3"]
    return [*words, "-m", "jarilab"]


def _folder(log: Path) -> Path:
    return log.with_suffix("")


class Ranks(Attempt):
    """torchrun. code: that of a single process which the same happened to."""

    def __init__(self, pid: int, log: Path):
        super().__init__(pid, log)
        self._ranks: set[int] = set()
        self._agent: int | None = None

    def ended(self) -> int | None:
        """How all of it ended, once nobody of it is there."""
        self._note()
        if self._agent is None:
            self._agent = super().ended()
        if self._agent is None or any(_lives(rank) for rank in self._ranks):
            return None
        return self.meaning(self._agent)

    def _note(self) -> None:
        """Remember the ranks: nobody knows whose they were once their agent is gone."""
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
                self._ranks |= {int(child) for child in (thread / "children").read_text().split()}

    def meaning(self, agent: int) -> int:
        """The agent ends with 1 whatever happened to its ranks, and says what it was."""
        if agent != 1:
            return agent
        words = super().said
        told = TOLD.search(words)
        if told:
            return -int(told[1])
        codes = [int(code) for code in EXIT.findall(words)]
        # A rank that waited in vain for another ends by a mistake, so what happened to that one comes first.
        known = [code for code in (KILLED, *TERMINATED, MISTAKE) if code in codes]
        return known[0] if known else agent

    def signal(self, number: int) -> None:
        """To all of it."""
        self._note()
        for one in (self.pid, *self._ranks):
            _send(one, number)

    def signal_one(self, number: int, chance: random.Random) -> None:
        """To the agent or one of the ranks."""
        _send(self.pid, signal.SIGSTOP)  # so that it starts no rank that is not known here
        self._note()
        there = [rank for rank in sorted(self._ranks) if _lives(rank)]
        _send(chance.choice([self.pid, *there]), number)
        _send(self.pid, signal.SIGCONT)

    def stopped(self) -> bool:
        self._note()
        return any(state_of(rank) == "T" for rank in self._ranks)

    @property
    def said(self) -> str:
        """Standard error of all ranks, then standard output; and the agent's, which speaks in tracebacks, where it
        ended in a way of its own."""
        logs = sorted(_folder(self.log).rglob("stderr.log")) + sorted(_folder(self.log).rglob("stdout.log"))
        words = "".join(log.read_text(errors="replace") for log in logs)
        return words if self.code in (DONE, KILLED, MISTAKE, *TERMINATED) else words + super().said


def _send(process: int, number: int) -> None:
    if _lives(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _lives(process: int) -> bool:
    return state_of(process) not in ("", "Z", "X")


class _Fork:
    """What torchrun asks of a process that it started."""

    def __init__(self, pid: int):
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(0.01)
        assert self.code is not None
        return self.code


def forking(words: list[str], rank: Callable[[], int]) -> int:
    """torchrun in this process, with forks of it for ranks, which call `rank`."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    def popen(self: Any, arguments: tuple[str, ...], environment: dict[str, str]) -> _Fork:
        pid = os.fork()
        if pid:
            return _Fork(pid)
        code = 70
        try:
            os.setsid()
            os.environ.update(environment)
            os.dup2(self._stdout.fileno(), 1)
            os.dup2(self._stderr.fileno(), 2)
            as_begun()
            code = said(rank)
        finally:
            os._exit(code)

    SubprocessHandler._popen = popen  # type: ignore[method-assign, assignment]
    run.main(words)
    return 0
