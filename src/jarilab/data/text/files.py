"""Reading a person's text files: strict, in bounded memory, with errors that name the file, the line and the byte."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import dropwhile, zip_longest
from pathlib import Path

from jarilab.core.errors import UserError

LONGEST_LINE = 1 << 20
"""Bytes: a line beyond this is refused, since it would have to be held whole."""

PIECE = 1 << 16
"""Bytes read at a time from a document, and so about the length of the pieces it is given in."""

DOCUMENTS = (".txt", ".txt.gz")
"""How the names of the documents in a folder end."""

_COUNTED = 1 << 27
_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"
# What the regular expressions of tokenizers call white space (Unicode's White_Space), which is not what str.strip does.
_WHITE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680"
    + "".join(map(chr, range(0x2000, 0x200B)))
    + "\u2028\u2029\u202f\u205f\u3000"
)
_BEFORE_WHITE = re.compile(f"(?s).*[^{_WHITE}](?=[{_WHITE}])")

Stream = BufferedReader | gzip.GzipFile


@dataclass
class Reading:
    """What was met on the way: usable pairs, pairs blank on a side, pairs omitted for their length."""

    pairs: int = 0
    blank: int = 0
    too_long: int = 0


def lines(path: Path, *, longest_line: int = LONGEST_LINE) -> Iterator[str]:
    r"""The lines of a file of UTF-8, plain or gzip, without their ends.

    A line ends at "\n" or "\r\n" and nowhere else: U+2028, U+0085 and a lone "\r" are characters. A byte order mark at
    the start is dropped. Raises UserError for what is no UTF-8, for NUL, for a line of more than `longest_line` bytes
    and for damaged gzip.
    """
    with opened(path) as stream:
        skipped = _mark(path, stream)
        number = 0
        while raw := stream.readline(longest_line + 2):
            number += 1
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
            yield text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def pairs(
    paths: Sequence[Path], reading: Reading, *, longest_line: int = LONGEST_LINE
) -> Iterator[tuple[str, str]]:
    """Pairs of texts: from two files line by line, or from the first two columns of one file of tab-separated values.

    Pairs that are blank on a side are skipped. `reading` counts while the pairs are drawn. Raises UserError where the
    files differ in length, a line has one column only, or nothing usable is found.
    """
    if len(paths) not in (1, 2):
        raise UserError(
            f"expected two files, or one of tab-separated values; got {len(paths)}; name one or two files"
        )
    usable = False
    first, *others = paths
    both = _parallel(first, others[0], longest_line) if others else _columns(first, longest_line)
    for one, other in both:
        if one.strip() and other.strip():
            reading.pairs += 1
            usable = True
            yield one, other
        else:
            reading.blank += 1
    if not usable:
        raise no_usable(paths)


def documents(path: Path) -> Iterator[Iterator[str]]:
    r"""The documents of a file or folder, each as its pieces, which put together are its text.

    A file is one document whatever its name. In a folder and its folders every file named *.txt or *.txt.gz is one, by
    path; hidden ones are skipped. Pieces end where a tokenizer would split anyway, if there is such a place within 64
    KiB. Newlines are kept, "\r\n" read as "\n", a byte order mark dropped. Pieces of nothing but white space at the
    start are omitted, so that a blank document has none.
    """
    for file in document_files(path):
        yield dropwhile(lambda piece: not piece.strip(), _pieces(file))


def document_files(path: Path) -> list[Path]:
    """The files that `documents` reads, in its order. Raises UserError where there is none."""
    if not path.is_dir():
        return [path]
    found = []
    for folder, inner, names in os.walk(path, onerror=unreadable):
        inner[:] = [name for name in inner if not name.startswith(".")]
        shown = [name for name in names if not name.startswith(".")]
        found += [Path(folder, name) for name in shown if name.lower().endswith(DOCUMENTS)]
    if not found:
        raise UserError(
            f"{path}: expected files named *.txt or *.txt.gz in this folder; got none; rename or add some"
        )
    return sorted(found)


def content_hash(paths: Sequence[Path]) -> str:
    """The sha256 of the contents of files in this order, whatever they are called."""
    whole = hashlib.sha256()
    for path in paths:
        with raw(path) as stream:
            whole.update(hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()


def no_usable(paths: Sequence[Path]) -> UserError:
    """The error for files without any text."""
    verb = "holds" if len(paths) == 1 else "hold"
    named = " and ".join(str(path) for path in paths)
    return UserError(
        f"{named} {verb} no usable lines; expected text; fill the file or name another"
    )


def _columns(path: Path, longest_line: int) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines(path, longest_line=longest_line), 1):
        columns = line.split("\t", 2)
        if len(columns) < 2 and line.strip():
            raise UserError(
                f"{path}:{number}: expected two columns with a tab between; got one: {line[:60]!r}; "
                "mend the line, or give two files, one for each side"
            )
        yield (columns[0], columns[1]) if len(columns) > 1 else ("", "")


def _parallel(source: Path, target: Path, longest_line: int) -> Iterator[tuple[str, str]]:
    left, right = lines(source, longest_line=longest_line), lines(target, longest_line=longest_line)
    for number, (one, other) in enumerate(zip_longest(left, right), 1):
        if one is None or other is None:
            rest = right if one is None else left
            shorter, longer = number - 1, number + sum(1 for _ in rest)
            counts = (shorter, longer) if one is None else (longer, shorter)
            raise UserError(
                f"expected as many lines in both files; got {counts[0]} in {source} and {counts[1]} in {target}; "
                f"line {number} is first without a partner; mend the files so that they belong together line by line"
            )
        yield one, other


def _pieces(path: Path) -> Iterator[str]:
    with opened(path) as stream:
        skipped = _mark(path, stream)
        line, column, pending, text = 1, skipped, b"", ""
        while True:
            block = stream.read(PIECE)
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
            # A "\r" at the end may be half of an "\r\n": it waits for what follows.
            used -= bool(block) and data[:used].endswith(b"\r")
            whole, pending = data[:used], data[used:]
            line += whole.count(b"\n")
            column = len(whole) - whole.rfind(b"\n") - 1 + (0 if b"\n" in whole else column)
            text += whole.decode().replace("\r\n", "\n")
            cut = _cut(text) if block else len(text)
            if cut:
                yield text[:cut]
            text = text[cut:]
            if not block:
                return


def _cut(text: str) -> int:
    """Where to end a piece: before the last run of white space. Without any, all of a longer text goes."""
    if found := _BEFORE_WHITE.match(text):
        return found.end()
    return len(text) if len(text) >= PIECE // 4 else 0


@contextmanager
def raw(path: Path) -> Iterator[BufferedReader]:
    """A regular file, open for reading. Raises UserError for whatever goes wrong with it."""
    try:
        os.fsencode(path)
        if "\0" in str(path):
            raise ValueError("a NUL")
    except ValueError:
        raise UserError(
            f"{str(path)!r}: expected the name of a file; no file can be called so; check the path"
        ) from None
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a folder" if path.is_dir() else "no regular file"
            raise UserError(f"{path}: expected a file; got {kind}; name a file")
        with path.open("rb") as stream:
            yield stream
    except FileNotFoundError:
        raise UserError(
            f"{path}: expected a file; there is none of this name; check the path"
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path}: expected whole gzip; got a damaged or cut one ({error}); fetch or compress it again"
        ) from None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its rights"
        ) from None


@contextmanager
def opened(path: Path) -> Iterator[Stream]:
    """The bytes of a file, unpacked if it begins as gzip does."""
    with raw(path) as stream:
        packed = stream.read(2) == _GZIP
        stream.seek(0)
        if not packed:
            yield stream
            return
        with gzip.GzipFile(fileobj=stream) as unpacked:
            yield unpacked


def _mark(path: Path, stream: Stream) -> int:
    """Steps over the byte order mark of UTF-8 and gives its length. Raises UserError for that of UTF-16."""
    start = stream.read(3)
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise UserError(
            f"{path}: expected UTF-8; this file begins as UTF-16 does; save it as UTF-8, or: "
            f"iconv -f UTF-16 -t UTF-8 {path.name} > {path.stem}.utf8{path.suffix}"
        )
    skipped = 3 if start == codecs.BOM_UTF8 else 0
    stream.seek(skipped)
    return skipped


def _long(
    path: Path, number: int, size: int, last: bytes, stream: Stream, longest: int
) -> UserError:
    size -= last.endswith(b"\n")
    while b"\n" not in last and size <= _COUNTED and (last := stream.read(_BLOCK)):
        size += len(last.partition(b"\n")[0])
    counted = f"{size:,} bytes" if size <= _COUNTED else f"more than {_COUNTED:,} bytes"
    return UserError(
        f"{path}:{number}: expected lines of at most {longest:,} bytes; got one of {counted}; break it up"
    )


def unreadable(error: OSError) -> None:
    """What `os.walk` is to do with a folder that it cannot list. Raises UserError."""
    raise UserError(
        f"{error.filename}: cannot be read ({error.strerror}); check the path and its rights"
    )


def _nul(path: Path, number: int) -> UserError:
    return UserError(
        f"{path}:{number}: expected text; got a NUL, as binary files and UTF-16 hold; save it as UTF-8"
    )


def _not_utf8(path: Path, number: int, offset: int, byte: int) -> UserError:
    return UserError(
        f"{path}:{number}: expected UTF-8; byte offset {offset} of the line holds 0x{byte:02x}, which is none; "
        "save the file as UTF-8"
    )
