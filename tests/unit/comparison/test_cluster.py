"""Trials as jobs: on submitit's local executor, and against a SLURM whose commands are scripts of the test."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import jarilab
from helpers.runs import TINY, train
from jarilab.cli import main
from jarilab.comparison.cluster import Cluster
from jarilab.comparison.places import Place
from jarilab.comparison.resources import Resources
from jarilab.comparison.running import train_all
from jarilab.comparison.study import Study
from jarilab.errors import UserError
from jarilab.runs import jobs as jobs_file
from jarilab.runs.jobs import Job, Submission, jobs_alive

TASK = "arithmetic:maximum=30"
SETTINGS = {**TINY, "training.evaluations": 1}


def study_of(folder: Path, encodings=("none", "t5"), **settings) -> Study:
    study = Study.of(TASK, encodings, 1, SETTINGS | settings, "float32")
    folder.mkdir()
    study.write(folder)
    return study


def results(folder: Path) -> dict[str, float]:
    """What each trial reached."""
    paths = sorted(folder.glob("*/result.json"))
    return {path.parent.name: json.loads(path.read_text())["exact_match"] for path in paths}


# On this machine, for real ------------------------------------------------------------------------------------------

@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # submitit leaves its processes
def test_jobs_outlive_their_driver_and_go_on_where_they_were_preempted(tmp_path):
    """The driver is killed and started again, one trial is preempted meanwhile: each trial is submitted once, and gives
    what it gives without any of that."""
    folder = tmp_path / "study"
    study = study_of(folder, **{"training.examples": 16 * 150, "training.evaluations": 2})
    driver = os.fork()  # which spares importing everything anew
    if not driver:
        jarilab.compare(folder, cluster="local", jobs=1)
        os._exit(0)
    try:
        wait_for((folder / "none-1" / "metrics.jsonl").exists)
    finally:
        os.kill(driver, signal.SIGKILL)
        os.waitpid(driver, 0)
    (submission,) = jobs_file.submissions(folder)
    assert jobs_alive(folder) == {"none-1": Job(submission.job, "running")}
    os.kill(child_of(int(submission.job)), signal.SIGUSR2)  # as submitit's `_interrupt` does
    too_long = threading.Timer(150, os.kill, (os.getpid(), signal.SIGTERM))
    too_long.start()
    try:
        jarilab.compare(folder, cluster="local", jobs=2)
    finally:
        too_long.cancel()
    assert [one.trials for one in jobs_file.submissions(folder)] == [("none-1",), ("t5-1",)], "none was submitted twice"
    assert "going on from step" in (folder / "none-1.log").read_text()
    assert stat.S_IMODE((folder / "cluster").stat().st_mode) == 0o700
    alone = train(tmp_path / "alone", study.trials(tmp_path)[0].experiment)
    assert results(folder)["none-1"] == alone["exact_match"]


def wait_for(holds):
    for _ in range(2400):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come about within two minutes")


def child_of(controller: int) -> int:
    """The process of a job, whose controller is this."""
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text()
    return int(children.split()[0])
