"""Who computes, and who waits: one thread, and a bounded number of places before it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
LONGEST_PATIENCE = 60
"""Seconds after which anybody may ask again."""


class Refusal(Exception):  # noqa: N818 - the server works as intended
    """Why a request is not answered. retry_after: seconds until another attempt makes sense."""

    def __init__(self, status: int, text: str, retry_after: int | None = None):
        super().__init__(text)
        self.status, self.text, self.retry_after = status, text, retry_after


class Queue:
    """Computes one thing at a time, in a thread of its own; the others wait.

    most: places, that of who computes included.
    """

    def __init__(self, most: int):
        self.most, self.taken = most, 0
        self._thread = ThreadPoolExecutor(1, "computing")
        self._seconds = 0.0

    @contextmanager
    def place(self) -> Iterator[None]:
        """One place, inside the block. Raises Refusal where all are taken."""
        if self.taken >= self.most:
            raise Refusal(
                503, f"{self.most} requests are waiting already; try again later", self.patience
            )
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    @property
    def patience(self) -> int:
        """In how many seconds those who wait now may have been answered."""
        return max(1, min(LONGEST_PATIENCE, math.ceil(self.taken * self._seconds)))

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives, when its turn has come. Cancelled before that, it is never called."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._timed, work)

    def _timed(self, work: Callable[[], T]) -> T:
        begun = time.monotonic()
        try:
            return work()
        finally:
            # Recent ones count most.
            self._seconds += (time.monotonic() - begun - self._seconds) / 4
