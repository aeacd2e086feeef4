"""What happens to runs. Each fault is given a drill, does its harm to it, and sees that it ends well."""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from drills.disks import disk
from drills.drill import DONE, KILLED, MISTAKE, TERMINATED, Drill
from drills.points import Plan
from drills.promises import BrokenError

Fault = Callable[[Drill], None]
MANY = 25
"""Kills of one run, at most: those at its beginning may be without end."""
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EMFILE, errno.EACCES)


def killed_at_random(drill: Drill) -> None:
    """SIGKILL after a random time, again and again."""
    for _ in range(MANY):
        if drill.finished:
            break
        attempt = drill.begin()
        time.sleep(drill.moment())
        attempt.signal_one(signal.SIGKILL, drill.chance)
        drill.end(attempt, DONE, KILLED)
        drill.check()
    drill.finish()


def at_operations(action: str) -> Fault:
    """A fault at a random operation on the files of the run, again and again."""

    def fault(drill: Drill) -> None:
        for _ in range(MANY):
            if drill.finished:
                break
            attempt = drill.begin(drill.plan(drill.an_operation(), action, rank=drill.a_rank()))
            drill.end(attempt, DONE, KILLED, *TERMINATED)
            drill.check()
        drill.finish()

    fault.__doc__ = f"{action} at a random operation on the files of the run, again and again."
    return fault


def refused_operations(drill: Drill) -> None:
    """An operation on a file fails: the disk is full, read-only, broken. The command says so, and goes on later."""
    for _ in range(4):
        if drill.finished:
            break
        number = drill.chance.choice(ERRORS)
        attempt = drill.begin(drill.plan(drill.an_operation(), "error", number=number))
        drill.end(attempt, DONE, MISTAKE)
        drill.check()
    drill.finish()


def told_to_end(drill: Drill) -> None:
    """SIGTERM after a random time: the step is finished and saved."""
    for _ in range(6):
        if drill.finished:
            break
        attempt = drill.begin()
        time.sleep(drill.moment())
        attempt.signal_one(signal.SIGTERM, drill.chance)
        drill.end(attempt, DONE, *TERMINATED)
        drill.check()
    drill.finish()


def stopped_for_a_while(drill: Drill) -> None:
    """SIGSTOP in the middle of an operation, and a second process on the same folder meanwhile: it is refused."""
    attempt = drill.begin(drill.plan(drill.an_operation(), "stop"))
    if attempt.wait_for_stop():
        second = drill.begin()
        code = second.wait()
        # Before the first has its lock the second may have it; and then the first is refused, once it goes on.
        attempt.signal(signal.SIGCONT)
        if code not in (DONE, MISTAKE):
            raise BrokenError(f"a second process ended with {code}: {second.said[-400:]}")
        drill.end(attempt, DONE, MISTAKE)
    drill.check()
    drill.finish()


def two_at_once(drill: Drill) -> None:
    """Two processes are begun on one folder at once: one of them trains, whichever."""
    attempts = [drill.begin(), drill.begin()]
    codes = [drill.end(attempt, DONE, MISTAKE) for attempt in attempts]
    if DONE not in codes:
        raise BrokenError(f"neither of two processes trained: {[attempt.said for attempt in attempts]}")
    drill.finish()


def jumping_clock(drill: Drill) -> None:
    """The clock jumps by months, and the process is killed on the way."""
    seed = drill.chance.randint(1, 2**31)
    attempt = drill.begin(Plan(str(drill.run), drill.an_operation(), clock=seed))
    drill.end(attempt, KILLED)
    drill.check()
    drill.end(drill.begin(Plan(str(drill.run), clock=seed + 1)), DONE)
    drill.hold()


def full_disk(drill: Drill) -> None:
    """A disk that is smaller than the run; then there is room again."""
    whole = sum(path.stat().st_size for path in drill.golden.run.rglob("*"))
    with disk(drill.folder / "disk", f"size={drill.chance.randint(8192, whole)}") as small:
        drill.run = small.folder / "run"
        drill.end(drill.begin(), DONE, MISTAKE)
        drill.check()
        small.remount("size=256m")
        drill.finish()


def no_inodes(drill: Drill) -> None:
    """A disk with too few inodes; then there are more."""
    count = 2 * len(list(drill.golden.run.rglob("*")))
    with disk(drill.folder / "disk", f"size=256m,nr_inodes={drill.chance.randint(2, count)}") as small:
        drill.run = small.folder / "run"
        drill.end(drill.begin(), DONE, MISTAKE)
        drill.check()
        small.remount("size=256m,nr_inodes=100000")
        drill.finish()


def read_only(drill: Drill) -> None:
    """A disk that became read-only while nobody trained; then it is writable again."""
    with disk(drill.folder / "disk", "size=256m") as own:
        drill.run = own.folder / "run"
        drill.end(drill.begin(drill.plan(drill.an_operation(), "kill")), KILLED)
        drill.check()
        own.remount("ro")
        drill.end(drill.begin(), MISTAKE)
        drill.check()
        own.remount("rw")
        drill.finish()


def changed_settings(drill: Drill) -> None:
    """The same folder with another setting is refused, and nothing is written."""
    drill.end(drill.begin(drill.plan(drill.an_operation(), "kill")), KILLED)
    begun = (drill.run / "run.json").exists()
    before = contents(drill.run)
    setting = drill.chance.choice(["training.lr=0.01", "training.batch_size=4", "training.clip=0.5"])
    if begun:
        drill.end(drill.begin(None, "--set", setting), MISTAKE)
        if contents(drill.run) != before:
            raise BrokenError("a run that was refused was written to")
    drill.check()
    drill.finish()


def changed_data(drill: Drill) -> None:
    """Data of which a letter changed are refused, and the former ones taken."""
    drill.end(drill.begin(drill.plan(drill.an_operation(), "kill")), KILLED)
    if (drill.run / "run.json").exists() and drill.family.data is not None:
        with other_data(drill):
            drill.end(drill.begin(), MISTAKE)
    drill.check()
    drill.finish()


def changed_meanwhile(drill: Drill) -> None:
    """Data of which a letter changes while a process trains: it goes on as it began, or says what changed."""
    attempt = drill.begin(drill.plan(drill.an_operation(), "stop"))
    stopped = attempt.wait_for_stop()
    # Before the run is recorded, the other data would be its own.
    with other_data(drill) if (drill.run / "run.json").exists() else nullcontext():
        if stopped:
            attempt.signal(signal.SIGCONT)
        drill.end(attempt, DONE, MISTAKE)
        drill.check()
    drill.finish()


@contextmanager
def other_data(drill: Drill) -> Iterator[None]:
    """Data of which a letter is another one inside the block; the same for a family that makes its own."""
    if drill.family.data is None:
        yield
        return
    data = drill.materials / drill.family.data
    file = data if data.is_file() else sorted(data.glob("*.txt"))[0]
    text = file.read_text()
    try:
        file.write_text(text.replace("e", "a", 1) if "e" in text else text + " as night")
        yield
    finally:
        file.write_text(text)


def contents(run: Path) -> dict[str, bytes]:
    """Of a run, without its lock and what a kill left half written, which whoever comes next removes."""
    hidden = (".lock", "partial")
    files = [path for path in run.rglob("*") if path.is_file() and not path.name.endswith(hidden)]
    files = [path for path in files if not path.parent.name.endswith(hidden)]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}
