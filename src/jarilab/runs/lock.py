"""Who trains in a folder: one process at a time holds its lock, and the system lets go of it however that ends."""

from __future__ import annotations

import fcntl
from pathlib import Path


def is_training(folder: Path) -> bool:
    """Whether a process trains the run in a folder, such as one that outlived its comparison."""
    try:
        with (folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # never begun, or no run: whoever trains there says so
    return False
