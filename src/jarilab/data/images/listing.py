"""Lists image files with their labels: a folder for each class, or a CSV."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jarilab.core.errors import UserError, printable
from jarilab.data.images.notices import Notices
from jarilab.data.text import text_files
from jarilab.data.text.columns import read_rows

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""Endings of names of image files, in small letters."""
_PATH = re.compile(r"(path|file|image|img|picture)[\s_-]?(path|name|file)?", re.IGNORECASE)
_LABEL = re.compile(r"(label|class)[\s_-]?(name)?|target|category", re.IGNORECASE)

_BESIDE = "files left out, which lie beside the class folders"
_LINKS = "links to folders inside the class folders, not followed"
_UNLABELLED = "lines left out, without a path or without a label"


@dataclass(frozen=True)
class Listing:
    """Files with their labels. labels: all expected labels, also those without a file."""

    files: list[tuple[Path, str]]
    labels: list[str]


def natural(names: Iterable[str]) -> list[str]:
    """Sort in natural order: 2 before 10."""
    return sorted(names, key=lambda name: (_key(name), name))


def _key(name: str) -> list[tuple[int, str]]:
    """Return a sort key of alternating texts and numbers, numbers by their count of digits first."""
    key = []
    for place, part in enumerate(re.split(r"([0-9]+)", name)):
        is_number = place % 2 == 1
        digits = part.lstrip("0")
        key.append((len(digits), digits) if is_number else (0, part))
    return key


def list_folders(folder: Path, notices: Notices) -> Listing:
    """List the files in class folders. Raises UserError if there is no class folder."""
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    for path in sorted(path for path in inside if not path.is_dir()):
        notices.add(_BESIDE, path.name)
    names = natural(path.name for path in inside if path.is_dir())
    if not names:
        raise UserError(
            f"{folder}: expected a folder for each class, or idx files; got neither; see --help for the forms"
        )
    listed = []
    for name in names:
        label = printable(name)
        listed += [(path, label) for path in _below(folder / name, folder, notices)]
    return Listing(listed, [printable(name) for name in names])


def _below(folder: Path, root: Path, notices: Notices) -> list[Path]:
    paths = []
    for here, inner, names in text_files.walk_visible(folder):
        for path in (here / name for name in inner):
            if path.is_symlink():
                notices.add(_LINKS, str(path.relative_to(root)))
        paths += [str(here / name) for name in names]
    return [Path(path) for path in natural(paths)]


def list_csv(path: Path, notices: Notices) -> Listing:
    """List the files and labels of a CSV, paths relative to it or absolute. Raises UserError."""
    listed, columns = [], None
    for number, row in read_rows(path, ",", quoted=True):
        if (number == 1 and (columns := _columns(row)) is not None) or not any(map(str.strip, row)):
            continue
        file, label = _cells(path, number, row, columns, first=not listed)
        if file and label:
            listed.append((path.parent / slashed(path.parent, file), printable(label)))
        else:
            notices.add(_UNLABELLED, f"line {number}")
    return Listing(listed, natural({label for _, label in listed}))


def _columns(row: Sequence[str]) -> tuple[int, int] | None:
    """Return the columns of path and label that a header names, or None."""
    titles = [cell.strip() for cell in row]
    paths = [number for number, title in enumerate(titles) if _PATH.fullmatch(title)]
    labels = [number for number, title in enumerate(titles) if _LABEL.fullmatch(title)]
    return (paths[0], labels[0]) if paths and labels else None


def slashed(folder: Path, name: str) -> str:
    """Return a name in a folder with slashes, if it has Windows' backslashes and is no file as it stands."""
    return name.replace("\\", "/") if "\\" in name and not os.path.lexists(folder / name) else name


def _cells(
    where: Path, number: int, row: Sequence[str], columns: tuple[int, int] | None, *, first: bool
) -> tuple[str, str]:
    """Return path and label of a line. Raises UserError if they are missing or ambiguous."""
    used = columns or (0, 1)
    # A first line without known titles, of more than two columns or not with a path first, is a header, or the file is
    # of another kind.
    name = slashed(where.parent, row[0].strip())
    is_path = name.lower().endswith(SUFFIXES) or os.path.lexists(where.parent / name)
    unclear = columns is None and first and (len(row) > 2 or not is_path)
    if len(row) <= max(used) or unclear:
        raise UserError(
            f"{where}:{number}: expected a path and a label with a comma between, or a first line that names "
            f"such columns (path,label); got {len(row)} columns: {','.join(row)[:60]!r}; fix the line, or title the "
            "columns path, file_name or image_path, and label or class"
        )
    return row[used[0]].strip(), row[used[1]].strip()
