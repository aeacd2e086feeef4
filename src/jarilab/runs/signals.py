"""Ctrl-C and SIGTERM while something long runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """A signal came; the checkpoint is written."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class StopSignals:
    """Lets a step finish and a checkpoint be written before Ctrl-C or SIGTERM ends the run; a second one ends it at
    once. Outside the main thread, where Python delivers no signals, it does nothing.

    at_once: what is done before the second one ends the process, such as to end what it started.
    """

    def __init__(self, at_once: Callable[[], None] = lambda: None) -> None:
        self.signal: int | None = None
        self._at_once = at_once
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
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

    def check(self) -> None:
        """Raise Interrupted if a signal came."""
        if self.signal is not None:
            raise Interrupted(self.signal)
