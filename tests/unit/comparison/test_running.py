"""Trials as processes: how many at once, what they say, how they end."""

import fcntl
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.runs import tiny
from helpers.trials import Ended
from jarilab.comparison import run_study
from jarilab.comparison.launchers import processes
from jarilab.comparison.launchers.processes import LocalProcesses, jobs_for, least_used_gpu, start
from jarilab.comparison.run_study import train_all
from jarilab.comparison.study import Study, Trial
from jarilab.runs import metrics_log


@given(trials=st.integers(1, 200), cores=st.integers(1, 128))
def test_jobs_use_every_core_equally(trials, cores):
    jobs = jobs_for(trials, cores)
    assert 1 <= jobs <= trials
    assert jobs >= min(trials, cores)
    assert jobs < 2 * cores
    rounds = -(-trials // jobs)
    last = trials - (rounds - 1) * jobs
    assert jobs - last < rounds, "no round could be smaller by more than one"


BY_HAND = [(1, 2, 1), (2, 2, 2), (3, 2, 3), (4, 2, 2), (5, 2, 3), (9, 4, 5)]


@pytest.mark.parametrize(("trials", "cores", "jobs"), BY_HAND)
def test_jobs_by_hand(trials, cores, jobs):
    assert jobs_for(trials, cores) == jobs


def test_a_trial_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    # The package imports the library's statistics through torch; a file of that name must not take its place.
    (tmp_path / "statistics.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    trial = Trial("trial", tiny("none", training__examples=16, training__evaluations=1), tmp_path / "trial")
    begun = start(trial, 0)
    begun.wait()
    assert begun.returncode == 0, (tmp_path / "trial.log").read_text()
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_trials_are_forks_of_one_process_and_end_with_their_lifeline(tmp_path):
    quick = Trial("quick", tiny("none", training__examples=16, training__evaluations=1), tmp_path / "quick")
    endless = Trial("endless", tiny("none", training__examples=10**9, training__evaluations=1), tmp_path / "endless")
    forks = [start(trial, 0) for trial in (endless, quick)]
    assert all(isinstance(fork, processes.Fork) for fork in forks)
    forks[1].wait()
    assert forks[1].returncode == 0, quick.log.read_text()
    while not (endless.folder / "run.json").exists():
        assert forks[0].poll() is None, endless.log.read_text()
        time.sleep(0.05)
    forks[0].end()
    forks[0].wait()
    assert forks[0].returncode == 128 + signal.SIGTERM, endless.log.read_text()
    assert list(endless.folder.glob("checkpoints/*"))


@pytest.mark.slow
def test_a_killed_server_ends_its_trials_and_the_next_has_another(tmp_path):
    trial = Trial("trial", tiny("none", training__examples=16, training__evaluations=1), tmp_path / "trial")
    server = processes.trial_server()
    server._process.kill()
    server._process.wait()
    with trial.log.open("wb") as log:
        fork = server.fork(trial.words(0), log.fileno())
    assert fork.poll() == -signal.SIGKILL
    again = start(trial, 0)
    again.wait()
    assert again.returncode == 0, trial.log.read_text()


class Told(list):
    """In place of the progress on the terminal."""

    __enter__ = __exit__ = lambda self, *_: self

    def update(self, name, row):
        self.append((name, row))


def test_new_rows_are_merged(tmp_path, monkeypatch):
    (trial,) = Study.of("arithmetic", ["none"], 1, {}, "float32").trials(tmp_path)
    trial.folder.mkdir()
    process, reported, batches = Ended(None), Told(), [[2, 3, 4], [], [5, 6]]

    def write(steps):
        rows = [{"step": s, "loss": s / 2} | ({"measured": "3 %"} if s == 3 else {}) for s in steps]
        with (trial.folder / "metrics.jsonl").open("a") as file:
            file.writelines(metrics_log.sealed_lines(rows, trial.experiment.hash, min(steps, default=1)))

    def tick(_):
        write(batches.pop(0))
        process.returncode = None if batches else 0
        if not batches:
            (trial.folder / "result.json").touch()

    write([1])  # of a run that was cut off
    monkeypatch.setattr(processes, "start", lambda *_: process)
    monkeypatch.setattr(run_study, "TrainingProgress", lambda names: reported)
    monkeypatch.setattr(run_study.time, "sleep", tick)
    train_all([trial], LocalProcesses(1))
    assert reported == [("none-1", {"step": 4, "loss": 2.0, "measured": "3 %"}), ("none-1", {"step": 6, "loss": 3.0})]


@pytest.mark.parametrize(
    ("code", "log", "reason"),
    [
        (
            2,
            "jarilab: 3 lines were left out\njarilab: run holds another run:\n  seed: 1 here\n",
            "run holds another run:\n    seed: 1 here",
        ),
        (1, "jarilab: noted\nTraceback:\n  File\nValueError: x\n", "ValueError: x"),
    ],
)
def test_the_message_of_a_failed_trial_has_no_program_name(tmp_path, monkeypatch, code, log, reason):
    (trial,) = Study.of("arithmetic", ["none"], 1, {}, "float32").trials(tmp_path)
    (tmp_path / "none-1.log").write_text(log)
    monkeypatch.setattr(processes, "start", lambda *_: Ended(code))
    monkeypatch.setattr(run_study, "TrainingProgress", Told)
    monkeypatch.setattr(run_study.time, "sleep", lambda _: None)
    assert train_all([trial], LocalProcesses(1)) == {"none-1": reason}


def test_a_trial_that_another_process_trains_is_waited_for_and_goes_on(tmp_path, monkeypatch):
    """As one whose comparison was killed with -9: it is not trained twice at once, and not given up where it ends."""
    first, second = Study.of("arithmetic", ["none", "t5"], 1, {}, "float32").trials(tmp_path)
    started, locks = [], []
    for trial in (first, second):
        trial.folder.mkdir()
        locks.append((trial.folder / ".lock").open("w"))
        fcntl.flock(locks[-1], fcntl.LOCK_EX)

    def begin(trial, *_):
        started.append(trial.name)
        (trial.folder / "result.json").touch()
        return Ended(0)

    def tick(_):
        assert not started, "while others train them"
        if locks:
            (first.folder / "result.json").touch()  # ended well; the second was killed too
            while locks:
                locks.pop().close()

    monkeypatch.setattr(processes, "start", begin)
    monkeypatch.setattr(run_study, "TrainingProgress", Told)
    monkeypatch.setattr(run_study.time, "sleep", lambda _: tick(_) if locks else None)
    assert train_all([first, second], LocalProcesses(2)) == {}
    assert started == ["t5-1"]


def test_a_killed_trial_is_reported(tmp_path, monkeypatch):
    (trial,) = Study.of("arithmetic", ["none"], 1, {}, "float32").trials(tmp_path)
    monkeypatch.setattr(processes, "start", lambda *_: Ended(-9))
    monkeypatch.setattr(run_study, "TrainingProgress", Told)
    monkeypatch.setattr(run_study.time, "sleep", lambda _: None)
    assert train_all([trial], LocalProcesses(1)) == {"none-1": "it was ended by the signal SIGKILL"}


def test_each_trial_sees_the_gpu_that_the_fewest_others_use(tmp_path, monkeypatch):
    trials = Study.of("arithmetic", ["none", "t5", "alibi"], 1, {}, "float32").trials(tmp_path)
    seen = []

    class Begun(Ended):
        gpu = None

    def begin(trial, snapshots, gpu):
        seen.append(gpu)
        begun = Begun(None)
        begun.gpu = gpu
        return begun

    monkeypatch.setattr(processes, "start", begin)
    first = LocalProcesses(3, gpus=2).start(trials, {})
    assert seen == [0, 1, 0]
    LocalProcesses(3, gpus=2).start(trials[:1], {"a": first[0][1], "b": first[2][1]})
    assert seen[-1] == 1, "0 has two"
    assert jobs_for(6, 2, 4) == 4, "as many as there are GPUs"
    assert least_used_gpu([], 0) is None


def test_trials_use_the_visible_gpus(tmp_path, monkeypatch):
    (trial,) = Study.of("arithmetic", ["none"], 1, {}, "float32").trials(tmp_path)
    reported = []

    def popen(command, *, env, stdin, **_):
        assert (command[3], stdin) == ("jarilab.cli.supervised_child", processes.subprocess.PIPE), "it ends with us"
        reported.append(env.get("CUDA_VISIBLE_DEVICES"))
        raise InterruptedError

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    for _ in range(2):
        with pytest.raises(InterruptedError):
            start(trial, 0, 1)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7")
    assert reported == ["1", "GPU-7"]
