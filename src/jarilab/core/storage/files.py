"""Atomic writes, and checked reads of files that jarilab wrote."""

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
from typing import TYPE_CHECKING, Any

from jarilab._version import __version__
from jarilab.core.errors import UserError, shortened

if TYPE_CHECKING:
    from torch import Tensor

MAX_JSON_BYTES = 16 * 2**20
MAX_FILE_BYTES = 2**42
"""Upper bound for weights; it stops reads of endless files."""
MAX_FOLDER_DEPTH = 200
SEAL = "sha256"
"""The field with the digest of all other fields of a record."""


_FLAGS = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
_PLAIN = sum(getattr(os, name, 0) for name in _FLAGS)
"""Flags for opening files, where the system has them. Windows has only the last and follows links."""


@contextlib.contextmanager
def open_checked(path: Path, largest: int = MAX_FILE_BYTES) -> Iterator[io.BufferedReader]:
    """Open a regular file of at most `largest` bytes for reading.

    Raises UserError, naming the file, if it is missing, a link, another kind of file, or larger.
    """
    # Checked after opening, since the path may name another file by then. O_NONBLOCK does not wait for a FIFO.
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
    """The contents of a file, opened with `open_checked`."""
    with open_checked(path, largest) as file:
        try:
            contents = file.read(largest + 1)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(contents) > largest:  # the file has grown
        raise UserError(f"{path} is larger than {largest >> 20} MB, which no file of jari is")
    return contents


def read_json(path: Path) -> Any:
    """Read a JSON file of at most MAX_JSON_BYTES. Raises UserError, naming the file, also for NaN and infinity."""
    contents = read_bytes(path)
    try:
        return json.loads(contents, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, whatever its formatting. Raises ValueError for NaN and infinity."""
    return sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode())


def seal_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with its digest, which detects any change."""
    return {**record, SEAL: digest(record)}


def unseal_record(path: Path, record: Any) -> Any:
    """The record without its digest. Raises UserError, naming the file, if the digest is missing or wrong."""
    fields = record if isinstance(record, dict) else {}
    inner = {name: value for name, value in fields.items() if name != SEAL}
    if not matches_digest(fields.get(SEAL), inner):
        raise UserError(f"{path} is damaged: it does not match its checksum; put back a copy")
    return inner


def check_format(path: Path, expected: str, record: Any) -> None:
    """Raises UserError for a record in the format of another version of jarilab."""
    got = record.get("format") if isinstance(record, dict) else None
    if got != expected:
        raise UserError(
            f"{path}: expected format {expected!r} of jarilab {__version__}, got {shortened(repr(got))}, "
            "which another version wrote and this one does not read; train again into another folder"
        )


def matches_digest(expected: Any, value: Any) -> bool:
    """Whether a value, which may be anything, has this digest."""
    try:
        return digest(value) == expected
    except (ValueError, RecursionError):  # 1e999 is read as infinity
        return False


def checked_folder(name: str | Path) -> Path:
    """The path of an output folder. Raises UserError for names that are not UTF-8 and for too many nested folders."""
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
    """Write JSON atomically. Raises ValueError for NaN and infinity, UserError if the file cannot be written."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str | Iterable[str]) -> None:
    """Write text, or an iterable of texts, atomically. Raises UserError if the file cannot be written."""
    pieces = [text] if isinstance(text, str) else text
    _write(path, (piece.encode() for piece in pieces))


def write_bytes(path: Path, contents: bytes) -> None:
    """Write bytes atomically: readers see the old file or the new one. Raises UserError as `write_text`."""
    _write(path, [contents])


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    if path.exists() and not path.is_file():  # never replace a device or a folder
        raise UserError(
            f"{path} is there already and no file that could be replaced; choose another name"
        )
    try:
        with atomic_write(path) as partial, partial.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            # Without this, a power cut after the rename can leave an empty file.
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
    """Context: a temporary path that replaces `path` at the end, and is removed after an error."""
    # Several processes may write the same file, each its own partial one.
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
    """Write safetensors with the permissions of the umask. Not atomic: pass a path of `atomic_write`."""
    from safetensors.torch import save_file  # loads torch, which lists do not need

    # The library restricts permissions to the owner.
    path.touch()
    mode = path.stat().st_mode
    # It also refuses tensors that share memory, such as tied weights. They are written once for each name.
    storages: set[int] = set()
    separate: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        separate[name] = (tensor.clone() if storage in storages else tensor).contiguous()
        storages.add(storage)
    save_file(separate, path, metadata)
    path.chmod(stat.S_IMODE(mode))


def sha256(contents: bytes | Path, largest: int = MAX_FILE_BYTES) -> str:
    """Hexadecimal SHA-256 of bytes or of a file. Raises UserError for a file that is not regular or too large."""
    if isinstance(contents, bytes):
        return hashlib.sha256(contents).hexdigest()
    with open_checked(contents, largest) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    with contextlib.suppress(PermissionError):  # some systems cannot open folders
        # Windows can flush only files opened for writing.
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
