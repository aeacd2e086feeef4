"""The choice where the trials of a study run: on this machine, or later from a script for sbatch."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jarilab.comparison.launchers.processes import LocalProcesses, count_gpus, jobs_for
from jarilab.comparison.launchers.resources import Resources
from jarilab.comparison.study import Trial
from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_text

SCRIPT = "trials.sbatch"
GRACE = 120
"""Seconds between the signal that time is up and the end, in which a step is finished and a checkpoint written."""
RUN = r"""
# Told that time is up (USR2), a trial writes its checkpoint and is queued again; told to end (TERM), it only writes it.
run() {
    "$@" >> "$log" 2>&1 < /dev/null &
    child=$!
    trap 'kill -TERM $child; wait $child; scontrol requeue ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}; exit 0' USR2
    trap 'kill -TERM $child; wait $child; exit 143' TERM
    wait $child
}
"""


class NotRunError(Exception):
    """The trials did not run; `path` is a script with their commands, to be submitted."""

    def __init__(self, path: Path, trials: Sequence[Trial]):
        super().__init__(path)
        self.path = path
        self.trials = trials


@dataclass(frozen=True)
class Launcher:
    """Where trials run, and how many at once.

    jobs: trials at once. cores: of this machine. sbatch: they run later, from a script. resources: of each trial there.
    """

    jobs: int | None
    cores: int
    sbatch: bool = False
    resources: Resources | None = None

    def check(self) -> None:
        """Raises UserError for options that this kind of launcher does not have."""
        if not self.sbatch and self.resources is not None and self.resources.changed:
            flags = ", ".join(f"--{name}" for name in self.resources.changed)
            raise UserError(f"{flags}: for SLURM only; pass --sbatch, or omit it")

    def processes(self, trials: Sequence[Trial], study: Path, snapshots: int = 0) -> LocalProcesses:
        """What runs these trials of a study. Raises NotRunError after it has written a script."""
        unfinished = [trial for trial in trials if not trial.finished]
        if self.sbatch and unfinished:
            resources = self.resources or Resources()
            path = _write_script(unfinished, study, resources, self.jobs, snapshots)
            raise NotRunError(path, unfinished)
        jobs = self.jobs or jobs_for(max(1, len(unfinished)), self.cores, count_gpus())
        return LocalProcesses(jobs, snapshots)


def _write_script(
    trials: Sequence[Trial], study: Path, resources: Resources, limit: int | None, snapshots: int
) -> Path:
    """Write `trials.sbatch` for the unfinished trials and return its path."""
    lines = ["#!/bin/bash", *resources.sbatch_lines(limit, len(trials), GRACE)]
    lines.append(f'#SBATCH --output="{study.absolute()}/slurm-%A_%a.out"')
    lines += [f"cd {shlex.quote(str(Path.cwd()))} || exit 1", "export OMP_NUM_THREADS=1", RUN]
    lines.append('case "$SLURM_ARRAY_TASK_ID" in')
    for number, trial in enumerate(trials):
        command = [sys.executable, "-P", "-m", "jarilab", *trial.words(snapshots)]
        lines.append(f"{number}) log={shlex.quote(str(trial.log))}; run {shlex.join(command)} ;;")
    lines += [
        '*) echo "submit this with sbatch, which numbers its tasks" >&2; exit 2 ;;',
        "esac",
        "",
    ]
    path = study / SCRIPT
    write_text(path, "\n".join(lines))
    return path
