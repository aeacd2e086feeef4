"""Processes of a drill: the real command, or the same call in a fork of this process, which has imported it already.

Importing torch takes seconds, of which a thousand kills would make an hour. A fork has everything but the start of
Python in common with the command: its own signals, its own files, its own end. Forks are taken before torch computes
anything here, so no thread of it is lost in them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drills.points import Plan, arm

HERE = Path(__file__).parent
DONE, MISTAKE = 0, 2
KILLED = -int(signal.SIGKILL)
TERMINATED = (128 + int(signal.SIGTERM), -int(signal.SIGTERM))
"""Written down and ended, or ended before there was anything to write down."""
PATIENCE = float(os.environ.get("JARI_CHAOS_PATIENCE", "1"))
"""How many times as long everything may take: a busy machine has no time for the drills."""
LIMIT = 60.0 * PATIENCE
"""Seconds after which an attempt hangs."""


class HungError(AssertionError):
    """A process did not end."""


def warm_up() -> None:
    """Import what every training imports, once."""
    import sklearn.datasets  # noqa: F401 - the digits
    import torch

    import jarilab.cli.result_output
    import jarilab.data.captions.sources
    import jarilab.training.loop
    import jarilab.training.progress  # noqa: F401
    from jarilab.encodings.base import registry as encodings
    from jarilab.models.base import registry as models
    from jarilab.tasks.base import registry as tasks

    torch.use_deterministic_algorithms(True)  # imports half of torch
    for registry in (encodings, models, tasks):
        registry.names()
    gc.freeze()  # so that collecting garbage in a fork does not copy what it shares with us


class Attempt:
    """One process. code: how it ended, negative for a signal, None while it runs. said: its standard error."""

    def __init__(self, pid: int, log: Path):
        self.pid = pid
        self.log = log
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            self.code = self.ended()
        return self.code

    def ended(self) -> int | None:
        """How it ended, where it has and this was not asked before."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def wait(self, limit: float = LIMIT) -> int:
        """How it ended. Raises HungError, after ending it, where it does not within `limit` seconds."""
        end = time.monotonic() + limit
        pause = 0.002
        while self.poll() is None:
            if time.monotonic() > end:
                self.signal(signal.SIGKILL)
                while self.poll() is None:
                    time.sleep(pause)
                raise HungError(f"still there after {limit:g} seconds; it said: {self.said[-400:]}")
            time.sleep(pause)
            pause = min(0.02, pause * 1.5)
        assert self.code is not None
        return self.code

    def wait_for_stop(self, limit: float = LIMIT) -> bool:
        """Whether it stopped, as by SIGSTOP; False where it ended instead."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if self.stopped():
                return True
            if self.poll() is not None:
                return False
            time.sleep(0.002)
        raise HungError("neither stopped nor ended")

    def stopped(self) -> bool:
        return state_of(self.pid) == "T"

    def signal(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def signal_one(self, number: int, chance: random.Random) -> None:
        """To one of its processes: there is one alone."""
        self.signal(number)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")


def state_of(process: int) -> str:
    """The letter that Linux has for what it does; none where it is no more."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def forked(log: Path, environment: Mapping[str, str], call: Callable[[], int]) -> int:
    """The process, a fork of this one, that calls and ends with what that gives."""
    log.touch()  # it may be killed before it opens it
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.environ.update(environment)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        as_begun()
        code = said(call)
    finally:
        os._exit(code)


def as_begun() -> None:
    """Signals as a process has them that was just begun."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def called(words: Sequence[str], plan: Plan | None) -> int:
    """`jarilab WORDS` in this process."""
    from jarilab.cli import main

    if plan is not None:
        arm(plan)
    return main(list(words))


def said(call: Callable[[], int]) -> int:
    """How a process ends that calls; what it says is written out."""
    try:
        code: Any = call()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return int(code or 0)


def commanded(log: Path, environment: Mapping[str, str], plan: Plan | None, words: Sequence[str]) -> int:
    """The process, a new Python, of these words."""
    own = {**os.environ, **environment}
    own["PYTHONPATH"] = os.pathsep.join([str(HERE / "launch"), own.get("PYTHONPATH", "")])
    if plan is not None:
        own["JARI_DRILL"] = json.dumps(vars(plan))
    with log.open("wb") as file:
        command = [sys.executable, *words]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=own)
    process.returncode = 0  # it is waited for here, not by subprocess
    return process.pid
