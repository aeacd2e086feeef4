"""What is read from the terminal and written to it: results to standard output, all else to standard error."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from jarilab.core.errors import UserError

LONGEST_LINE = 1 << 20
"""Bytes of a line on standard input."""


class Unheard(io.TextIOBase):
    """Standard error, whose reader may go away, as that of `2>&1 | head -1`: what is said then is dropped, and the work
    goes on. stream: None where whoever called has closed it."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            if self._stream is not None:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            if self._stream is not None:
                self._stream.flush()

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("standard error is closed")
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """By which a terminal is known to have the letters that bars are drawn with."""
        return "utf-8" if self._stream is None else self._stream.encoding


def say(text: str) -> None:
    """A line to the person, beside the results."""
    print(f"jarilab: {text}", file=sys.stderr)


def to_json(value: Any) -> str:
    """One JSON object in a line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def show(options: argparse.Namespace, value: Any, text: str) -> None:
    """A result, as JSON where that is asked for."""
    print(to_json(value) if options.json else text)


def tell_page(options: argparse.Namespace, page: Path) -> None:
    """How to look at a page that was written; it is opened where that is asked for."""
    if options.open:
        webbrowser.open(page.resolve().as_uri())
    else:
        say(f"open {page} in any browser, or give --open; it needs no network")


def check_file(file: Path) -> None:
    """Raises UserError for a page that cannot be written, before it is made."""
    if not file.parent.is_dir():
        raise UserError(f"{file}: its folder is not there; make it first")
    if file.is_dir():
        raise UserError(f"{file} is a folder; expected the name of a file, such as page.html")
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is no file that could be replaced; write such as page.html")


def table(rows: list[list[str]]) -> str:
    """Rows of cells under each other; the last column is as long as it likes."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1:] = [0]
    return "\n".join(_aligned(row, widths) for row in rows)


def _aligned(row: list[str], widths: list[int]) -> str:
    cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
    return "  ".join(cells).rstrip()


def lines(stream: IO[bytes]) -> Iterator[str | UserError]:
    """The lines of a stream, each at most LONGEST_LINE bytes of UTF-8; for any other a UserError in its place."""
    encoding = "utf-8-sig"  # a byte order mark may stand before the first line
    while line := stream.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            yield _too_long(line, stream)
            continue
        try:
            yield line.decode(encoding).removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            yield UserError(f"byte {error.start + 1} is no UTF-8; save the file as UTF-8")
        encoding = "utf-8"


def _too_long(line: bytes, stream: IO[bytes]) -> UserError:
    """The error for a line, the rest of which is read and dropped."""
    length = len(line)
    while not line.endswith(b"\n") and (line := stream.readline(LONGEST_LINE)):
        length += len(line)
    return UserError(f"{length:,} bytes are too many for a line; at most {LONGEST_LINE:,}")
