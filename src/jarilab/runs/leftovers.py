"""What lies in the folder of a run and is no part of it: leftovers of writes that were cut off, and damaged files."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path

WRITTEN_IN = (".", "checkpoints", "snapshots")
"""The folders of a run, from itself, in which files appear whole or not at all."""
DAMAGED = "damaged"
"""The folder of a run for copies of what is damaged; nothing is read from it."""


def is_foreign(folder: Path, kept: Mapping[str, bytes]) -> bool:
    """Whether a folder without run.json holds anything but a start that was cut off: the lock, files that a run keeps,
    and a half-written one of these or run.json."""
    partials = [f".{name}.*.partial" for name in ("run.json", *kept)]

    def ours(path: Path) -> bool:
        whole = path.name in kept and path.is_file() and path.read_bytes() == kept[path.name]
        return whole or path.name == ".lock" or any(path.match(partial) for partial in partials)

    return not all(ours(path) for path in folder.iterdir())


def leftovers(folder: Path) -> list[Path]:
    """What writes that were cut off left behind in a run."""
    places = [folder / name for name in WRITTEN_IN]
    return [path for place in places for path in sorted(place.glob(".*.partial"))]


def remove_leftovers(folder: Path) -> None:
    """Only for whoever holds the lock of the run: another may be writing now."""
    for path in leftovers(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def set_aside(folder: Path, path: Path, *, move: bool = False) -> Path:
    """A copy of what is damaged, in the folder `damaged` of the run, where nothing is read; gives its path. Nothing
    that stands there is replaced. move: and take it away from where it stands."""
    place = folder / DAMAGED
    place.mkdir(exist_ok=True)
    number = next(n for n in itertools.count(1) if not (place / f"{path.name}.{n}").exists())
    target = place / f"{path.name}.{number}"
    if move:
        path.rename(target)
    else:
        shutil.copyfile(path, target)
    return target
