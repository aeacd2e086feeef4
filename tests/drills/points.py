"""Faults inside a process: at its k-th operation on the files of a run it is killed, stopped, told to end, or refused.

The product knows nothing of this. Python tells an audit hook of every file that is opened, renamed or removed before
it is; `os.fsync` and safetensors' `save_file`, of which it tells nothing, are wrapped. The hook cannot be taken out
again, so it is one for the whole process, asleep unless armed.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDERS = {"os.mkdir", "os.rmdir", "os.remove", "os.chmod", "os.truncate", "os.rename", "os.link", "os.symlink"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class KilledError(BaseException):
    """What a process that was killed inside a test meets: nothing catches it, and it does nothing more."""


@dataclass
class Plan:
    """What happens, and when.

    root: operations below this folder count. at: the number of the operation, from 1; 0 for never. action: kill, torn
    (what is being written is cut short first), power (what is not on the disk is lost first), stop, term, error, die
    (an exception that nothing catches, and every operation after it is refused: a kill inside the process of a test).
    number: the errno of an error. share: how much of a torn file is left. log: where to write the operations down.
    clock: a seed for a clock that jumps. rank: of several that train together, the one that it is meant for.
    """

    root: str
    at: int = 0
    action: str = "kill"
    number: int = errno.ENOSPC
    share: float = 0.5
    log: str = ""
    clock: int = 0
    rank: int = 0


@dataclass
class _Armed:
    plan: Plan
    count: int = 0
    dead: bool = False
    operations: list[str] = field(default_factory=list)
    durable: dict[str, int] = field(default_factory=dict)
    """Files that this process writes, and how much of each is surely on the disk."""


_armed: _Armed | None = None
_installed = False


def arm(plan: Plan) -> None:
    """From now on the plan holds, if it is meant for this process."""
    global _armed
    if plan.rank != int(os.environ.get("RANK", 0)):
        return
    _install()
    root = os.path.realpath(plan.root)
    _armed = _Armed(Plan(**{**vars(plan), "root": root}))
    if plan.clock:
        _jump(plan.clock)


def disarm() -> int:
    """The plan holds no more; gives how many operations there were."""
    global _armed
    armed, _armed = _armed, None
    return 0 if armed is None else armed.count


def _install() -> None:
    global _installed
    if _installed:
        return
    _installed = True
    from safetensors import torch as weights  # late: a command is given its time to set its environment

    fsync, save_file = os.fsync, weights.save_file

    def noted_fsync(descriptor: Any) -> None:
        path = _opened(descriptor if isinstance(descriptor, int) else descriptor.fileno())
        _operation("fsync", path, tear=True)
        fsync(descriptor)
        if _armed is not None and path in _armed.durable:
            _armed.durable[path] = os.path.getsize(path)

    def noted_save(tensors: Any, path: Any, *rest: Any, **named: Any) -> None:
        _operation("save_file", os.fspath(path))
        save_file(tensors, path, *rest, **named)
        _operation("saved", os.fspath(path), tear=True)

    os.fsync = noted_fsync
    weights.save_file = noted_save
    sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if _armed is None:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = bool(flags & WRITING) if isinstance(flags, int) else False
        if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
            _operation("open", path)
    elif event in FOLDERS:
        _operation(event, arguments[0], *_beside(event, arguments))
    elif event == "fcntl.flock":
        _operation("flock", _opened(arguments[0]))


def _beside(event: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The folder that a removal is relative to, as `shutil.rmtree` does it; the new name of what is renamed."""
    if event == "os.rename":
        return (-1, arguments[1])
    return (arguments[-1],) if event in ("os.remove", "os.rmdir") else ()


def _operation(name: str, path: Any, folder: int = -1, target: Any = None, *, tear: bool = False) -> None:
    armed = _armed
    if armed is None or not isinstance(path, str | os.PathLike | bytes):
        return
    where = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        where = f"{_opened(folder)}/{where}"
    where = os.path.abspath(where)
    plan = armed.plan
    if where != plan.root and not where.startswith(plan.root + "/"):
        return
    if armed.dead:
        raise KilledError
    _note_durable(armed, name, where, target)
    armed.count += 1
    if plan.log:
        armed.operations.append(f"{name} {where.removeprefix(plan.root)}")
        _write_log(armed)
    if armed.count == plan.at:
        _act(armed, where, tear)


def _write_log(armed: _Armed) -> None:
    """With the plan asleep: it is no operation of the run."""
    global _armed
    _armed = None
    Path(armed.plan.log).write_text("\n".join(armed.operations))
    _armed = armed


def _note_durable(armed: _Armed, name: str, where: str, target: Any) -> None:
    if name in ("open", "save_file"):
        there = os.path.getsize(where) if os.path.isfile(where) else 0
        armed.durable.setdefault(where, there)
    elif name == "os.rename":
        to = os.path.abspath(os.fsdecode(target))
        moved = [path for path in armed.durable if path == where or path.startswith(where + "/")]
        for path in moved:
            armed.durable[to + path.removeprefix(where)] = armed.durable.pop(path)


def _act(armed: _Armed, where: str, tear: bool) -> None:
    plan = armed.plan
    do: dict[str, Callable[[], None]] = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "torn": lambda: _tear(where, armed.durable.get(where, 0), plan.share if tear else 1.0),
        "power": lambda: _lose(armed),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "error": lambda: _refuse(plan.number, where),
        "die": lambda: _die(armed),
    }
    do[plan.action]()


def _die(armed: _Armed) -> None:
    armed.dead = True
    raise KilledError


def _refuse(number: int, where: str) -> None:
    raise OSError(number, os.strerror(number), where)


def _tear(where: str, durable: int, share: float) -> None:
    """Cut short what was written since the file was last synchronised."""
    global _armed
    _armed = None
    if share < 1.0 and os.path.isfile(where):
        os.truncate(where, durable + int((os.path.getsize(where) - durable) * share))
    os.kill(os.getpid(), signal.SIGKILL)


def _lose(armed: _Armed) -> None:
    """A power cut: of every file that was written here, what was not synchronised is gone."""
    global _armed
    _armed = None
    for path, size in armed.durable.items():
        if os.path.isfile(path) and os.path.getsize(path) > size:
            os.truncate(path, size)
    os.kill(os.getpid(), signal.SIGKILL)


def _opened(descriptor: int) -> str:
    """The path of an open file or folder."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def _jump(seed: int) -> None:
    """A clock that jumps to and fro by up to a year."""
    import time

    drawn, now = random.Random(seed), time.time
    time.time = lambda: now() + drawn.uniform(-3e7, 3e7)
