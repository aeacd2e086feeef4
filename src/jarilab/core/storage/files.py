"""Files that appear whole or not at all, and the reading of our own."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from jarilab._version import __version__
from jarilab.core.errors import UserError

MAX_JSON_BYTES = 16 * 2**20
MAX_FILE_BYTES = 2**42
"""Of weights: what no disk of today holds in one file, and no endless file ends before."""
MAX_FOLDER_DEPTH = 200
"""In each other."""
SEAL = "sha256"
"""The field of a sealed record that holds the digest of all others."""


_FLAGS = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
_PLAIN = sum(getattr(os, name, 0) for name in _FLAGS)
"""How files are opened, as far as this system has it: Windows has the last alone, and follows links."""


@contextlib.contextmanager
def open_checked(path: Path, largest: int = MAX_FILE_BYTES) -> Iterator[io.BufferedReader]:
    """A file of ours, to be read: a plain one of so many bytes at most. Nothing is waited for, as a FIFO would be, and
    no link is followed. Raises UserError that names the file."""
    # Links, devices and FIFOs are told apart after opening: what stands there before may be another file by then.
    flags = os.O_RDONLY | _PLAIN
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            raise UserError(f"{path} is missing or not a plain file") from None
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is missing or not a plain file")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > largest:
            raise UserError(f"{path} is larger than {largest >> 20} MB, which no file of jari is")
        yield file


def read_bytes(path: Path, largest: int = MAX_JSON_BYTES) -> bytes:
    """All of a file of ours, as `open_checked` opens it."""
    with open_checked(path, largest) as file:
        try:
            held = file.read(largest + 1)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(held) > largest:  # it grew meanwhile
        raise UserError(f"{path} is larger than {largest >> 20} MB, which no file of jari is")
    return held


def read_json(path: Path) -> Any:
    """The JSON in a file of ours. Raises UserError that names the file."""
    held = read_bytes(path)
    try:
        return json.loads(held, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def digest(value: Any) -> str:
    """Of a value that JSON can hold, however it is written down. Raises ValueError for one that is no finite number."""
    return sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode())


def seal_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record and the digest of it, by which a changed digit is noticed."""
    return {**record, SEAL: digest(record)}


def unseal_record(path: Path, record: Any) -> Any:
    """The record without its digest. Raises UserError, naming the file, where the digest is missing or another."""
    fields = record if isinstance(record, dict) else {}
    inner = {name: value for name, value in fields.items() if name != SEAL}
    if not matches_digest(fields.get(SEAL), inner):
        raise UserError(f"{path} is damaged: it does not match its checksum; put back a copy")
    return inner


def check_format(path: Path, expected: str, record: Any) -> None:
    """Raises UserError where a record is of another format, as another version of jarilab wrote it."""
    got = record.get("format") if isinstance(record, dict) else None
    if got != expected:
        raise UserError(
            f"{path}: expected format {expected!r} of jarilab {__version__}, got {got!r}, which another version wrote "
            "and this one does not read; train again into another folder"
        )


def matches_digest(held: Any, value: Any) -> bool:
    """Whether this is the digest of a value that was read from a file, which may be anything."""
    try:
        return digest(value) == held
    except (ValueError, RecursionError):  # 1e999 is read as infinity
        return False


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
    if len(path.parts) > MAX_FOLDER_DEPTH:
        raise UserError(
            f"expected at most {MAX_FOLDER_DEPTH} nested folders, got {len(path.parts):,}; choose a shorter --out"
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
        with atomic_write(path) as partial, partial.open("wb") as file:
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
def atomic_write(path: Path) -> Iterator[Path]:
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


def sha256(held: bytes | Path, largest: int = MAX_FILE_BYTES) -> str:
    """Of these bytes, or of the contents of a file, in hexadecimal digits. Raises UserError for a file that is no plain
    one, or larger."""
    if isinstance(held, bytes):
        return hashlib.sha256(held).hexdigest()
    with open_checked(held, largest) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    with contextlib.suppress(PermissionError):  # some systems do not open folders
        # Windows synchronises only what may be written.
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
