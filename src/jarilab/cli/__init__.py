"""The command line: a thin layer over `jarilab.api`.

Results go to standard output, everything else to standard error. Exit codes: 0 success, 2 a mistake of the user, 1 a
fault of jarilab, 130 Ctrl-C, 143 SIGTERM. Each verb is a file in `commands/`. Its flags are made from the options of
Python functions.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from jarilab.cli import commands
from jarilab.cli.arguments import parse
from jarilab.cli.static_output import run_static
from jarilab.cli.terminal import SafeStream, is_distributed, is_local_first, say
from jarilab.core.errors import MAX_QUOTED, UserError, is_out_of_memory, shortened


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. A process of torchrun exits here."""
    code = _run_and_report(arguments)
    if is_distributed():
        # Threads of a distributed backend may abort a process that exits normally after its work is done.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)
    return code


def _run_and_report(arguments: Sequence[str] | None) -> int:
    """Run one command and print what went wrong; returns the exit code."""
    # Threads that spin while waiting stall on a busy machine: a step of two threads on two cores then takes ten times
    # as long. OpenMP reads this when torch is imported, which no command has done yet.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may not be UTF-8
    with (
        contextlib.redirect_stdout(SafeStream(sys.stdout)),
        contextlib.redirect_stderr(SafeStream(sys.stderr, is_stderr=True)),
    ):
        return _exit_code(arguments)


def _exit_code(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    try:
        # Only a process of its own prints from the cache: a caller in Python may have changed what is listed.
        return run_static(sys.argv[1:], _run) if arguments is None else _run(arguments)
    except UserError as error:
        if is_local_first() or error.print_on_this_rank:
            say(_with_short_arguments(str(error), words))
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the results is gone. What was trained is in its folder.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A full disk, a name that is too long, a folder without permission: a traceback would not help.
        where = "standard output" if error.filename is None else shortened(str(error.filename))
        say(_with_short_arguments(f"{where}: {error.strerror or error}", words))
        return 2
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        got = " ".join(str(error).split()) or "MemoryError"
        say(
            f"expected enough memory; got: {got}; use shorter inputs, a smaller batch or model, or more memory"
        )
        return 2
    except BaseException as error:
        number = getattr(error, "number", None)
        if type(error).__name__ != "Interrupted" or number is None:
            raise
        if is_local_first():
            say("stopped after writing a checkpoint; run the same command again to continue")
        return 128 + number


def _with_short_arguments(message: str, arguments: Sequence[str]) -> str:
    """The message with shortened arguments: one with spaces and without quotes looks like a part of it."""
    values = [text for argument in arguments for text in (argument, argument.partition("=")[2])]
    for value in values:
        if len(value) <= MAX_QUOTED:
            continue
        for quoted in (value, repr(value)):
            message = message.replace(quoted, shortened(quoted))
            # An error has shortened the long words of a text already.
            message = message.replace(str(UserError(quoted)), shortened(quoted))
    return message


def _run(arguments: Sequence[str]) -> int:
    name, options = parse(arguments)
    code = commands.module(name).run(options)
    if sys.stdout is not None:  # the caller may have closed it
        sys.stdout.flush()  # here, where a closed pipe is handled
    return code or 0
