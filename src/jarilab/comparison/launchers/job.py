"""The job of a trial: the function that a scheduler's pickle names."""

# It imports nothing heavy: the process that waits for the command keeps its memory as long as the command runs.

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jarilab.runs.lock import is_training

PATIENCE = 300.0
"""Seconds to wait for another process that trains the same trial."""

_child: subprocess.Popen[bytes] | None = None
"""The one command that this process runs."""


def tied(words: Sequence[str]) -> list[str]:
    """The command `jarilab` with these words, which ends when its standard input is closed."""
    # -P: the current folder is not on the import path, so that a statistics.py lying there is not executed.
    return [sys.executable, "-P", "-m", "jarilab.cli.supervised_child", *words]


def train_trial(words: Sequence[str], folder: str, log: str, exit_file: str) -> None:
    """Run `jarilab` with these words, which train in `folder`.

    The output is appended to the log. The exit code goes into a file.
    """
    global _child
    _wait_for(Path(folder))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with Path(log).open("ab") as output:
        _child = subprocess.Popen(
            tied(words),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
        )
    code = _child.wait()
    # Renamed when complete, since the driver may read it at any time.
    partial = Path(f"{exit_file}.partial")
    partial.write_text(json.dumps(code), encoding="utf-8")
    partial.replace(exit_file)


def _wait_for(folder: Path) -> None:
    """Wait until an earlier job of the same trial has written its checkpoint and ended."""
    deadline = time.monotonic() + PATIENCE
    while is_training(folder) and time.monotonic() < deadline:
        time.sleep(0.5)


def interrupted(words: Sequence[str], folder: str, log: str, exit_file: str) -> Any:
    """End the command after its checkpoint, and return the same job to be queued again.

    submitit calls it when time is up or the job is preempted.
    """
    from submitit.helpers import DelayedSubmission

    if _child is not None:
        # Not `_child.wait()`: the signal interrupted that call, which still holds its lock.
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(_child.pid, signal.SIGTERM)
            os.waitpid(_child.pid, 0)
    return DelayedSubmission(train_trial, words, folder, log, exit_file)


train_trial.checkpoint = interrupted  # type: ignore[attr-defined]
