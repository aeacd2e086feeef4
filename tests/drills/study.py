"""A comparison whose driver is killed: the same command goes on, and its trials end as undisturbed ones."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

from drills.drill import DONE, KILLED, MISTAKE, Drill
from drills.families import BUDGET, TWO_STACKS
from drills.processes import PATIENCE, Attempt, commanded
from drills.promises import BrokenError, check_same, left_by

TRIALS = ("none-1", "rotary-1")
LONG = 300.0 * PATIENCE
"""Seconds: two trials are two commands, each of which imports torch."""
TRIES = 20
GRACE = 20.0 * PATIENCE
"""Seconds in which trials end that lost their driver."""


def driver_killed(drill: Drill) -> None:
    """The driver of a comparison of two trials is killed, twice; the same command goes on."""
    golden = drill.materials.parent / "study"
    if not golden.exists():
        whole = shutil.copytree(_study(drill, drill.folder / "golden"), drill.folder / "whole")
        whole.rename(golden)
    folder = drill.folder / "study"
    for _ in range(2):
        attempt = _begin(drill, folder)
        time.sleep(drill.chance.uniform(1, 12))
        attempt.signal(signal.SIGKILL)
        drill.end(attempt, DONE, KILLED)
    _until_done(drill, folder)
    for trial in TRIALS:
        drill.counts.ended += 1
        check_same(folder / trial, left_by(golden / trial))
        drill.counts.equal += 1
    if _told(folder) != _told(golden):
        raise BrokenError(f"another table: {_told(folder)}, {_told(golden)} expected")
    _check_alone(folder)


def _study(drill: Drill, folder: Path) -> Path:
    attempt = _begin(drill, folder)
    attempt.wait(LONG)
    drill.end(attempt, DONE)
    return folder


def _begin(drill: Drill, folder: Path) -> Attempt:
    drill.counts.attempts += 1
    words = ["compare", "arithmetic:maximum=30", "--encodings", "none,rotary", "--seeds", "1", "--jobs", "2"]
    words += ["--out", str(folder)]
    for name, value in (BUDGET | TWO_STACKS).items():
        words += ["--set", f"{name}={value}"]
    environment = {"JARILAB_CACHE": str(drill.materials / "cache")}
    log = drill.folder / f"log-{time.monotonic_ns()}.txt"
    return Attempt(commanded(log, environment, None, ["-P", "-m", "jarilab", *words]), log)


def _until_done(drill: Drill, folder: Path) -> None:
    """Trials that outlive their driver may hold it up for a moment."""
    for _ in range(TRIES):
        attempt = _begin(drill, folder)
        attempt.wait(LONG)
        if drill.end(attempt, DONE, MISTAKE) == DONE:
            return
        time.sleep(1)
    raise BrokenError(f"{folder} could not be gone on with in {TRIES} tries")


def _told(folder: Path) -> list[tuple[str, int, float]]:
    """What the table says of each trial."""
    trials = json.loads((folder / "table.json").read_text())["trials"]
    return [(trial["encoding"], trial["seed"], trial["value"]) for trial in trials]


def _check_alone(folder: Path) -> None:
    """Raises BrokenError where a process still works in the folder."""
    end = time.monotonic() + GRACE
    while True:
        left = [one.name for one in Path("/proc").glob("[0-9]*") if str(folder) in _command(one)]
        if not left:
            return
        if time.monotonic() > end:
            raise BrokenError(f"processes outlived their comparison: {left}")
        time.sleep(0.2)


def _command(process: Path) -> str:
    try:
        # A trial that was forked has the command of its server; its output goes to a log in the folder.
        return (process / "cmdline").read_text(errors="replace") + str((process / "fd" / "1").readlink())
    except OSError:
        return ""
