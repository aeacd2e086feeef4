"""The command line: a thin cover over `jarilab.api`.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 2 the user's mistake, 1 ours,
130 and 143 on Ctrl-C and SIGTERM. A command is a file of `commands/`; its flags are made of the definitions that Python
goes by.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from jarilab.cli import commands
from jarilab.cli.arguments import parse
from jarilab.cli.ranks import is_one_of_several, speaks
from jarilab.cli.terminal import Unheard, say
from jarilab.core.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code. One of several processes that torchrun started ends here."""
    code = _told(arguments)
    if is_one_of_several():
        # The threads of a backend may abort a process that ends in the ordinary way, after all is done.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)
    return code


def _told(arguments: Sequence[str] | None) -> int:
    """Run one command, and say what went wrong; gives the exit code."""
    # Threads that wait for each other by spinning stand still beside a busy neighbour: a step of two threads on two
    # cores then takes ten times as long. OpenMP reads this when torch is imported, which no command has done yet.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    words = sys.argv[1:] if arguments is None else arguments
    with contextlib.redirect_stderr(Unheard(sys.stderr)):
        return _code(words)


def _code(arguments: Sequence[str]) -> int:
    try:
        return _run(arguments)
    except UserError as error:
        if speaks() or error.print_on_this_rank:
            say(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever reads our results has had enough; nothing more can be said. What was trained is in its folder.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A full disk, a name that is too long, a folder that is not ours: nothing that a traceback would help with.
        where = "standard output" if error.filename is None else error.filename
        say(f"{where}: {error.strerror or error}")
        return 2
    except BaseException as error:
        number = getattr(error, "number", None)
        if type(error).__name__ != "Interrupted" or number is None:
            raise
        if speaks():
            say("stopped; the checkpoint is written, and the same command goes on from it")
        return 128 + number


def _run(arguments: Sequence[str]) -> int:
    name, options = parse(arguments)
    code = commands.module(name).run(options)
    if sys.stdout is not None:  # closed by whoever called
        sys.stdout.flush()  # here, where a reader that has gone away is no fault
    return code or 0
