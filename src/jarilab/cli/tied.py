"""A command of jari that ends with whoever started it: `python -m jarilab.cli.tied train ...`.

Its standard input is a pipe that nobody writes to and whoever started it holds open. However that process ends, by
kill -9 or with its terminal, the system closes the pipe; the command then ends as by SIGTERM, its checkpoint written.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from jarilab.cli import main


def run() -> int:
    """The command line, until standard input ends."""
    # A scheduler signals all processes of a job; the one that holds our standard input answers for us.
    if sys.platform != "win32":
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    return main()


def _end_with_standard_input() -> None:
    os.read(0, 1)
    if sys.platform == "win32":
        signal.raise_signal(
            signal.SIGTERM
        )  # os.kill would end the process there, without a checkpoint
    else:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(run())
