"""A bounded queue in front of one computing thread."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
MAX_RETRY_AFTER = 60
"""The largest `retry_after`, in seconds."""


class Refusal(Exception):  # noqa: N818 - the server works as intended
    """Why a request is not answered. status: of HTTP. retry_after: seconds until another attempt makes sense."""

    def __init__(self, status: int, text: str, retry_after: int | None = None):
        super().__init__(text)
        self.status, self.text, self.retry_after = status, text, retry_after


class Queue:
    """Runs one function at a time in a thread of its own.

    size: requests that wait or run.
    """

    def __init__(self, size: int):
        self.size, self.length = size, 0
        self._thread = ThreadPoolExecutor(1, "computing")
        self._seconds = 0.0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Occupies a place inside the block. Raises Refusal if the queue is full."""
        if self.length >= self.size:
            raise Refusal(
                503, f"{self.size} requests are waiting already; try again later", self.retry_after
            )
        self.length += 1
        try:
            yield
        finally:
            self.length -= 1

    @property
    def retry_after(self) -> int:
        """Estimated seconds until the waiting requests are answered."""
        return max(1, min(MAX_RETRY_AFTER, math.ceil(self.length * self._seconds)))

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, which is never called if this is cancelled while it waits."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._timed, work)

    def _timed(self, work: Callable[[], T]) -> T:
        begun = time.monotonic()
        try:
            return work()
        finally:
            # An exponential average, in which recent requests count most.
            self._seconds += (time.monotonic() - begun - self._seconds) / 4
