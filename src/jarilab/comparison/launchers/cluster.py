"""The engine of clusters: trials as jobs of SLURM, or of this machine for a test, through submitit.

submitit keeps the function of a job as a pickle in the study's `cluster/`, which only its owner may enter. The pickle
holds one function of job.py and the words of a command line, nothing of a run. Jobs outlive the driver, which finds
them again by `cluster/jobs.json`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jarilab.comparison.launchers.job import train_trial
from jarilab.comparison.launchers.processes import Engine, OtherProcess, Running, last_message
from jarilab.comparison.launchers.resources import Resources
from jarilab.comparison.trial import Trial
from jarilab.core.errors import UserError, import_optional
from jarilab.core.storage.files import read_json
from jarilab.runs import jobs as jobs_file
from jarilab.runs.jobs import CLUSTER, Submission, TrialJob, UnreachableError

Scheduler = Literal["slurm", "local"]
# submitit demands a limit; this one is never reached in practice.
TIMEOUTS = 1000
"""How often a trial whose time is up is queued again."""
GRACE = 120
"""Seconds between the signal that time is up and the end, in which a step is finished and a checkpoint written."""
# A requeued job that has just left a node may be in no list for a moment, and a file of another machine appears late.
PATIENCE = 30.0
"""Seconds after which a job that is in no queue and has no result counts as ended."""
EXITS = "exits"
"""The folder, in `cluster/`, of the exit code of each trial."""


class Cluster(Engine):
    """Runs trials as jobs of a scheduler.

    study: its folder. limit: trials at once; as many as the cluster runs by default.
    """

    poll_seconds = 2.0

    def __init__(
        self,
        study: Path,
        scheduler: Scheduler,
        resources: Resources,
        limit: int | None,
        snapshots: int = 0,
    ):
        self._submitit: Any = import_optional("submitit", "cluster")
        if scheduler == "slurm":
            jobs_file.check_reachable()
        self.study = study
        self.folder = study / CLUSTER
        self._scheduler = scheduler
        self._resources = resources
        self._limit = limit
        self._snapshots = snapshots
        self._alive: dict[str, TrialJob] = {}
        self._asked_at = float("-inf")
        _private(self.folder)
        (self.folder / EXITS).mkdir(exist_ok=True)

    def alive(self) -> dict[str, TrialJob]:
        """The trials whose jobs are queued or running. The last answer, if the scheduler does not respond."""
        if time.monotonic() - self._asked_at >= self.poll_seconds:
            with contextlib.suppress(UnreachableError):
                self._alive = jobs_file.jobs_alive(self.study)
            self._asked_at = time.monotonic()
        return self._alive

    def start(
        self, waiting: Sequence[Trial], running: Mapping[str, Running]
    ) -> list[tuple[Trial, Running]]:
        if not waiting:
            return []
        alive = self._certainly_alive()
        handles: list[tuple[Trial, Running]] = []
        new_trials = []
        for trial in waiting:
            if self.name_of(trial) in alive:
                handles.append((trial, ClusterJob(self, trial)))
            elif trial.is_training:
                handles.append((trial, OtherProcess(trial)))
            else:
                new_trials.append(trial)
        if self._scheduler == "local" and self._limit is not None:
            new_trials = new_trials[: max(0, self._limit - len(running) - len(handles))]
        if new_trials:
            self._submit(new_trials)
            handles += [(trial, ClusterJob(self, trial)) for trial in new_trials]
        return handles

    def _certainly_alive(self) -> dict[str, TrialJob]:
        """`alive`, read from the scheduler now. Raises UserError if it does not respond."""
        try:
            self._alive = jobs_file.jobs_alive(self.study)
        except UnreachableError as error:
            raise UserError(
                f"whether jobs of this study are in the queue cannot be asked: {error}; nothing was submitted, and the "
                "same command goes on later"
            ) from None
        return self._alive

    def name_of(self, trial: Trial) -> str:
        """The name of a trial in jobs.json: its folder in that of the study."""
        return trial.folder.relative_to(self.study).as_posix()

    def exit_file(self, trial: Trial) -> Path:
        """The file of a job's exit code."""
        return (self.folder / EXITS / f"{trial.name}.json").absolute()

    def _submit(self, trials: Sequence[Trial]) -> None:
        """Submit trials: to SLURM as one array, to this machine one by one."""
        arrays = [trials] if self._scheduler == "slurm" else [[trial] for trial in trials]
        for array in arrays:
            job = self._submit_array(array)
            names = ", ".join(trial.name for trial in array)
            end_command = "scancel" if self._scheduler == "slurm" else "kill"
            print(
                f"jarilab: submitted {names} as {self._scheduler} job {job}, which needs this command no more: given "
                f"again it finds the job and waits; `{end_command} {job}` ends it",
                file=sys.stderr,
            )

    def _submit_array(self, trials: Sequence[Trial]) -> str:
        """Record a submission, then make it; return the number of the job."""
        names = tuple(map(self.name_of, trials))
        # Recorded first, under a unique name: after a kill between the two, the job is found in the queue by its name.
        submission = Submission(self._scheduler, f"jari-{secrets.token_hex(6)}", names)
        jobs_file.keep(self.study, submission)
        try:
            numbers = self._submitted_numbers(submission, trials)
        except UserError:
            jobs_file.drop(self.study, submission)
            raise
        job = numbers[0].partition("_")[0]
        jobs_file.keep(self.study, jobs_file.numbered(submission, job))
        return job

    def _submitted_numbers(self, submission: Submission, trials: Sequence[Trial]) -> list[str]:
        """Submit the trials and return the numbers of their jobs. Raises UserError if they are refused."""
        words, folders, logs, exit_files = [], [], [], []
        for trial in trials:
            trial.log.write_bytes(b"")
            self.exit_file(trial).unlink(missing_ok=True)
            words.append(trial.words(self._snapshots))
            folders.append(str(trial.folder.absolute()))
            logs.append(str(trial.log.absolute()))
            exit_files.append(str(self.exit_file(trial)))
        with _safe_path():
            executor = self._executor(submission.name)
            try:
                jobs = executor.map_array(train_trial, words, folders, logs, exit_files)
            except self._submitit.core.utils.FailedJobError as error:
                raise self._refused(error) from None
        return [job.job_id for job in jobs]

    def _executor(self, name: str) -> Any:
        python = f"{shlex.quote(sys.executable)} -P"
        folder, kind = self.folder.absolute(), self._scheduler
        options = {f"{kind}_max_num_timeout": TIMEOUTS, f"{kind}_python": python}
        executor = self._submitit.AutoExecutor(folder=folder, cluster=kind, **options)
        executor.update_parameters(**self._resources.for_submitit(kind, name, GRACE, self._limit))
        return executor

    def _refused(self, error: Exception) -> UserError:
        lines = [line.removeprefix("sbatch: error: ") for line in str(error).splitlines()]
        reason = "; ".join(
            dict.fromkeys(line.strip() for line in lines if line.startswith(("sbatch", "Batch")))
        )
        reason = reason or str(error).strip()
        return UserError(f"SLURM does not take the trials: {reason}; {self._resources.advice()}")


class ClusterJob(Running):
    """A trial's job. It does not end with this process."""

    def __init__(self, cluster: Cluster, trial: Trial):
        self._cluster = cluster
        self._trial = trial
        self._missing_since: float | None = None

    def poll(self) -> int | None:
        """None while its job is queued or running, and up to PATIENCE seconds after; then its return code."""
        if self._trial.finished:
            self.returncode = 0
        elif self._cluster.name_of(self._trial) in self._cluster.alive():
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = time.monotonic()
        elif self._exit_code() is not None or time.monotonic() - self._missing_since > PATIENCE:
            self.returncode = self._exit_code() or 1
        return self.returncode

    def end(self) -> None:
        """Does nothing: the job continues without this process."""

    def wait(self) -> None:
        """Does nothing: the job continues without this process."""

    def _exit_code(self) -> int | None:
        file = self._cluster.exit_file(self._trial)
        return read_json(file) if file.exists() else None

    def failure(self, trial: Trial) -> str:
        code = self._exit_code()
        if code is not None and trial.log.stat().st_size:
            return last_message(trial, code)
        return f"its job left the queue without a result, cancelled or ended from outside; see {self._cluster.folder}"


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Child processes of the block do not have the current folder on their import path."""
    # Otherwise they would execute a statistics.py that lies there.
    previous = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = previous


def _private(folder: Path) -> None:
    """Make a folder for its owner alone, since jobs execute its files. Raises UserError if another user owns it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise UserError(
                f"{folder} belongs to another person, and what lies there is executed by jobs; choose another --out"
            )
        folder.chmod(0o700)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from None
