"""The folder that an export writes: all of it, or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jarilab.core.errors import UserError


def check_empty(out: str | Path) -> Path:
    """Raises UserError for a folder that holds anything, and for a file."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is no empty folder; choose another --out")
    return out


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """Where to write what becomes `out` when the block ends. After an error nothing of it is left."""
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
