"""Who works in a folder: one process at a time holds its lock, and the system lets go of it however that ends."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock, Timeout

from jarilab.core.errors import UserError


class FolderLock:
    """The lock of a folder, from its making until it is closed. Raises Timeout where another process holds it, and
    OSError where it cannot be had."""

    def __init__(self, folder: Path):
        if not folder.is_dir():  # the library would make it
            raise NotADirectoryError(f"{folder} is no folder")
        self._path = folder / ".lock"
        # Whichever thread ends the work lets go of it. A lock that is no more than a file's being there would outlive
        # a kill -9, so a file system without locks is refused.
        self._lock = FileLock(self._path, timeout=0, thread_local=False, fallback_to_soft=False)
        self._lock.acquire()
        self._held = self._path.stat()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._lock.release()

    @property
    def stands(self) -> bool:
        """Whether the file that was locked is still the one in the folder."""
        try:
            return os.path.samestat(self._path.stat(), self._held)
        except OSError:
            return False


def locked(folder: Path, doing: str) -> FolderLock:
    """The lock of a folder, until it is closed. Raises UserError where another process, `doing` the same, has it."""
    try:
        return FolderLock(folder)
    except Timeout:
        raise UserError(
            f"another process {doing} in {folder}; wait for it, or choose another --out"
        ) from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}") from None


def is_training(folder: Path) -> bool:
    """Whether a process trains the run in a folder, such as one that outlived its comparison."""
    try:
        FolderLock(folder).close()
    except Timeout:
        return True
    except OSError:
        return False  # never begun, or no run: whoever trains there says so
    return False
