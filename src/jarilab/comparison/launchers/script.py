"""The trials of a study as a script for sbatch, for clusters without submitit.

Each line is a command that may run any number of times.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from jarilab.comparison.launchers.resources import Resources
from jarilab.comparison.trial import Trial
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


def write(
    trials: Sequence[Trial],
    study: Path,
    resources: Resources,
    limit: int | None,
    snapshots: int,
    grace: int,
) -> Path:
    """Write `cluster/trials.sbatch` for the unfinished trials and return its path."""
    folder = study / CLUSTER
    folder.mkdir(mode=0o700, exist_ok=True)
    lines = ["#!/bin/bash", *resources.sbatch_lines(limit, len(trials), grace)]
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
