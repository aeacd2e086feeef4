"""Harm to the files of a run while nobody trains: it is noticed, or makes no difference."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from drills.drill import DONE, KILLED, MISTAKE, Drill
from drills.processes import PATIENCE
from drills.promises import BrokenError, newest_of

PASSED_OVER = "the best metric is the one measured during training"
LEFT_OUT = "it is left out, and "
"""What a command says of what it could not use."""
SOON = 20.0 * PATIENCE
"""Seconds in which a file that is none is refused."""


def a_file(drill: Drill) -> Path:
    """Any file of the run but the lock, which is empty."""
    files = sorted(path for path in drill.run.rglob("*") if path.is_file() and path.stat().st_size)
    return drill.chance.choice(files)


def flip(drill: Drill) -> None:
    """One bit of one file is another."""
    path = a_file(drill)
    content = bytearray(path.read_bytes())
    content[drill.chance.randrange(len(content))] ^= 1 << drill.chance.randrange(8)
    path.write_bytes(content)


def truncate(drill: Drill) -> None:
    """A file lost its end."""
    path = a_file(drill)
    os.truncate(path, drill.chance.randrange(path.stat().st_size))


def zero(drill: Drill) -> None:
    """A file is as long as it was, and empty: what some file systems leave after a power cut."""
    path = a_file(drill)
    path.write_bytes(bytes(path.stat().st_size))


def pipe(drill: Drill) -> None:
    """A named pipe lies where a file was, and nobody writes into it."""
    path = a_file(drill)
    path.unlink()
    os.mkfifo(path)


def swap(drill: Drill) -> None:
    """A file of one checkpoint lies in another."""
    older, newer = drill.chance.sample(sorted((drill.run / "checkpoints").iterdir()), 2)
    name = drill.chance.choice(["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
    shutil.copy(older / name, newer / name)


def of_another_run(drill: Drill) -> None:
    """The newest checkpoint is whole, and of a run with another seed."""
    other = drill.folder / "other"
    drill.end(drill.begin(seed=2, out=other), DONE)
    newest = max((drill.run / "checkpoints").iterdir())
    shutil.rmtree(newest)
    shutil.copytree(max((other / "checkpoints").iterdir()), newest)


def harmed(harm: Callable[[Drill], None]) -> Callable[[Drill], None]:
    """A run that ends before its result, or on the way, is harmed. To go on is refused until its files are put back; or
    it goes on, and the harm made no difference."""

    def fault(drill: Drill) -> None:
        if drill.chance.random() < 0.5:
            drill.copy_unfinished()
        else:
            drill.end(drill.begin(drill.plan(drill.an_operation(), "kill")), KILLED)
            drill.check()
            if not newest_of(drill.run) or len(list((drill.run / "checkpoints").iterdir())) < 2:
                drill.copy_fresh()
        kept = shutil.copytree(drill.run, drill.folder / "kept")
        harm(drill)
        attempt = drill.begin()
        attempt.wait(SOON)
        if drill.end(attempt, DONE, MISTAKE) == DONE:
            put_back_passed_over(drill.run, kept)
            said = attempt.said
            drill.hold(without_best=PASSED_OVER in said, rows_lost=LEFT_OUT in said)
            return
        shutil.rmtree(drill.run)
        shutil.copytree(kept, drill.run)
        drill.finish()

    fault.__doc__ = harm.__doc__
    return fault


def put_back_passed_over(run: Path, kept: Path) -> None:
    """A checkpoint that was passed over still lies there, damaged by us, and a snapshot that nobody read: they are no
    leftovers of the run."""
    for whole in (kept / "checkpoints").iterdir():
        here = run / "checkpoints" / whole.name
        if here.exists():
            shutil.rmtree(here)
            shutil.copytree(whole, here)
    for whole in (kept / "snapshots").glob("*.safetensors"):
        here = run / "snapshots" / whole.name
        here.unlink(missing_ok=True)
        shutil.copy(whole, here)


def flipped_when_finished(drill: Drill) -> None:
    """One bit of a finished run is another: its result is told as it was, or refused."""
    shutil.copytree(drill.golden.run, drill.run)
    told = result_told(drill)
    for _ in range(4):
        shutil.rmtree(drill.run)
        shutil.copytree(drill.golden.run, drill.run)
        flip(drill)
        attempt = drill.begin(None, "--json")
        if drill.end(attempt, DONE, MISTAKE) == DONE and json_in(attempt.said) != told:
            raise BrokenError(f"a flipped bit changed what is told: {json_in(attempt.said)}, {told} expected")


def result_told(drill: Drill) -> object:
    attempt = drill.begin(None, "--json")
    drill.end(attempt, DONE)
    return json_in(attempt.said)


def json_in(said: str) -> object:
    """The JSON that a command printed after its other lines."""
    return json.loads(said[said.index("{") :])
