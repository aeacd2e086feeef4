"""Trials as jobs: on submitit's local executor, and against a SLURM whose commands are scripts of the test."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jarilab
from helpers.runs import TINY
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

DRIVER = """
import sys, jarilab
jarilab.compare(sys.argv[1], cluster="local", jobs=1)
"""


@pytest.mark.slow
def test_jobs_outlive_their_driver_and_go_on_where_they_were_preempted(tmp_path):
    """One trial is interrupted as by a scheduler, the driver is killed and started again: each trial is trained once,
    and gives what it gives without any of that."""
    folder = tmp_path / "study"
    study_of(folder, **{"training.examples": 16 * 300, "training.evaluations": 3})
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(folder)], stderr=log, start_new_session=True)
    try:
        wait_for(lambda: (folder / "none-1" / "checkpoints").is_dir(), driver, tmp_path / "driver.log")
    finally:
        driver.kill()
        driver.wait()
    (submission,) = jobs_file.submissions(folder)
    (alive,) = jobs_alive(folder).items()
    assert alive == ("none-1", Job(submission.job, "running"))
    os.kill(tied_to(int(submission.job)), signal.SIGUSR2)  # what submitit's _interrupt sends
    table = jarilab.compare(folder, cluster="local", jobs=2)
    assert [len(one.trials) for one in jobs_file.submissions(folder)] == [1, 1], "none was submitted twice"
    assert "going on from step" in (folder / "none-1.log").read_text()
    assert stat.S_IMODE((folder / "cluster").stat().st_mode) == 0o700
    alone = jarilab.train(TASK, tmp_path / "alone", settings=study_of(tmp_path / "b").experiment and {
        **SETTINGS, "training.examples": 16 * 300, "training.evaluations": 3, "model.encoding": "none"
    }, precision="float32", threads=1)
    assert results(folder)["none-1"] == alone["exact_match"]
    assert len(table["trials"]) == 2


def wait_for(holds, process, log):
    for _ in range(1200):
        if holds():
            return
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def tied_to(controller: int) -> int:
    """The process of a job, whose controller is this."""
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text()
    return int(children.split()[0])
