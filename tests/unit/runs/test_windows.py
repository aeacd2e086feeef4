"""What Windows lacks is not asked for.

Nothing here runs on Windows. A process of its own is left without the modules, signals and flags that Python has on
Windows nowhere, for jari alone (PyTorch and others decide by the platform), and trains in it.
"""

import subprocess
import sys

WITHOUT = """
import builtins, fcntl, os, signal, sys
import torch, jarilab, filelock

ABSENT = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog"}
import_of = builtins.__import__

def as_on_windows(name, globals=None, *rest, **named):
    asker = (globals or {}).get("__name__", "")
    if name in ABSENT and asker.startswith("jarilab"):
        raise ModuleNotFoundError(f"{asker} asks for {name}, which Windows has not")
    return import_of(name, globals, *rest, **named)

builtins.__import__ = as_on_windows
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGALRM", "SIGPIPE"):
    delattr(signal, name)
for name in ("fork", "sched_getaffinity", "killpg"):
    delattr(os, name)
# filelock asks for flags of its own here.
flags = {name: vars(os).pop(name) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY")}
import jarilab.core.storage.files
vars(os).update(flags)

# Windows synchronises a file that is open for writing only, and opens no folder.
opened, synchronised = os.open, os.fsync

def open_as_on_windows(path, *rest, **named):
    if os.path.isdir(path) and not named:
        raise PermissionError(path)
    return opened(path, *rest, **named)

def fsync_as_on_windows(number):
    assert fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE, "synchronised without being writable"
    synchronised(number)

os.open, os.fsync = open_as_on_windows, fsync_as_on_windows

from jarilab.training import memory
memory.sys = type("Windows", (), {"platform": "win32"})
settings = {"model.d_model": 16, "model.n_heads": 2, "training.examples": 64, "training.batch_size": 32}
result = jarilab.train("arithmetic:maximum=30", sys.argv[1], settings=settings)
assert result["peak_memory"] is None
assert next(jarilab.predict(sys.argv[1], ["1+1"])).error is None
"""


def test_training_asks_for_nothing_that_windows_lacks(tmp_path):
    run = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", WITHOUT, run], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert b"\r" not in (run / "metrics.jsonl").read_bytes()
