"""Help and lists, whose output depends on the installed code alone, printed from the cache."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from jarilab.cli import commands
from jarilab.core.storage.listings import listings

LISTS = ("encodings", "tasks")
HELP = ("-h", "--help")


def run_static(words: Sequence[str], run: Callable[[Sequence[str]], int]) -> int:
    """Run a command, or print what it printed before if it depends on nothing else. Returns the exit code."""
    name = _entry_of(words)
    if name is None:
        return run(words)
    with listings() as entries:
        if name not in entries:
            written, code = io.StringIO(), 0
            try:
                with contextlib.redirect_stdout(written):
                    code = run(words)
            except SystemExit as end:  # argparse, after the help
                code = int(end.code or 0)
            if code:
                return code
            entries[name] = written.getvalue()
        print(entries[name], end="", flush=True)
    return 0


def _entry_of(words: Sequence[str]) -> str | None:
    """The name of the entry; None for commands that do more than print what the package has."""
    verb, *rest = words or ("",)
    is_help = bool(rest) and rest[-1] in HELP
    named = rest[:-1] if is_help else [word for word in rest if word != "--json"]
    # Names of tasks and encodings; a file or a run may change.
    is_plain = all(word.isidentifier() and not Path(word).exists() for word in named)
    if verb not in commands.names() or not is_plain or not (is_help or verb in LISTS):
        return None
    return json.dumps([*words, shutil.get_terminal_size().columns])
