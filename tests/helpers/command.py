"""The command line without a process of its own, which takes seconds to start."""

import contextlib
import io
from typing import NamedTuple

from jarilab.cli import main


class Said(NamedTuple):
    """The exit code of a command, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def command(*words: object) -> Said:
    """`jarilab WORDS`, here."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:  # of --help
            code = int(ended.code or 0)
    return Said(code, out.getvalue(), err.getvalue())
