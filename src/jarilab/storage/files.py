"""Files that appear whole or not at all, and the reading of our own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from jarilab.errors import UserError

LARGEST_JSON = 16 * 2**20
MOST_FOLDERS = 200
"""In each other."""


def read_json(path: Path) -> Any:
    """The JSON in a file of ours. Raises UserError that names the file."""
    try:
        if not path.is_file():
            raise UserError(f"{path} is missing or no plain file")
        if path.stat().st_size > LARGEST_JSON:
            raise UserError(
                f"{path} is larger than {LARGEST_JSON >> 20} MB, which no file of jari is"
            )
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read: {error}") from None


def checked_folder(name: str | Path) -> Path:
    """The folder to write into. Raises UserError for a name that no record could hold, or so many folders in each other
    that nobody means."""
    path = Path(name)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"expected the name of a folder in UTF-8, which its records hold; got {str(path)!r}; choose another --out"
        ) from None
    if len(path.parts) > MOST_FOLDERS:
        raise UserError(
            f"expected at most {MOST_FOLDERS} folders in each other, got {len(path.parts):,}; choose a shorter --out"
        )
    return path


def write_json(path: Path, value: Any) -> None:
    """Replace a file by this JSON, in one step. NaN and infinity are refused. Raises UserError on a full disk."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str | Iterable[str]) -> None:
    """Replace a file by this text, or by pieces of it one after another, as `write_bytes` does."""
    pieces = [text] if isinstance(text, str) else text
    _write(path, (piece.encode() for piece in pieces))


def write_bytes(path: Path, held: bytes) -> None:
    """Replace a file in one step: readers see the old or the new one. Raises UserError on a full disk."""
    _write(path, [held])


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    if path.exists() and not path.is_file():  # a device or a folder would be gone
        raise UserError(
            f"{path} is there already and no file that could be replaced; choose another name"
        )
    try:
        with replacing(path) as partial, partial.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
    except UnicodeEncodeError as error:
        name = error.object[max(0, error.start - 20) : error.end]
        raise UserError(
            f"{path} cannot be written: expected names in UTF-8, got one that ends in {name!r}; rename that file"
        ) from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what takes the place of `path` when the block ends: the old file or the new one, never a part.
    After an error nothing of it is left."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_weights(
    tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """As safetensors, to be read by whom the umask lets: the library lets their owner alone."""
    path.touch()
    mode = path.stat().st_mode
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)
    path.chmod(stat.S_IMODE(mode))


def sha256(held: bytes | Path) -> str:
    """Of these bytes, or of the contents of a file, in hexadecimal digits."""
    if isinstance(held, bytes):
        return hashlib.sha256(held).hexdigest()
    with held.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def synchronise(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    with contextlib.suppress(PermissionError):  # some systems do not open folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
