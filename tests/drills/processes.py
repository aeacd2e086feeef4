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
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drills.points import Plan, arm

HERE = Path(__file__).parent
LIMIT = 60.0
"""Seconds after which an attempt hangs."""


class HungError(AssertionError):
    """A process did not end."""


def warm_up() -> None:
    """Import what every training imports, once."""
    import sklearn.datasets  # noqa: F401 - the digits
    import torch

    import jarilab.captions.sources
    import jarilab.cli.results
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
        self._log = log
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, limit: float = LIMIT) -> int:
        """How it ended. Raises HungError, after ending it, where it does not within `limit` seconds."""
        end = time.monotonic() + limit
        pause = 0.002
        while self.poll() is None:
            if time.monotonic() > end:
                self.signal(signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self.code = -9
                raise HungError(f"still there after {limit:g} seconds; it said: {self.said[-400:]}")
            time.sleep(pause)
            pause = min(0.02, pause * 1.5)
        assert self.code is not None
        return self.code

    def wait_for_stop(self, limit: float = LIMIT) -> bool:
        """Whether it stopped, as by SIGSTOP; False where it ended instead."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                return True
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                return False
            time.sleep(0.002)
        raise HungError("neither stopped nor ended")

    def signal(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")


def forked(words: Sequence[str], log: Path, environment: Mapping[str, str], plan: Plan | None) -> Attempt:
    """`jarilab WORDS` in a fork of this process."""
    log.touch()  # it may be killed before it opens it
    pid = os.fork()
    if pid:
        return Attempt(pid, log)
    code = 70
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        os.environ.update(environment)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        code = _call(words, plan)
    finally:
        os._exit(code)


def _call(words: Sequence[str], plan: Plan | None) -> int:
    from jarilab.cli import main

    try:
        if plan is not None:
            arm(plan)
        code: Any = main(list(words))
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return int(code or 0)


def commanded(
    words: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    plan: Plan | None,
    launcher: Sequence[str] = (),
) -> Attempt:
    """The real command in a new process."""
    own = {**os.environ, **environment}
    own["PYTHONPATH"] = os.pathsep.join([str(HERE / "launch"), own.get("PYTHONPATH", "")])
    if plan is not None:
        own["JARI_DRILL"] = json.dumps(vars(plan))
    command = [sys.executable, *(launcher or ("-P", "-m", "jarilab")), *words]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=own)
    process.returncode = 0  # it is waited for here, not by subprocess
    return Attempt(process.pid, log)
