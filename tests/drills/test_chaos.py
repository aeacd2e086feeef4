"""A cheap share of `make chaos`, as the command that anybody can run; and that the drills can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drills.processes import DONE, KILLED, MISTAKE, TERMINATED
from drills.promises import BrokenError, check_nothing_left_over, curve_of
from drills.ranks import Ranks
from drills.table import FAULTS
from drills.totals import served, totals

TESTS = Path(__file__).parents[1]
MINUTES = "0.3"


def in_a_process(*words: str) -> subprocess.CompletedProcess[str]:
    """A drill forks, which a process with threads must not."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=400)


@pytest.mark.slow
def test_runs_survive_what_happens_to_them() -> None:
    done = in_a_process("drills", "--minutes", MINUTES, "--seed", "1", "--forks")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["drills"], done.stdout
    assert counts["hurt"], done.stdout


@pytest.mark.long
def test_hostile_and_huge_inputs_are_bounded() -> None:
    done = in_a_process("drills.bounds")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "10,000,000 lines | 1 read" in done.stdout


@pytest.mark.long
def test_nothing_of_a_hostile_run_is_executed() -> None:
    done = in_a_process("drills.hostile")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    told = json.loads(done.stdout)
    counts = told["counts"]
    assert (counts["canaries"], told["executed"], told["tracebacks"]) == (0, [], {})
    assert counts["strings"] == 500
    assert counts["refused"] > 400
    assert counts["done"] > 20, "what is harmless is used"


FAILURE = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
  exitcode  : {first} (pid: 7)
Root Cause (first observed failure):
  exitcode  : {root} (pid: 8)
"""


@pytest.mark.parametrize(
    ("agent", "words", "code"),
    [
        (0, "", DONE),
        (KILLED, "", KILLED),
        (1, FAILURE.format(first=2, root=KILLED), KILLED),
        (1, FAILURE.format(first=KILLED, root=2), KILLED),
        (1, FAILURE.format(first=143, root=143), TERMINATED[0]),
        (1, FAILURE.format(first=2, root=2), MISTAKE),
        (1, "SignalException: Process 7 got signal: 15", TERMINATED[1]),
        (1, "RendezvousClosedError", 1),
        (1, FAILURE.format(first=1, root=1), 1),
    ],
)
def test_ranks_end_as_one_process_would(tmp_path: Path, agent: int, words: str, code: int) -> None:
    (tmp_path / "log.txt").write_text(words)
    assert Ranks(0, tmp_path / "log.txt").meaning(agent) == code


def test_every_fault_says_what_it_is() -> None:
    assert all(entry.fault.__doc__ for entry in FAULTS.values())


@pytest.mark.parametrize(
    ("curve", "fault"),
    [
        ('{"step": 1}\n{"step": 1}\n', "repeat or go back"),
        ('{"step": 2}\n{"step": 1}\n', "repeat or go back"),
        ('{"step": 1}\n{"st\n{"step": 3}\n', "line 2 of the curve is none"),
        ('{"step": 1}\n{"st', "line 2 of the curve is none"),
    ],
)
def test_a_curve_that_is_none_is_noticed(tmp_path: Path, curve: str, fault: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(curve)
    with pytest.raises(BrokenError, match=fault):
        curve_of(tmp_path)


def test_a_leftover_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-000000003").mkdir(parents=True)
    with pytest.raises(BrokenError, match=r"left over: checkpoint .* is damaged"):
        check_nothing_left_over(tmp_path)
    (tmp_path / ".run.json.1.partial").touch()
    with pytest.raises(BrokenError, match=r"left over: \.run\.json\.1\.partial"):
        check_nothing_left_over(tmp_path)


TORN = """
import os, pathlib
from drills.points import Plan, arm
arm(Plan({root!r}, at=3, action="torn", share=0.0))
with pathlib.Path({root!r}, "curve").open("a") as file:
    for line in ("one", "two"):
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
"""


@pytest.mark.slow
def test_what_was_synchronised_is_not_torn(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TORN.format(root=str(tmp_path))], cwd=TESTS, timeout=60)
    assert done.returncode == KILLED
    assert (tmp_path / "curve").read_text() == "one"


WATCHED = """
import pathlib, pickle
from drills.watch import Watch
watch = Watch(pathlib.Path({root!r}), "canary_bird")
watch.on = True
try:
    {harm}
except BaseException as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    "harm",
    [
        "import evil",
        "pickle.loads(b'cos\\nsystem\\n.')",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import subprocess; subprocess.run(['true'])",
        "eval(\"'canary_bird'\")",
        "import os; os.system('true')",
    ],
)
def test_the_watch_can_fail(tmp_path: Path, harm: str) -> None:
    (tmp_path / "evil.py").write_text("x = 1\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})" + WATCHED.format(root=str(tmp_path), harm=harm)
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, timeout=60)
    assert done.stdout == "RefusedError\n", done.stderr


def test_totals_of_several_runs_are_summed() -> None:
    log = """FAILED flipped bit | recurrent | make chaos SEED=1 ONLY=7 | /tmp/x | HungError: still there
3 drills passed, 1 failed, in 4.0 minutes
20 processes, 6 killed, 7 killed or told to end, 2 refused with a message
3 runs held against undisturbed ones: 2 equal bit by bit, 1 not
{"drills": {"flipped bit": 1, "flipped bit of a finished run": 2}, "hurt": {"two ranks, a copy on each": 5}}
"""
    rows = dict(totals([log, log]))
    assert rows["drills that passed; that failed"] == "6; 2"
    assert rows["kills"] == "12"
    assert rows["flipped bits"] == "18"
    assert rows["kills and signals to runs of two ranks"] == "10"
    assert rows["lost, or silently another result"] == "2"


def test_the_memory_of_a_server_is_read_from_its_samples() -> None:
    log = "| minutes | requests | memory, MB |\n| --- | --- | --- |\n"
    log += "| 0.5 | 10 | 250 | 9 |\n| 1.0 | 1,000 | 286 | 9 |\n| 1.5 | 2,000 | 287 | 9 |\n"
    rows = dict(served(log))
    assert rows["requests to one `jarilab serve`"] == "2,000"
    assert rows["its memory after half of the time, at the end"] == "286 MB after 1,000, 287 MB after 2,000"
    assert served("3 drills passed") == []
