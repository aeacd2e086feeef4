"""Progress of a long computation in a file, from which the same computation continues."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_bytes

SECONDS_BETWEEN_SAVES = 5.0


class ProgressFile:
    """Arrays of an unfinished computation.

    path: of the file; None keeps nothing. identity: what is computed, plain data. arrays: by name, as they were saved.
    Raises UserError for a damaged file, and for that of another computation.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, Any] | None = None):
        self.path, self._identity = path, json.dumps(identity or {}, sort_keys=True)
        self.arrays: dict[str, np.ndarray] = {}
        self._next_save = time.monotonic() + SECONDS_BETWEEN_SAVES
        if path is not None and path.is_file():
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            with safetensors.safe_open(path, "np") as file:
                there = (file.metadata() or {}).get("identity", "{}")
                names = file.keys()
                self.arrays = {name: file.get_tensor(name) for name in names}
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise self.damaged(error) from None
        if there != self._identity:
            details = difference("", json.loads(there), json.loads(self._identity))
            raise UserError(
                f"{path}: expected the progress of the same computation, got another one ({details}); choose another "
                "folder, or remove this file to compute anew"
            )

    def damaged(self, error: Exception) -> UserError:
        """The error for a file that cannot be continued."""
        return UserError(f"{self.path} is damaged ({error}); remove this file to compute anew")

    @property
    def is_due(self) -> bool:
        """Whether it is time to write."""
        return self.path is not None and time.monotonic() > self._next_save

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the file. Nothing is written without a path."""
        if self.path is None:
            return
        start = time.monotonic()
        stored = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        write_bytes(self.path, safetensors.numpy.save(stored, {"identity": self._identity}))
        end = time.monotonic()
        # Large states take at most a twentieth of the time.
        self._next_save = end + max(SECONDS_BETWEEN_SAVES, 20 * (end - start))


def difference(key: str, saved: Any, expected: Any) -> str:
    """What differs between two records, in short."""
    if isinstance(saved, dict) and isinstance(expected, dict):
        names = [name for name in {**saved, **expected} if saved.get(name) != expected.get(name)]
        # A digest says nothing beside a name that differs, too.
        names = [name for name in names if not name.endswith("_digest")] or names
        return "; ".join(difference(name, saved.get(name), expected.get(name)) for name in names)
    there, here = (
        ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for value in (saved, expected)
    )
    return f"{key}: {there[:60]} there, {here[:60]} here"
