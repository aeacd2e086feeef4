"""One drill: a run of a family, begun and gone on with until it is done, and what is checked on the way."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from drills.families import Family
from drills.points import Plan
from drills.processes import DONE, KILLED, MISTAKE, TERMINATED, Attempt, called, commanded, forked
from drills.promises import BrokenError, Left, check_nothing_left_over, check_same, curve_of, left_by, newest_of
from drills.ranks import Ranks, forking, torchrun


@dataclass
class Golden:
    """The undisturbed run of a family: its folder, what it leaves, how long it takes, its operations on files."""

    run: Path
    left: Left
    seconds: float
    operations: list[str]


@dataclass
class Counts:
    """What happened in all drills. hurt: processes killed, cut off from power, or ended by a signal, by family."""

    drills: Counter[str] = field(default_factory=Counter)
    hurt: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    attempts: int = 0
    equal: int = 0
    ended: int = 0
    refused: int = 0


class Drill:
    """A run in the hands of a fault."""

    def __init__(self, family: Family, golden: Golden, folder: Path, counts: Counts, seed: str, *, real: bool):
        self.family, self.golden = family, golden
        self.folder, self.counts = folder, counts
        self.chance = random.Random(seed)
        self.real = real
        self.materials = golden.run.parent / "materials"
        self.run = folder / "run"
        self.newest = 0
        folder.mkdir(parents=True)

    def begin(self, plan: Plan | None = None, *more: str, seed: int = 1, out: Path | None = None) -> Attempt:
        """Start the command; it is the caller's to end it. more: words at its end."""
        self.counts.attempts += 1
        words = [*self.family.command(self.materials, out or self.run, seed), *more]
        environment = {**self.family.environment, "JARILAB_CACHE": str(self.materials / "cache")}
        log = self.folder / f"log-{time.monotonic_ns()}.txt"
        if self.family.ranks > 1:
            return Ranks(self._launched(words, log, environment, plan), log)
        if self.real:
            return Attempt(commanded(log, environment, plan, ["-P", "-m", "jarilab", *words]), log)
        return Attempt(forked(log, environment, lambda: called(words, plan)), log)

    def _launched(self, words: list[str], log: Path, environment: dict[str, str], plan: Plan | None) -> int:
        options = torchrun(self.family.ranks, log)
        if self.real:
            return commanded(log, environment, plan, ["-m", "torch.distributed.run", *options, *words])
        return forked(log, environment, lambda: forking([*options, *words], lambda: called(words, plan)))

    def plan(self, at: int, action: str, **more: object) -> Plan:
        return Plan(str(self.run), at, action, share=self.chance.random(), **more)  # type: ignore[arg-type]

    def an_operation(self) -> int:
        """The number of an operation, some way from where a run begins or goes on."""
        return self.chance.randint(1, len(self.golden.operations))

    def a_rank(self) -> int:
        return self.chance.randrange(self.family.ranks)

    def moment(self) -> float:
        """Seconds into a run."""
        slower = 8.0 if self.real else 1.05
        return self.chance.uniform(0, self.golden.seconds * slower)

    def end(self, attempt: Attempt, *expected: int) -> int:
        """Wait until it ends. Raises BrokenError where it ends otherwise than expected."""
        code = attempt.wait()
        if code not in expected:
            raise BrokenError(f"exit code {code}, expected {expected}; it said: {attempt.said[-600:]}")
        if "Traceback" in attempt.said:
            raise BrokenError(f"a traceback: {attempt.said[-900:]}")
        if code == MISTAKE and "jarilab: " not in attempt.said:
            raise BrokenError(f"ended with {code} and no word")
        if code in (KILLED, *TERMINATED):
            self.counts.hurt[self.family.name] += 1
            self.counts.kills += code == KILLED
        self.counts.refused += code == MISTAKE
        return code

    def check(self) -> None:
        """What holds at any time: what was saved stays, and the curve is one."""
        before, self.newest = self.newest, newest_of(self.run)
        if self.newest < before:
            raise BrokenError(f"the newest checkpoint was of step {before} and is of step {self.newest}")
        curve_of(self.run, torn=True)

    @property
    def finished(self) -> bool:
        return (self.run / "result.json").exists()

    def finish(self) -> None:
        """Go on until it is done, undisturbed, and hold it against the golden run."""
        self.end(self.begin(), DONE)
        self.hold()

    def hold(self, *, without_best: bool = False, rows_lost: bool = False) -> None:
        """Hold a finished run against the golden one."""
        self.counts.ended += 1
        check_same(self.run, self.golden.left, without_best=without_best, rows_lost=rows_lost)
        self.counts.equal += 1
        check_nothing_left_over(self.run)

    def copy_unfinished(self) -> None:
        """In place of training: the golden run as it was before its result."""
        shutil.copytree(self.golden.run, self.run)
        (self.run / "result.json").unlink()
        self.newest = newest_of(self.run)

    def copy_fresh(self) -> None:
        """Instead of a run that has too little to be harmed."""
        shutil.rmtree(self.run, ignore_errors=True)  # or that was killed before there was a folder
        self.copy_unfinished()


def make_golden(family: Family, folder: Path, counts: Counts) -> Golden:
    """Train a family undisturbed, twice: with its operations noted, and for the time it takes and for the same bits."""
    empty = Golden(folder / "run", None, 0.0, [])  # type: ignore[arg-type]
    noting = Drill(family, empty, folder / "noted", counts, "golden", real=False)
    log = noting.folder / "operations"
    noting.end(noting.begin(Plan(str(noting.run), log=str(log))), DONE)
    begun = time.monotonic()
    plain = Drill(family, empty, folder / "plain", counts, "golden", real=False)
    plain.end(plain.begin(), DONE)
    seconds = time.monotonic() - begun
    check_same(noting.run, left_by(plain.run))
    shutil.move(plain.run, folder / "run")
    operations = log.read_text().split("\n")
    for own in (noting.folder, plain.folder):
        shutil.rmtree(own)
    return Golden(folder / "run", left_by(folder / "run"), seconds, operations)
