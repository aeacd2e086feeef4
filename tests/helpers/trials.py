"""Trials of a comparison in this process, which has PyTorch already: the command of each, one after the other."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from helpers.command import command
from jarilab.comparison.launchers import processes
from jarilab.comparison.launchers.processes import Running
from jarilab.comparison.study import Trial


class Ended(Running):
    """A trial that has ended."""

    def __init__(self, returncode: int | None):
        self.returncode = returncode

    def poll(self) -> int | None:
        return self.returncode

    def end(self) -> None:
        raise AssertionError("it has ended")

    wait = end


def start_here(trial: Trial, snapshots: int, gpu: int | None = None) -> Ended:
    """In place of `processes.start`: when it has begun, it has ended."""
    said = command(*trial.words(snapshots))
    trial.log.write_text(said.stdout + said.stderr)
    return Ended(said.returncode)


@contextmanager
def trials_in_this_process() -> Iterator[None]:
    """Where comparisons begun meanwhile train."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "start", start_here)
        patch.setattr(processes.LocalProcesses, "poll_seconds", 0.0)
        yield


@pytest.fixture(scope="module")
def trials_here() -> Iterator[None]:
    """The trials of all comparisons of a file of tests run in its process."""
    with trials_in_this_process():
        yield
