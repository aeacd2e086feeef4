"""Checks of PNG files to write."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from jarilab.core.errors import UserError


def check_png(out: str | Path, read: Iterable[Path] = ()) -> None:
    """Raises UserError for a file name that is not a PNG's, and for an input file."""
    if Path(out).suffix.lower() != ".png":
        raise UserError(
            f"{out}: expected a name that ends in .png, since PNG is what is written; choose such a name"
        )
    if Path(out).is_file() and any(path.is_file() and path.samefile(out) for path in read):
        raise UserError(
            f"{out}: expected another file than the image itself, which would be gone; choose another name"
        )
