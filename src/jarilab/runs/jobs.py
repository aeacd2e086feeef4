"""Trials that train elsewhere: by another process, or as jobs of a cluster that are queued or running.

The folder of a study has `cluster/jobs.json`: what was submitted, written before it is, so that nothing is submitted
twice whenever the driver dies. What became of a job is asked of the scheduler; nothing is unpickled here.
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
"""The folder, in that of a study, for what is told a scheduler."""
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
"""What SLURM calls jobs that wait; all others that it lists are training."""


class UnreachableError(Exception):
    """The scheduler does not answer now."""


@dataclass(frozen=True)
class Submission:
    """One array of jobs. name: of the array, ours alone. job: its number, None until the scheduler has given it.
    trials: their folders in that of the study; the i-th is the array's task i."""

    scheduler: str
    name: str
    trials: tuple[str, ...]
    job: str | None = None


def submissions(study: Path) -> list[Submission]:
    """What was submitted for a study. Raises UserError for a record that is not ours."""
    path = study / CLUSTER / RECORD
    if not path.exists():
        return []
    record = read_json(path)
    check_fields(str(path), FIELDS, record)
    read = []
    for one in record["submissions"]:
        check_fields(str(path), SUBMISSION, one)
        trials = tuple(one["trials"])
        read.append(Submission(one["scheduler"], one["name"], trials, one["job"]))
    return read


def keep(study: Path, submission: Submission) -> None:
    """Write a submission down, or what has become of it; it takes the place of the one of its name."""
    others = [one for one in submissions(study) if one.name != submission.name]
    _write(study, [*others, submission])


def drop(study: Path, submission: Submission) -> None:
    """Forget a submission that the scheduler refused."""
    _write(study, [one for one in submissions(study) if one.name != submission.name])


def _write(study: Path, held: Sequence[Submission]) -> None:
    record = {"format": FORMAT, "submissions": [asdict(one) for one in held]}
    write_json(study / CLUSTER / RECORD, record)


def job_of(submission: Submission, index: int) -> str:
    """What a person types to ask for a trial's job, as far as it is known."""
    if submission.job is None:
        return submission.name
    several = submission.scheduler == "slurm" and len(submission.trials) > 1
    return f"{submission.job}_{index}" if several else submission.job


@dataclass(frozen=True)
class Job:
    """A trial's job that is `queued` or `training`; number: what a person types to ask for it."""

    number: str
    state: str


def jobs_alive(study: Path) -> dict[str, Job]:
    """The trials, by their folders in that of the study, whose jobs are queued or running. Raises UnreachableError."""
    held = submissions(study)
    queue: Mapping[tuple[str, int], Job] = {}
    if any(one.scheduler == "slurm" for one in held):
        queue = _slurm_queue()
    alive: dict[str, Job] = {}
    for submission in held:
        for index, trial in enumerate(submission.trials):
            job = queue.get((submission.name, index))
            if submission.scheduler == "local" and _runs_here(submission, study / CLUSTER):
                job = Job(job_of(submission, index), RUNNING)
            if job is not None:
                alive[trial] = job
    return alive


def _slurm_queue() -> dict[tuple[str, int], Job]:
    """This person's jobs that SLURM has in its queue, by name and index. The names are asked for, not the numbers:
    a driver may have died before it was told those. Raises UnreachableError."""
    command = ["squeue", "--me", "--array", "--noheader", "--format", "%i|%T|%j"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except FileNotFoundError:
        raise UnreachableError("there is no squeue on this machine") from None
    except subprocess.TimeoutExpired:
        raise UnreachableError("squeue did not answer within a minute") from None
    except subprocess.CalledProcessError as error:
        raise UnreachableError(f"squeue: {error.stderr.strip()}") from None
    queue = {}
    for line in told.stdout.splitlines():
        number, state, name = line.split("|", 2)
        index = number.partition("_")[2] or "0"
        if index.isdigit():
            queue[name.strip(), int(index)] = Job(number, STATES.get(state, RUNNING))
    return queue


def _runs_here(submission: Submission, folder: Path) -> bool:
    """Whether the process of a job is there, and no other that has got its number since."""
    number = submission.job
    return number is not None and number.isdigit() and str(folder) in _command_of(int(number))


def _command_of(number: int) -> str:
    """The words of a process; nothing where there is none, or it has ended."""
    try:
        if Path("/proc/self").exists():
            return os.fsdecode(Path(f"/proc/{number}/cmdline").read_bytes())
        command = ["ps", "-o", "args=", "-p", str(number)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def numbered(submission: Submission, job: str) -> Submission:
    """With the number that the scheduler gave."""
    return replace(submission, job=job)


def check_reachable() -> None:
    """Raises UserError where there is no SLURM."""
    try:
        _slurm_queue()
    except UnreachableError as error:
        raise UserError(
            f"--cluster slurm needs SLURM, and {error}; run it on a machine from which jobs are submitted, or use "
            "--cluster script to write what to submit there"
        ) from None
