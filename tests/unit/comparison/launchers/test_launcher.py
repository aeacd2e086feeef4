"""Trials that a script for sbatch trains later."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runs import TINY
from jarilab.cli import main
from jarilab.comparison.launchers.launcher import Launcher, NotRunError
from jarilab.comparison.launchers.resources import Resources
from jarilab.comparison.study import Study

TASK = "arithmetic:maximum=30"
COMPARE = ["compare", TASK, "--encodings", "none", "--out", "study", "--d-model", "16", "--n-heads", "2"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--partition", "gpu"], "--partition: for SLURM only; pass --sbatch, or omit it"),
        (["--sbatch", "--time", "soon"], "time: expected hours:minutes:seconds, minutes or days-hours"),
        (["--sbatch", "--memory", "lots"], "memory: expected such as 8G or 500M; got 'lots'"),
        (["--sbatch", "--partition", "a\nb"], "partition: expected a name that SLURM knows"),
    ],
    ids=["alone", "time", "memory", "partition"],
)
def test_invalid_resources_are_refused(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*COMPARE, *words]) == 2
    assert told in capsys.readouterr().err


TIMES = {"90": 90, "0:30": 1, "2:00:00": 120, "1-12": 2160, "1-12:30": 2190, "1-0:0:59": 1441}


@pytest.mark.parametrize("text", TIMES)
def test_times_as_slurm_reads_them(text):
    assert Resources(time=text).minutes == TIMES[text]


def test_a_script_has_a_command_line_for_each_trial(tmp_path, monkeypatch):
    """And each of them trains its trial, whoever gives it: here bash, as the array's second task."""
    monkeypatch.chdir(tmp_path)
    settings = {**TINY, "training.evaluations": 1, "training.examples": 32}
    study, folder = Study.of(TASK, ("none", "t5"), 1, settings, "float32"), Path("study")
    folder.mkdir()
    study.write(folder)
    asked = Resources(partition="long", time="1-12", gpus=1, memory="8G", cpus=2, account="lab", qos="low")
    with pytest.raises(NotRunError) as written:
        Launcher(2, 2, sbatch=True, resources=asked).processes(study.trials(folder), folder)
    assert written.value.path == folder / "trials.sbatch"
    text = written.value.path.read_text()
    expected = {"array=0-1%2", "partition=long", "time=1-12", "gpus-per-node=1", "mem=8G", "cpus-per-task=2"}
    expected |= {"account=lab", "qos=low", "requeue", "signal=B:USR2@120"}
    assert {f"#SBATCH --{option}" for option in expected} <= set(text.splitlines())
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    script = text.replace(sys.executable, "echo")
    assert subprocess.run(["bash", "-c", script], env=environment, check=False).returncode == 0
    assert Path("study/t5-1.log").read_text().startswith("-P -m jarilab train arithmetic --out study/t5-1 ")
