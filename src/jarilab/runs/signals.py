"""Ctrl-C, SIGTERM and their like while something long runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGBREAK")
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Those that this system has: Windows has no SIGHUP and SIGUSR1, and alone SIGBREAK."""


class Interrupted(BaseException):
    """A signal came; the checkpoint is written."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class StopSignals:
    """Lets a step finish and a checkpoint be written before a signal ends the run: Ctrl-C, SIGTERM, SIGHUP (a terminal
    that closes), SIGUSR1 (a scheduler that takes the machine back) or SIGBREAK (Windows: Ctrl-Break, a console that
    closes). A second one ends it at once. Outside the main
    thread, where Python delivers no signals, it does nothing.

    at_once: what is done before the second one ends the process, such as to end what it started.
    """

    def __init__(self, at_once: Callable[[], None] = lambda: None) -> None:
        self.signal: int | None = None
        self._at_once = at_once
        self._raises = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        try:
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        except ValueError:
            self._before.clear()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None:
            self._at_once()
            os._exit(128 + number)
        self.signal = number
        if self._raises:
            raise Interrupted(number)

    @contextmanager
    def at_once(self, wanted: bool = True) -> Iterator[None]:
        """Inside the block the first signal raises Interrupted where it comes, if that is wanted: nothing is lost
        there."""
        self._raises = wanted
        try:
            if wanted:
                self.check()
            yield
        finally:
            self._raises = False

    def check(self) -> None:
        """Raise Interrupted if a signal came."""
        if self.signal is not None:
            raise Interrupted(self.signal)
