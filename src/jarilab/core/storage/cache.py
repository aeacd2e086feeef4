"""A folder of things made once and found again by what they were made from.

An entry is a folder named by the sha256 of the facts it was made from, with a manifest of those facts and of the size
and sha256 of each file. It is made under another name and renamed when whole, so that a kill leaves nothing half-made;
what does not fit its manifest is made anew.
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
"""Its number goes up when what an entry holds changes: older entries are then no longer found."""

_MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 1_000_000
_UNFINISHED = ".jari-unfinished-"
_STALE_SECONDS = 24 * 60 * 60
_ATTEMPTS = 10

T = TypeVar("T")


def cache_folder() -> Path:
    """$JARILAB_CACHE, else where the system keeps caches: $XDG_CACHE_HOME/jarilab or ~/.cache/jarilab on Linux,
    ~/Library/Caches/jarilab on a Mac, %LOCALAPPDATA%\\jarilab\\Cache on Windows."""
    if own := os.environ.get("JARILAB_CACHE"):
        return Path(own).expanduser()
    return user_cache_path("jarilab", appauthor=False)


def cached(
    facts: Mapping[str, Any],
    make: Callable[[Path], Mapping[str, Any]],
    load: Callable[[Path, Mapping[str, Any]], T],
) -> T:
    """What `load` opens in the entry of these facts, after `make` has written its files where there is no sound one.

    `make(folder)` gives what the manifest is to keep; `load(folder, kept)` must have opened all it needs when it
    returns, since another process may put an equal folder in its place. Both sides must go through JSON unchanged.
    Raises UserError where the cache cannot be written.
    """
    facts = {"format": FORMAT, **facts}
    folder = cache_folder() / sha256(json.dumps(facts, sort_keys=True).encode())
    if (kept := _sound(folder, facts)) is not None:
        with suppress(FileNotFoundError):
            return load(folder, kept)
    try:
        return _made(folder, facts, make, load)
    except OSError as error:
        raise UserError(
            f"expected to write the cache in {folder.parent}; got: {error.strerror or error}; "
            "make room there, or set JARILAB_CACHE to a folder that can be written"
        ) from error


def _made(
    folder: Path,
    facts: Mapping[str, Any],
    make: Callable,
    load: Callable[[Path, Mapping[str, Any]], T],
) -> T:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder.parent)
    made = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
    try:
        kept = make(made)
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
            for path in made.iterdir()
        }
        (made / _MANIFEST).write_text(
            json.dumps({"facts": facts, "kept": kept, "files": files}, indent=1)
        )
        loaded = load(made, kept)
        _place(made, folder, facts)
        return loaded
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _place(made: Path, folder: Path, facts: Mapping[str, Any]) -> None:
    """Renames a whole entry to its name; what stands there unsound goes, what another process put there sound stays."""
    for attempt in range(_ATTEMPTS):
        try:
            made.rename(folder)
            return
        except OSError:
            if _sound(folder, facts) is not None:
                return
            if attempt == _ATTEMPTS - 1:
                raise
        aside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
        with suppress(FileNotFoundError):
            folder.rename(aside / "unsound")
        shutil.rmtree(aside, ignore_errors=True)


def _sound(folder: Path, facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the manifest of an entry keeps, or None if the entry is missing, damaged or made from something else."""
    try:
        manifest = folder / _MANIFEST
        if manifest.stat().st_size > _LARGEST_MANIFEST:
            return None
        found = json.loads(manifest.read_text())
        files = {folder / name: said for name, said in found["files"].items()}
        whole = (
            found["facts"] == facts
            and {path.name for path in folder.iterdir()} == {_MANIFEST, *found["files"]}
            and all(path.stat().st_size == said["bytes"] for path, said in files.items())
            and all(sha256(path) == said["sha256"] for path, said in files.items())
        )
        return found["kept"] if whole else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _remove_stale(parent: Path) -> None:
    """Removes what killed processes left unfinished a day ago."""
    for path in parent.glob(f"{_UNFINISHED}*"):
        with suppress(OSError):
            if path.is_dir() and time.time() - path.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
