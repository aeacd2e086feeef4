"""Handling of Ctrl-C, SIGTERM and other stop signals during long work."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGBREAK")
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""The stop signals of this system: Windows lacks SIGHUP and SIGUSR1, and only it has SIGBREAK."""


class Interrupted(BaseException):
    """Raised after a stop signal, once a checkpoint is written. number: of the signal."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class StopSignals:
    """Notes the first stop signal, so that a step finishes and a checkpoint is written; a second one ends the process.

    The signals are Ctrl-C, SIGTERM, SIGHUP (the terminal closes), SIGUSR1 (a scheduler ends the job) and SIGBREAK
    (Windows). Outside the main thread it does nothing.

    signal: the number of the signal received, or None. on_second: called before the second signal ends the process.
    """

    def __init__(self, on_second: Callable[[], None] = lambda: None) -> None:
        self.signal: int | None = None
        self._on_second = on_second
        self._raises = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        try:
            for number in SIGNALS:
                self._handlers[number] = signal.signal(number, self._note)
        except ValueError:  # not in the main thread, where alone Python runs handlers
            self._handlers.clear()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None:
            self._on_second()
            os._exit(128 + number)  # as shells report a signal; `sys.exit` would wait for threads
        self.signal = number
        if self._raises:
            raise Interrupted(number)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise Interrupted inside the block as soon as a signal is received."""
        self._raises = True
        try:
            self.check()
            yield
        finally:
            self._raises = False

    def check(self) -> None:
        """Raise Interrupted if a signal was received."""
        if self.signal is not None:
            raise Interrupted(self.signal)
