"""The choice where the trials of a study run: on this machine, on a cluster, or later from a script."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jarilab.comparison.launchers.cluster import GRACE, Cluster
from jarilab.comparison.launchers.processes import (
    Engine,
    LocalProcesses,
    count_gpus,
    jobs_for,
)
from jarilab.comparison.launchers.resources import ClusterKind, Resources
from jarilab.comparison.trial import Trial
from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_text
from jarilab.runs.jobs import CLUSTER

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

    jobs: trials at once. cores: of this machine. cluster: slurm, local or script; this machine by default.
    resources: what a trial requests from a cluster.
    """

    jobs: int | None
    cores: int
    cluster: ClusterKind | None = None
    resources: Resources | None = None

    def check(self) -> None:
        """Raises UserError for options that this kind of launcher does not have."""
        if self.cluster in ("slurm", "local") and sys.platform == "win32":
            raise UserError(
                f"--cluster {self.cluster} needs Linux or macOS; got Windows; omit it to train here, or use "
                "--cluster script to write what to submit elsewhere"
            )
        if self.cluster is None and self.resources is not None and self.resources.changed:
            flags = ", ".join(f"--{name}" for name in self.resources.changed)
            raise UserError(f"{flags}: for a cluster only; give --cluster slurm, or omit it")

    def engine(self, trials: Sequence[Trial], study: Path, snapshots: int = 0) -> Engine:
        """The engine that runs these trials of a study.

        Raises UserError if it is not available here, and NotRunError after it has written a script.
        """
        resources = self.resources or Resources()
        unfinished = [trial for trial in trials if not trial.finished]
        if self.cluster == "script" and unfinished:
            path = _write_script(unfinished, study, resources, self.jobs, snapshots)
            raise NotRunError(path, unfinished)
        default_jobs = jobs_for(max(1, len(unfinished)), self.cores, count_gpus())
        if self.cluster == "slurm" or self.cluster == "local":
            limit = self.jobs or (default_jobs if self.cluster == "local" else None)
            return Cluster(study, self.cluster, resources, limit, snapshots)
        return LocalProcesses(self.jobs or default_jobs, snapshots)


def _write_script(
    trials: Sequence[Trial],
    study: Path,
    resources: Resources,
    limit: int | None,
    snapshots: int,
) -> Path:
    """Write `cluster/trials.sbatch` for the unfinished trials and return its path."""
    folder = study / CLUSTER
    folder.mkdir(mode=0o700, exist_ok=True)
    lines = ["#!/bin/bash", *resources.sbatch_lines(limit, len(trials), GRACE)]
    lines.append(f'#SBATCH --output="{folder.absolute()}/%A_%a.out"')
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
    path = folder / "trials.sbatch"
    write_text(path, "\n".join(lines))
    return path
