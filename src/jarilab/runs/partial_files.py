"""Files in a run folder that are not part of the run: partial writes, and copies of damaged files."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path

ATOMIC_FOLDERS = (".", "checkpoints", "snapshots")
"""Folders of a run in which files are written under another name and then renamed."""
DAMAGED = "damaged"
"""The folder of a run for copies of damaged files; nothing is read from it."""


def is_foreign(folder: Path, kept: Mapping[str, bytes]) -> bool:
    """Whether a folder without run.json holds more than an interrupted start of a run.

    Such a start leaves the lock, files that a run keeps, and partial writes. kept: those files, by name.
    """
    partial_names = [f".{name}.*.partial" for name in ("run.json", *kept)]

    def is_of_start(path: Path) -> bool:
        is_kept = path.name in kept and path.is_file() and path.read_bytes() == kept[path.name]
        return is_kept or path.name == ".lock" or any(map(path.match, partial_names))

    return not all(map(is_of_start, folder.iterdir()))


def partial_files(folder: Path) -> list[Path]:
    """Files and folders that interrupted writes left in a run folder."""
    folders = [folder / name for name in ATOMIC_FOLDERS]
    return [path for parent in folders for path in sorted(parent.glob(".*.partial"))]


def remove_partial_files(folder: Path) -> None:
    """Remove them. Call it only under the run's lock: another process may be writing."""
    for path in partial_files(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def set_aside(folder: Path, path: Path, *, move: bool = False) -> Path:
    """Copy a damaged file into the folder `damaged` of the run, or `move` it; returns its new path."""
    target_folder = folder / DAMAGED
    target_folder.mkdir(exist_ok=True)
    numbered = (target_folder / f"{path.name}.{number}" for number in itertools.count(1))
    target = next(candidate for candidate in numbered if not candidate.exists())
    if move:
        path.rename(target)
    else:
        shutil.copyfile(path, target)
    return target
