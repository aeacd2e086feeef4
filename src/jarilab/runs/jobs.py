"""Jobs that train the trials of a study: queued or running on a cluster, or processes of this machine.

`cluster/jobs.json` in the folder of a study records each submission before it is made, so that nothing is submitted
twice. The state of a job is read from the scheduler.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jarilab.core.errors import UserError
from jarilab.core.options import check_fields
from jarilab.core.storage.files import read_json, write_json

CLUSTER = "cluster"
"""The folder for jobs, in that of a study."""
RECORD = "jobs.json"
FORMAT = 1
FIELDS = {"format": Literal[1], "submissions": list[dict[str, Any]]}
SUBMISSION = {
    "scheduler": Literal["slurm", "local"],
    "name": str,
    "job": str | None,
    "trials": list[str],
}
QUEUED, RUNNING = "queued", "training"
STATES = {"PENDING": QUEUED, "REQUEUED": QUEUED, "REQUEUE_HOLD": QUEUED, "SPECIAL_EXIT": QUEUED}
"""SLURM's states of waiting jobs; all other jobs that it lists are training."""


class UnreachableError(Exception):
    """Raised if the scheduler does not answer."""


@dataclass(frozen=True)
class Submission:
    """One array of jobs.

    name: unique name of the array. trials: folders of its trials in that of the study; the i-th is the array's task i.
    job: number of the array; None until the scheduler has given it.
    """

    scheduler: str
    name: str
    trials: tuple[str, ...]
    job: str | None = None


def submissions(study: Path) -> list[Submission]:
    """The submissions of a study. Raises UserError for a damaged record."""
    path = study / CLUSTER / RECORD
    if not path.exists():
        return []
    record = read_json(path)
    check_fields(str(path), FIELDS, record)
    for entry in record["submissions"]:
        check_fields(str(path), SUBMISSION, entry)
    return [
        Submission(entry["scheduler"], entry["name"], tuple(entry["trials"]), entry["job"])
        for entry in record["submissions"]
    ]


def keep(study: Path, submission: Submission) -> None:
    """Record a submission; it replaces the one of the same name."""
    _write(study, [*_others(study, submission), submission])


def drop(study: Path, submission: Submission) -> None:
    """Remove a submission from the record, which the scheduler refused."""
    _write(study, _others(study, submission))


def _others(study: Path, submission: Submission) -> list[Submission]:
    return [other for other in submissions(study) if other.name != submission.name]


def _write(study: Path, recorded: Sequence[Submission]) -> None:
    record = {"format": FORMAT, "submissions": [asdict(submission) for submission in recorded]}
    write_json(study / CLUSTER / RECORD, record)


def job_of(submission: Submission, index: int) -> str:
    """The job number of a trial, as the scheduler's commands take it; the name of the array until it is known."""
    if submission.job is None:
        return submission.name
    is_array = submission.scheduler == "slurm" and len(submission.trials) > 1
    return f"{submission.job}_{index}" if is_array else submission.job


@dataclass(frozen=True)
class TrialJob:
    """The job of a trial. number: as the scheduler's commands take it. state: `queued` or `training`."""

    number: str
    state: str


def jobs_alive(study: Path) -> dict[str, TrialJob]:
    """The queued and running jobs of a study, by the folders of their trials. Raises UnreachableError."""
    recorded = submissions(study)
    queue: Mapping[tuple[str, int], TrialJob] = {}
    if any(submission.scheduler == "slurm" for submission in recorded):
        queue = _slurm_queue()
    alive: dict[str, TrialJob] = {}
    for submission in recorded:
        for index, trial in enumerate(submission.trials):
            job = queue.get((submission.name, index))
            if submission.scheduler == "local" and _runs_here(submission, study / CLUSTER):
                job = TrialJob(job_of(submission, index), RUNNING)
            if job is not None:
                alive[trial] = job
    return alive


def _slurm_queue() -> dict[tuple[str, int], TrialJob]:
    """The user's jobs in SLURM's queue, by name and index. Raises UnreachableError."""
    # By name: a driver may have ended before it recorded the number.
    command = ["squeue", "--me", "--array", "--noheader", "--format", "%i|%T|%j"]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except FileNotFoundError:
        raise UnreachableError("there is no squeue on this machine") from None
    except subprocess.TimeoutExpired:
        raise UnreachableError("squeue did not answer within a minute") from None
    except subprocess.CalledProcessError as error:
        raise UnreachableError(f"squeue: {error.stderr.strip()}") from None
    queue = {}
    for line in finished.stdout.splitlines():
        number, state, name = line.split("|", 2)
        index = number.partition("_")[2] or "0"  # an array of one job has no index
        if index.isdigit():
            queue[name.strip(), int(index)] = TrialJob(number, STATES.get(state, RUNNING))
    return queue


def _runs_here(submission: Submission, folder: Path) -> bool:
    """Whether the process of a local job is running; another process with its number does not count."""
    number = submission.job
    return number is not None and number.isdigit() and str(folder) in _command_of(int(number))


def _command_of(number: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        if Path("/proc/self").exists():
            return os.fsdecode(Path(f"/proc/{number}/cmdline").read_bytes())
        command = ["ps", "-o", "args=", "-p", str(number)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def numbered(submission: Submission, job: str) -> Submission:
    """The submission with the number that the scheduler gave."""
    return replace(submission, job=job)


def check_reachable() -> None:
    """Raises UserError if SLURM does not answer."""
    try:
        _slurm_queue()
    except UnreachableError as error:
        raise UserError(
            f"--cluster slurm expects SLURM, got: {error}; run it on a machine from which jobs are submitted, or use "
            "--cluster script to write a script that is submitted there"
        ) from None
