"""Per-folder lock, released by the system when the process ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from filelock import FileLock, Timeout

from jarilab.core.errors import UserError


class FolderLock:
    """The lock of a folder, held until `close`.

    Raises Timeout if another process holds it, and OSError if it cannot be locked.
    """

    def __init__(self, folder: Path):
        # FileLock would create the folder.
        if not folder.is_dir():
            raise NotADirectoryError(f"{folder} is not a folder")
        self._path = folder / ".lock"
        # thread_local: any thread may release it. fallback_to_soft: a file that only exists would outlive a kill -9, so
        # a file system without locks is refused.
        self._lock = FileLock(self._path, timeout=0, thread_local=False, fallback_to_soft=False)
        self._lock.acquire()
        self._stat = self._path.stat()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._lock.release()

    @property
    def is_valid(self) -> bool:
        """Whether the locked file is still the one in the folder."""
        try:
            return os.path.samestat(self._path.stat(), self._stat)
        except OSError:
            return False


def locked(folder: Path, activity: str) -> FolderLock:
    """Lock a folder. Raises UserError if another process holds the lock, or the folder cannot be written.

    activity: what such a process does, for the message, such as `is training`.
    """
    try:
        return FolderLock(folder)
    except Timeout:
        raise UserError(
            f"another process {activity} in {folder}; wait for it, or choose another --out"
        ) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(
                f"{folder / '.lock'} is a link, and a run writes only to its own folder; remove the link"
            ) from None
        raise UserError(f"{folder} cannot be written: {error}") from None


def is_training(folder: Path) -> bool:
    """Whether a process trains the run in a folder."""
    try:
        FolderLock(folder).close()
    except Timeout:
        return True
    except OSError:  # the folder does not exist or cannot be written
        return False
    return False
