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
from jarilab.comparison.launchers import cluster as module
from jarilab.comparison.launchers.cluster import Cluster
from jarilab.comparison.launchers.launcher import Launcher, NotRunError
from jarilab.comparison.launchers.resources import Resources
from jarilab.comparison.run_study import train_all
from jarilab.comparison.study import Study
from jarilab.core.errors import UserError
from jarilab.runs import jobs as jobs_file
from jarilab.runs.catalog import runs_in
from jarilab.runs.jobs import Submission, TrialJob, jobs_alive

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


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # submitit leaves its processes
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
    assert jobs_alive(folder) == {"none-1": TrialJob(submission.job, "training")}
    os.kill(child_of(int(submission.job)), signal.SIGUSR2)  # as submitit's `_interrupt` does
    too_long = threading.Timer(300, os.kill, (os.getpid(), signal.SIGTERM))
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
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come about within five minutes")


def child_of(controller: int) -> int:
    """The process of a job, whose controller is this."""
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text()
    return int(children.split()[0])


# A SLURM of scripts -------------------------------------------------------------------------------------------------

SBATCH = """#!/bin/sh
if grep -q nowhere "$1"; then
    echo "sbatch: error: invalid partition specified: nowhere" >&2
    echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2
    exit 1
fi
grep job-name "$1" | cut -d= -f2 >> {here}/names
cp "$1" {here}/script
echo "Submitted batch job 7"
"""
SQUEUE = """#!/bin/sh
test ! -e {here}/down || {{ echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }}
cat {here}/queue
"""
SINFO = "#!/bin/sh\necho debug\necho long\n"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The folder that its commands read and write in: names (of what was submitted) and queue."""
    here, programs = tmp_path / "slurm", tmp_path / "bin"
    here.mkdir()
    programs.mkdir()
    (here / "queue").touch()
    for name, text in {"sbatch": SBATCH, "srun": "", "squeue": SQUEUE, "sinfo": SINFO}.items():
        (programs / name).write_text(text.format(here=here))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return here


def cluster(folder, **resources):
    return Cluster(folder, "slurm", Resources(**resources), limit=4)


def test_all_trials_are_one_array_with_their_resources(tmp_path, slurm):
    trials = study_of(tmp_path / "study").trials(tmp_path / "study")
    asked = {"partition": "long", "time": "1-12", "gpus": 1, "memory": "8G", "cpus": 2, "account": "lab", "qos": "low"}
    begun = cluster(tmp_path / "study", **asked).start(trials, {})
    assert [trial.name for trial, _ in begun] == ["none-1", "t5-1"]
    lines = set((slurm / "script").read_text().splitlines())
    expected = {"array=0-1%2", "partition=long", "time=2160", "gpus-per-node=1", "mem=8G", "cpus-per-task=2"}
    assert {f"#SBATCH --{one}" for one in expected | {"account=lab", "qos=low", "requeue", "signal=USR2@120"}} <= lines
    pickles = list((tmp_path / "study" / "cluster").glob("*.pkl"))
    assert len(pickles) == 2
    assert all(b"jarilab.comparison.launchers.job" in path.read_bytes() for path in pickles), "the function is a name"


def test_a_driver_that_died_during_a_submission_submits_nothing_again(tmp_path, slurm):
    folder = tmp_path / "study"
    trials = study_of(folder).trials(folder)
    engine = cluster(folder)
    jobs_file.keep(folder, Submission("slurm", "jari-abc", ("none-1", "t5-1")))
    (slurm / "queue").write_text("9_0|RUNNING|jari-abc\n9_1|PENDING|jari-abc\n8|RUNNING|of|another\n")
    assert len(engine.start(trials, {})) == 2
    assert not (slurm / "names").exists(), "nothing was submitted"
    assert jobs_alive(folder) == {"none-1": TrialJob("9_0", "training"), "t5-1": TrialJob("9_1", "queued")}


def test_jarilab_runs_lists_queued_trials(tmp_path, slurm):
    study_of(tmp_path / "study")
    cluster(tmp_path / "study")
    jobs_file.keep(tmp_path / "study", Submission("slurm", "jari-abc", ("none-1", "t5-1"), "9"))
    (slurm / "queue").write_text("9_1|PENDING|jari-abc\n")
    (one,) = runs_in(tmp_path)
    assert (one.run, one.progress) == (str(tmp_path / "study" / "t5-1"), "queued, job 9_1")


def test_nothing_is_submitted_while_the_queue_does_not_respond(tmp_path, slurm):
    trials = study_of(tmp_path / "study").trials(tmp_path / "study")
    engine = cluster(tmp_path / "study")
    jobs_file.keep(tmp_path / "study", Submission("slurm", "jari-abc", ("none-1", "t5-1"), "9"))
    (slurm / "down").touch()
    with pytest.raises(UserError, match=r"cannot be asked: squeue: slurm_load_jobs error.* nothing was submitted"):
        engine.start(trials, {})
    assert not (slurm / "names").exists()


def test_a_wrong_partition_is_refused_with_the_existing_ones(tmp_path, slurm):
    folder = tmp_path / "study"
    trials = study_of(folder).trials(folder)
    with pytest.raises(UserError, match=r"Invalid partition.*expected --partition debug or long, got nowhere"):
        cluster(folder, partition="nowhere").start(trials, {})
    assert jobs_file.submissions(folder) == []


def test_a_job_that_left_the_queue_without_a_result_has_failed(tmp_path, slurm, monkeypatch):
    folder = tmp_path / "study"
    trials = study_of(folder, ["none"]).trials(folder)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    engine = cluster(folder)
    engine.poll_seconds = 0.01
    failed = train_all(trials, engine)
    assert failed["none-1"].startswith("its job left the queue without a result, cancelled or ended from outside")


# What cannot be -----------------------------------------------------------------------------------------------------

COMPARE = ["compare", TASK, "--encodings", "none", "--out", "study", "--d-model", "16", "--n-heads", "2"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--cluster", "slurm"], "--cluster slurm expects SLURM, got: there is no squeue on this machine"),
        (["--partition", "gpu"], "--partition: for a cluster only; give --cluster slurm, or omit it"),
        (["--cluster", "slurm", "--time", "soon"], "time: expected hours:minutes:seconds, minutes or days-hours"),
        (["--cluster", "slurm", "--memory", "lots"], "memory: expected such as 8G or 500M; got 'lots'"),
        (["--cluster", "slurm", "--partition", "a\nb"], "partition: expected a name that SLURM knows"),
        (["--cluster", "pbs"], "input should be 'slurm', 'local' or 'script'; got 'pbs'"),
    ],
    ids=["slurm", "alone", "time", "memory", "partition", "kind"],
)
def test_invalid_resources_are_refused(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert main([*COMPARE, *words]) == 2
    assert told in capsys.readouterr().err


def test_without_submitit_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"needs the package submitit; pip install 'jarilab\[cluster\]'"):
        Cluster(tmp_path, "local", Resources(), None)


TIMES = {"90": 90, "0:30": 1, "2:00:00": 120, "1-12": 2160, "1-12:30": 2190, "1-0:0:59": 1441}


@pytest.mark.parametrize("text", TIMES)
def test_times_as_slurm_reads_them(text):
    assert Resources(time=text).minutes == TIMES[text]


def test_a_script_for_sbatch_has_a_command_line_for_each_trial(tmp_path, monkeypatch):
    """And each of them trains its trial, whoever gives it: here bash, as the array's second task."""
    monkeypatch.chdir(tmp_path)
    study = study_of(tmp_path / "study", **{"training.examples": 32})
    with pytest.raises(NotRunError) as written:
        Launcher(2, 2, "script", Resources(partition="gpu")).engine(study.trials(Path("study")), Path("study"))
    text = written.value.path.read_text()
    assert "#SBATCH --array=0-1%2\n" in text
    assert "#SBATCH --partition=gpu\n" in text
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    script = text.replace(sys.executable, "echo")
    assert subprocess.run(["bash", "-c", script], env=environment, check=False).returncode == 0
    assert Path("study/t5-1.log").read_text().startswith("-P -m jarilab train arithmetic --out study/t5-1 ")
