"""What a process does that reading must never do: execute code of a run, unpickle, connect, start a process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

NEVER = (
    "pickle.find_class",
    "socket.connect",
    "socket.getaddrinfo",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "urllib.Request",
    "webbrowser.open",
)
TRIAL = "jarilab.core.bounds"
"""The module that tries settings in a fork first, which this hook watches, too."""


class RefusedError(BaseException):
    """What the process met instead of doing it."""


class Watch:
    """Looks on, from when it is made until the process ends. root: no code that lies below may be executed. marker: nor
    any text that holds this. seen: what was done that must not be."""

    def __init__(self, root: Path, marker: str):
        self.root, self.marker = str(root.resolve()), marker
        self.on = False
        self.text = ""
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "subprocess.Popen" and "train" in arguments[1]:
            self.start_trial(arguments[1])
        if event == "os.fork" and sys._getframe(1).f_globals.get("__name__") == TRIAL:
            return
        if event in NEVER:
            self._refuse(f"{event} {arguments[:2]}")
        elif event == "exec":
            name = getattr(arguments[0], "co_filename", "")
            if name.startswith(self.root) or self.marker in name:
                self._refuse(f"executed {name}")
        elif event == "compile" and self.marker in _text(arguments[0]):
            self._refuse(f"compiled {_text(arguments[0])[:80]}")
        elif event == "ctypes.dlopen" and self.root in str(arguments[0]):
            self._refuse(f"loaded {arguments[0]}")

    def start_trial(self, words: Sequence[str]) -> NoReturn:
        """Stop before a comparison starts a trial, whose words may not hold the text that would be trusted in them."""
        if self.text and any(self.text in word for word in words):
            self._refuse(f"trial {words}")
        raise RefusedError("a trial")

    def _refuse(self, what: str) -> NoReturn:
        self.seen.append(what)
        raise RefusedError(what)


def _text(source: Any) -> str:
    if isinstance(source, bytes):
        return source.decode(errors="replace")
    return source if isinstance(source, str) else ""


class WatchedServer:
    """In place of the process that forks trials, which the audit hook does not see."""

    def __init__(self, watch: Watch):
        self._watch = watch

    def fork(self, words: Sequence[str], log: int) -> NoReturn:
        self._watch.start_trial(words)
