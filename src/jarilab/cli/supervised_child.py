"""Runs a command that exits when its parent does: `python -m jarilab.cli.supervised_child train ...`.

Its standard input is a pipe that the parent holds open and never writes to. When the parent ends, however it ends, the
system closes the pipe. The command then ends as on SIGTERM, after writing its checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from jarilab.cli import main


def run() -> int:
    """Run the command line until it ends or standard input is closed; returns the exit code."""
    # A scheduler signals all processes of a job. The parent answers for this one.
    if sys.platform != "win32":
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    threading.Thread(target=_terminate_at_end_of_input, daemon=True).start()
    return main()


def _terminate_at_end_of_input() -> None:
    os.read(0, 1)
    if sys.platform == "win32":
        # On Windows os.kill would end the process at once, without a checkpoint.
        signal.raise_signal(signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(run())
