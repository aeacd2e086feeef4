"""A cache of folders, each named by the SHA-256 of the facts that it was made from.

An entry has a manifest of these facts and of size and SHA-256 of each file. It is built under another name and renamed
when complete, so an interruption leaves no partial entry. Damaged entries are built again.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from platformdirs import user_cache_path

from jarilab.core.errors import UserError
from jarilab.core.storage.files import sha256

FORMAT = "jari cache 1"
"""Part of the facts. Increment its number when the contents of entries change."""

_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 1_000_000
_UNFINISHED = ".jari-unfinished-"
_STALE_SECONDS = 24 * 60 * 60
_ATTEMPTS = 10

T = TypeVar("T")


def cache_folder() -> Path:
    """$JARILAB_CACHE, or the cache folder of the system.

    $XDG_CACHE_HOME/jarilab or ~/.cache/jarilab on Linux, ~/Library/Caches/jarilab on macOS,
    %LOCALAPPDATA%\\jarilab\\Cache on Windows.
    """
    if folder := os.environ.get("JARILAB_CACHE"):
        return Path(folder).expanduser()
    return user_cache_path("jarilab", appauthor=False)


def cached(
    facts: Mapping[str, Any],
    make: Callable[[Path], Mapping[str, Any]],
    load: Callable[[Path, Mapping[str, Any]], T],
) -> T:
    """Load the entry of these facts, after building it if it is missing or damaged.

    make: `make(folder)` writes the files and returns a record for the manifest. load: `load(folder, record)` must have
    opened everything when it returns, since another process may replace the folder by an equal one. Facts and record
    must be representable in JSON. Raises UserError if the cache cannot be written.
    """
    facts = {"format": FORMAT, **facts}
    folder = cache_folder() / sha256(json.dumps(facts, sort_keys=True).encode())
    if (record := _read_record(folder, facts)) is not None:
        with suppress(FileNotFoundError):
            return load(folder, record)
    try:
        return _build(folder, facts, make, load)
    except OSError as error:
        raise UserError(
            f"expected to write the cache in {folder.parent}; got: {error.strerror or error}; "
            "free some space, or set JARILAB_CACHE to a folder that can be written"
        ) from error


def _build(
    folder: Path,
    facts: Mapping[str, Any],
    make: Callable,
    load: Callable[[Path, Mapping[str, Any]], T],
) -> T:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder.parent)
    partial = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
    try:
        record = make(partial)
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
            for path in partial.iterdir()
        }
        (partial / _MANIFEST).write_text(
            json.dumps({"facts": facts, "kept": record, "files": files}, indent=1)
        )
        # Opened before the rename: another process may replace the folder at any time after it.
        loaded = load(partial, record)
        _install(partial, folder, facts)
        return loaded
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _install(partial: Path, folder: Path, facts: Mapping[str, Any]) -> None:
    """Rename a complete entry to its final name, unless another process has installed it; replace a damaged one."""
    for attempt in range(_ATTEMPTS):
        try:
            # Fails if the folder exists, since a folder with files in it is never replaced.
            partial.rename(folder)
            return
        except OSError:
            if _read_record(folder, facts) is not None:
                return
            if attempt == _ATTEMPTS - 1:
                raise
        # Renamed before it is deleted, so that no reader meets an entry with half of its files.
        aside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
        with suppress(FileNotFoundError):
            folder.rename(aside / "damaged")
        shutil.rmtree(aside, ignore_errors=True)


def _read_record(folder: Path, facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The record in the manifest, or None if the entry is missing, damaged or made from other facts."""
    try:
        manifest = folder / _MANIFEST
        if manifest.stat().st_size > _MAX_MANIFEST_BYTES:
            return None
        entry = json.loads(manifest.read_text())
        files = {folder / name: expected for name, expected in entry["files"].items()}
        is_intact = (
            entry["facts"] == facts
            and {path.name for path in folder.iterdir()} == {_MANIFEST, *entry["files"]}
            and all(path.stat().st_size == expected["bytes"] for path, expected in files.items())
            and all(sha256(path) == expected["sha256"] for path, expected in files.items())
        )
        return entry["kept"] if is_intact else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # the manifest may hold any JSON


def _remove_stale(parent: Path) -> None:
    """Remove partial entries of killed processes that are older than a day."""
    for path in parent.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):
            if path.is_dir() and time.time() - path.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
