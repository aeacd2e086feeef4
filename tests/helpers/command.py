"""The command line without a process of its own, which takes seconds to start."""

import contextlib
import io
import sys
import tempfile
from typing import NamedTuple

import pytest

from jarilab.cli import main


class Said(NamedTuple):
    """The exit code of a command, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def command(*words: object, text: bytes = b"") -> Said:
    """`jarilab WORDS`, here. text: its standard input."""
    out, err = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with streams[0], streams[1], pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as typed:
        typed.write(text)
        typed.seek(0)
        patch.setattr(sys, "stdin", io.TextIOWrapper(typed))
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:  # of --help
            code = int(ended.code or 0)
    return Said(code, out.getvalue(), err.getvalue())
