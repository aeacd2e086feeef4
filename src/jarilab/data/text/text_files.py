"""Strict reading of text files in bounded memory. Errors name the file, the line and the byte."""

from __future__ import annotations

import bz2
import codecs
import gzip
import hashlib
import lzma
import os
import re
import shlex
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from itertools import dropwhile
from pathlib import Path

from jarilab.core.errors import MissingFileError, UserError
from jarilab.data.text.vocabulary import WHITE_SPACE

Stream = BufferedReader | gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile

# A line is held in memory as a whole, so its length is bounded.
MAX_LINE_BYTES = 1 << 20
"""Longer lines are refused."""

CHUNK_BYTES = 1 << 16
"""Bytes read at a time from a document, and about the length of its pieces."""

PACKED = (".gz", ".xz", ".bz2")
"""File names of compressed files end with one of these. Their contents decide, not their names."""

DOCUMENT_SUFFIXES = (".txt", *(f".txt{ending}" for ending in PACKED))
"""File names of documents in a folder end with one of these."""

_MAX_COUNTED_BYTES = 1 << 27
_BLOCK = 1 << 20
_OPENERS: dict[bytes, Callable[[BufferedReader], Stream]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_ARCHIVES = {
    b"PK\x03\x04": ("a zip archive", "save a spreadsheet as CSV, or unpack the archive: unzip {}"),
    b"\x28\xb5\x2f\xfd": ("a zstd archive", "unpack it: zstd -d {}"),
    b"PAR1": (
        "a Parquet file",
        "convert it, such as: duckdb -c \"COPY (FROM {}) TO 'out.tsv' (DELIMITER '\\t')\"",
    ),
}
_BEFORE_WHITE = re.compile(f"(?s).*[^{WHITE_SPACE}](?=[{WHITE_SPACE}])")


def lines(path: Path, *, longest_line: int = MAX_LINE_BYTES) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 file, plain or compressed, without their line ends.

    A line ends at "\n" or "\r\n" only: U+2028, U+0085 and a lone "\r" are characters. A byte order mark at the start of
    a line is dropped. Raises UserError for bytes that are not UTF-8, for NUL, for a line longer than `longest_line`
    bytes, for a file whose lines end with "\r" alone, and for damaged compression.
    """
    with open_text(path) as stream:
        skipped = _mark(path, stream)
        number = 0
        while raw := stream.readline(longest_line + 2):
            number += 1
            if number == 1 and b"\n" not in raw and b"\r" in raw[:-1]:
                raise _carriage_returns(path, raw.count(b"\r"))
            size = len(raw.removesuffix(b"\n").removesuffix(b"\r"))
            if size > longest_line:
                raise _long(path, number, len(raw), raw, stream, longest_line)
            if b"\0" in raw:
                raise _nul(path, number)
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                at = error.start + (skipped if number == 1 else 0)
                raise _not_utf8(path, number, at, raw[error.start]) from None
            # Files that were joined have a mark each.
            text = text.removeprefix("\ufeff")
            yield text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def documents(path: Path) -> Iterator[Iterator[str]]:
    r"""Yield the documents of a file or folder, each as an iterator over pieces of its text.

    A file is one document. In a folder and its subfolders, every file named *.txt or *.txt.gz is a document, sorted by
    path. Hidden files are skipped. A piece ends where a tokenizer splits anyway, if there is such a position within 64
    KiB. Newlines are kept, "\r\n" becomes "\n", and a byte order mark is dropped. Leading pieces of white space are
    omitted, so a blank document has no pieces.
    """
    for file in document_files(path):
        yield dropwhile(lambda piece: not piece.strip(), _pieces(file))


def document_files(path: Path) -> list[Path]:
    """Return the files that `documents` reads, in order. Raises UserError if there is none."""
    if not path.is_dir():
        return [path]
    paths = []
    for folder, _, names in walk_visible(path):
        paths += [folder / name for name in names if name.lower().endswith(DOCUMENT_SUFFIXES)]
    if not paths:
        raise UserError(
            f"{path}: expected files named *.txt or *.txt.gz in this folder; got none; rename or add some"
        )
    return sorted(paths)


def walk_visible(folder: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder below this one with the names of its folders and files, as `os.walk`, without hidden ones.

    Raises UserError for a folder that cannot be listed.
    """
    for parent, subfolders, names in os.walk(folder, onerror=_unreadable):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield Path(parent), subfolders, [name for name in names if not name.startswith(".")]


def content_hash(paths: Sequence[Path]) -> str:
    """Return the sha256 of the files' contents in this order. Names do not count."""
    digest = hashlib.sha256()
    for path in paths:
        with open_binary(path) as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def no_usable(paths: Sequence[Path]) -> UserError:
    """Return the error for files without text."""
    verb = "holds" if len(paths) == 1 else "hold"
    named = " and ".join(str(path) for path in paths)
    return UserError(
        f"{named} {verb} no usable lines; expected text; fill the file or name another"
    )


def _pieces(path: Path) -> Iterator[str]:
    with open_text(path) as stream:
        skipped = _mark(path, stream)
        line, column, pending, text = 1, skipped, b"", ""
        while True:
            block = stream.read(CHUNK_BYTES)
            data = pending + block
            if (nul := data.find(b"\0")) >= 0:
                raise _nul(path, line + data.count(b"\n", 0, nul))
            try:
                _, used = codecs.utf_8_decode(data, "strict", not block)
            except UnicodeDecodeError as error:
                at = error.start - (data.rfind(b"\n", 0, error.start) + 1)
                at += 0 if b"\n" in data[: error.start] else column
                raise _not_utf8(
                    path, line + data.count(b"\n", 0, error.start), at, data[error.start]
                ) from None
            # A "\r" at the end may be half of "\r\n", so it waits for the next block.
            used -= bool(block) and data[:used].endswith(b"\r")
            complete, pending = data[:used], data[used:]
            line += complete.count(b"\n")
            column = len(complete.rpartition(b"\n")[2]) + (0 if b"\n" in complete else column)
            text += complete.decode().replace("\r\n", "\n")
            cut = _cut(text) if block else len(text)
            if cut:
                yield text[:cut]
            text = text[cut:]
            if not block:
                return


def _cut(text: str) -> int:
    """Return the end of a piece: before the last white space, or the whole of a long text without any."""
    if match := _BEFORE_WHITE.match(text):
        return match.end()
    return len(text) if len(text) >= CHUNK_BYTES // 4 else 0


@contextmanager
def open_binary(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading. Raises UserError if that fails."""
    try:
        os.fsencode(path)
        if "\0" in str(path):
            raise ValueError("a NUL")
    except ValueError:
        raise UserError(
            f"{str(path)!r}: expected the name of a file; got one that no file can have; check the path"
        ) from None
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a folder" if path.is_dir() else "no regular file"
            raise UserError(f"{path}: expected a file; got {kind}; name a file")
        with path.open("rb") as stream:
            yield stream
    except FileNotFoundError:
        raise MissingFileError(
            f"{path}: expected a file; got a path that does not exist; check the path"
        ) from None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions"
        ) from None


@contextmanager
def open_text(path: Path) -> Iterator[Stream]:
    """Open a file for reading; gzip, bzip2 and xz are unpacked. Raises UserError for other archives."""
    with open_binary(path) as stream:
        start = stream.read(6)
        stream.seek(0)
        for magic, (kind, remedy) in _ARCHIVES.items():
            if start.startswith(magic):
                raise UserError(
                    f"{path}: expected text, or text in gzip, bzip2 or xz; got {kind}; "
                    f"{remedy.format(shlex.quote(path.name))}"
                )
        opener = next((_OPENERS[magic] for magic in _OPENERS if start.startswith(magic)), None)
        if opener is None:
            yield stream
            return
        try:
            with opener(stream) as unpacked:
                yield unpacked
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise _damaged(path, error) from None
        except OSError as error:
            if error.errno is not None:  # bzip2 raises it without a number for damaged data
                raise
            raise _damaged(path, error) from None


def _carriage_returns(path: Path, count: int) -> UserError:
    return UserError(
        f"{path}: expected lines that end with a line feed; got one line with {count:,} lone carriage returns, as old "
        f"Mac files have; convert it: tr '\\r' '\\n' < {shlex.quote(path.name)} > lines.txt"
    )


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: expected complete gzip, bzip2 or xz; got a damaged or truncated file ({error}); fetch or compress it "
        "again"
    )


def _mark(path: Path, stream: Stream) -> int:
    """Skip the byte order mark of UTF-8 and return its length. Raises UserError for UTF-16."""
    start = stream.read(3)
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise UserError(
            f"{path}: expected UTF-8; got the byte order mark of UTF-16; save it as UTF-8, or: "
            f"iconv -f UTF-16 -t UTF-8 {path.name} > {path.stem}.utf8{path.suffix}"
        )
    skipped = 3 if start == codecs.BOM_UTF8 else 0
    stream.seek(skipped)
    return skipped


def _long(
    path: Path, number: int, size: int, last: bytes, stream: Stream, longest: int
) -> UserError:
    size -= last.endswith(b"\n")
    while b"\n" not in last and size <= _MAX_COUNTED_BYTES and (last := stream.read(_BLOCK)):
        size += len(last.partition(b"\n")[0])
    counted = f"{size:,} bytes"
    if size > _MAX_COUNTED_BYTES:
        counted = f"more than {_MAX_COUNTED_BYTES:,} bytes"
    return UserError(
        f"{path}:{number}: expected lines of at most {longest:,} bytes; got one of {counted}; break it up"
    )


def _unreadable(error: OSError) -> None:
    raise UserError(
        f"{error.filename}: expected a folder, got one that cannot be read ({error.strerror}); check its permissions"
    )


def _nul(path: Path, number: int) -> UserError:
    return UserError(
        f"{path}:{number}: expected text; got a NUL byte, as in binary files and UTF-16; save it as UTF-8"
    )


def _not_utf8(path: Path, number: int, offset: int, byte: int) -> UserError:
    return UserError(
        f"{path}:{number}: expected UTF-8; got 0x{byte:02x} at byte offset {offset} of the line; "
        "save the file as UTF-8"
    )
