"""What a run keeps of its data, so that it answers where these are not: vocabularies, classes, judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.storage.files import sha256

LARGEST = 2**30


def check_artifacts(record: dict[str, Any], folder: Path) -> None:
    """Raises UserError where a vocabulary or another file that the run keeps is not the one it was trained with."""
    for name in record["kept"]:
        check_artifact(record, folder, name)


def check_artifact(record: dict[str, Any], folder: Path, name: str) -> None:
    """The same of one of them."""
    path = folder / Path(name).name
    try:
        found = sha256(path, LARGEST)
    except UserError as error:
        raise UserError(f"{error}; the run cannot answer without it") from None
    if found != record["kept"][name]:
        raise UserError(f"{path} is not the one this run was trained with; put it back")
