"""Forks trials from a process that has loaded PyTorch once: `python -m jarilab.cli.trial_server FD`.

FD is a socket. Each request is a line of JSON with two file descriptors, the trial's standard input and its log:
`{"number": 1, "words": [...], "folder": ..., "environment": {...}}`. An answer `1 0` says that trial 1 ended with exit
code 0; codes of signals are negative. The server ends when the socket is closed.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import Any

from jarilab.cli import supervised_child
from jarilab.cli.commands import train as train

POLL_SECONDS = 0.1
MAX_REQUEST = 1 << 20


def serve(requests: socket.socket) -> None:
    """Fork a process for each request until the socket is closed."""
    _load()
    running: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            if selector.select(POLL_SECONDS):
                text, descriptors = _received(requests)
                if not text:
                    return
                request = json.loads(text)
                pid = os.fork()
                if pid == 0:
                    requests.close()
                    _run(request, descriptors)
                running[pid] = request["number"]
                for descriptor in descriptors:
                    os.close(descriptor)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    code = os.waitstatus_to_exitcode(status)
                    requests.sendall(f"{running.pop(pid)} {code}\n".encode())


def _load() -> None:
    """Import what every trial needs. Nothing is computed, so no thread is lost in a fork."""
    import pydantic as pydantic

    from jarilab import api as api
    from jarilab.runs.descriptions import encodings
    from jarilab.runs.experiment import models, tasks

    for registry in (encodings, models, tasks):
        registry.names()


def _received(requests: socket.socket) -> tuple[bytes, list[int]]:
    """A request, which ends with its line, and its descriptors; empty at the end."""
    text, descriptors = b"", list[int]()
    while not text.endswith(b"\n"):
        part, more, _, _ = socket.recv_fds(requests, MAX_REQUEST, 2)
        if not part:
            return b"", []
        text += part
        descriptors += more
    return text, descriptors


def _run(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be the trial: a process in a session of its own, as if it had been started with these words. Never returns."""
    code = 1
    try:
        os.setsid()
        source, log = descriptors
        for descriptor, target in ((source, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, target)
        for descriptor in descriptors:
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.argv = [supervised_child.__file__, *request["words"]]
        code = supervised_child.run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # of a scheduler, which the driver answers
    with socket.socket(fileno=int(sys.argv[1])) as given:
        serve(given)
