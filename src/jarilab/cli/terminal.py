"""Terminal input and output: results go to standard output, everything else to standard error."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from jarilab.core.columns import left, terminal_width
from jarilab.core.errors import UserError, printable

MAX_LINE_BYTES = 1 << 20
"""The longest line on standard input."""


class SafeStream(io.TextIOBase):
    """Standard output or error, in which control characters of untrusted text are escaped.

    stream: the original stream, or None if the caller closed it.
    is_stderr: drop text once the reader is gone, as in `2>&1 | head -1`. draws: let progress bars draw on a terminal.
    """

    def __init__(self, stream: Any, *, is_stderr: bool = False, draws: bool = False):
        self._stream, self._is_stderr, self._draws = stream, is_stderr, draws

    @property
    def drawing(self) -> SafeStream:
        """The same for progress bars, which move the cursor and colour. Names in them must be `printable`."""
        return SafeStream(self._stream, is_stderr=self._is_stderr, draws=True)

    def write(self, text: str) -> int:
        controls = _CONTROLS_BUT_DRAWING if self._draws and self.isatty() else _CONTROLS
        with self._if_open():
            if self._stream is not None:
                self._stream.write(controls.sub(_escaped, text))
        return len(text)

    def flush(self) -> None:
        with self._if_open():
            if self._stream is not None:
                self._stream.flush()

    def _if_open(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.suppress(*[OSError] * self._is_stderr)

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("the stream is closed")
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the terminal, by which progress bars choose their characters."""
        return "utf-8" if self._stream is None else self._stream.encoding


# Tabs, line ends and form feeds stand in ordinary texts. Directional overrides make a line read as another one.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")
# What `rich` and counters write to move the cursor and to colour.
_CONTROLS_BUT_DRAWING = re.compile(rf"(?!\x1b\[[0-9;?]*[A-Za-z]|\r)(?:{_CONTROLS.pattern})")


def _escaped(found: re.Match[str]) -> str:
    """The character as JSON writes it, so that JSON stays JSON."""
    return f"\\u{ord(found[0]):04x}"


# Processes of torchrun, found without importing torch ----------------------------------------------------------------


def is_distributed() -> bool:
    """Whether torchrun started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def is_local_first() -> bool:
    """Whether this process prints messages for its machine."""
    return not is_distributed() or os.environ.get("LOCAL_RANK", "0") == "0"


def is_first() -> bool:
    """Whether this process prints the result for all."""
    return not is_distributed() or os.environ.get("RANK", "0") == "0"


# Output --------------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print to standard error. Control characters, which a name may contain, are escaped."""
    lines = "\n".join(map(printable, text.split("\n")))
    print(f"jarilab: {lines}", file=sys.stderr)


def show(options: argparse.Namespace, value: Any, text: str) -> None:
    """Print a result: `value` as JSON with `--json`, `text` without."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False) if options.json else text)


def open_or_point_to(options: argparse.Namespace, page: Path) -> None:
    """Open a written page with `--open`; without it, print how to open it."""
    if options.open:
        open_in_browser(page.resolve().as_uri())
    else:
        say(f"open {page} in any browser, or pass --open; it needs no network")


def open_in_browser(address: str) -> None:
    """Open an address, or say that this computer has no browser."""
    if not webbrowser.open(address):
        say(f"--open: expected a browser on this computer, found none; open {address} yourself")


def check_file(file: Path) -> None:
    """Raises UserError if a page cannot be written to this file."""
    if not file.parent.is_dir():
        raise UserError(f"{file}: its folder does not exist; make it first")
    if file.is_dir():
        raise UserError(f"{file} is a folder; expected the name of a file, such as page.html")
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is not a regular file; write such as page.html")


def table(rows: list[list[str]]) -> str:
    """Rows of cells in aligned columns. The last column may have any length."""
    widths = [max(map(terminal_width, column)) for column in zip(*rows, strict=True)]
    widths[-1:] = [0]
    return "\n".join(_aligned(row, widths) for row in rows)


def _aligned(row: list[str], widths: list[int]) -> str:
    cells = [left(cell, width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join(cells).rstrip()


# Input ---------------------------------------------------------------------------------------------------------------


def lines(stream: IO[bytes]) -> Iterator[str | UserError]:
    """The lines of a stream as text. A line that is too long or not UTF-8 becomes a UserError."""
    encoding = "utf-8-sig"  # the first line may begin with a byte order mark
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            yield _skip_long_line(line, stream)
            continue
        try:
            yield line.decode(encoding).removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            yield UserError(f"byte {error.start + 1} is not UTF-8; save the file as UTF-8")
        encoding = "utf-8"


def _skip_long_line(line: bytes, stream: IO[bytes]) -> UserError:
    """Read and drop the rest of a line; returns the error for it."""
    length = len(line)
    while not line.endswith(b"\n") and (line := stream.readline(MAX_LINE_BYTES)):
        length += len(line)
    return UserError(f"expected a line of {MAX_LINE_BYTES:,} bytes at most, got {length:,}")
