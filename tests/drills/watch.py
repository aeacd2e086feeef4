"""What a process does that reading must never do: execute code of a run, unpickle, connect, start a process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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
        if event == "subprocess.Popen" and self._is_a_trial(arguments[1]):
            raise RefusedError("a trial")
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

    def _is_a_trial(self, words: Any) -> bool:
        """Whether a comparison starts a trial of its own, without the text that would be trusted in it."""
        return "train" in words and not (self.text and any(self.text in word for word in words))

    def _refuse(self, what: str) -> None:
        self.seen.append(what)
        raise RefusedError(what)


def _text(source: Any) -> str:
    if isinstance(source, bytes):
        return source.decode(errors="replace")
    return source if isinstance(source, str) else ""
