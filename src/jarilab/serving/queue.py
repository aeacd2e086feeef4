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
RESTART_SECONDS = 5
"""Seconds after which a stopping server may be replaced."""


class Refusal(Exception):  # noqa: N818 - the server works as intended
    """Why a request is not answered. status: of HTTP. retry_after: seconds until another attempt makes sense."""

    def __init__(self, status: int, text: str, retry_after: int | None = None):
        super().__init__(text)
        self.status, self.text, self.retry_after = status, text, retry_after


class Queue:
    """Runs one function at a time in a thread of its own.

    size: requests that wait or run. computing: a function runs now.
    """

    def __init__(self, size: int):
        self.size, self.computing, self.ending = size, False, False
        self._line: list[str] = []
        self._patience: list[int] = []
        self._ends: set[asyncio.Future[None]] = set()
        self._thread = ThreadPoolExecutor(1, "computing")
        self._seconds = self._answered = 0.0

    @property
    def length(self) -> int:
        """Requests that wait or run."""
        return len(self._line)

    def must_give_way(self, patience: int) -> bool:
        """Whether a request of this patience must let a less patient one go first."""
        return any(each < patience for each in self._patience)

    @contextmanager
    def place(self, ticket: str = "", *, patience: int = 0) -> Iterator[None]:
        """Occupies a place inside the block; `ahead` finds it. Raises Refusal if the queue is full or ends.

        patience: 0 for a request that never gives way. Others give way to each request with less patience, never to
            one with as much: both would begin again for ever.
        """
        self.check_ending()
        if self.length >= self.size:
            raise Refusal(
                503, f"{self.size} requests are waiting already; try again later", self.retry_after
            )
        self._line.append(ticket)
        self._patience.append(patience)
        begun = time.monotonic()
        try:
            yield
        finally:
            self._line.remove(ticket)
            self._patience.remove(patience)
            # An exponential average of the time between two answers, in which recent ones count most.
            now = time.monotonic()
            self._seconds += (now - max(begun, self._answered) - self._seconds) / 4
            self._answered = now

    def ahead(self, ticket: str) -> int | None:
        """Requests before that of this ticket; None if it has no place."""
        return self._line.index(ticket) if ticket in self._line else None

    def end(self, seconds: float) -> None:
        """Refuse new requests, and after `seconds` also those that wait or run."""
        self.ending = True
        asyncio.get_running_loop().call_later(seconds, self._end_all)

    def _end_all(self) -> None:
        for end in self._ends:
            if not end.done():
                end.set_result(None)

    def check_ending(self) -> None:
        """Raises Refusal if the server is stopping."""
        if self.ending:
            raise Refusal(503, "this server is stopping; try again later", RESTART_SECONDS)

    @property
    def retry_after(self) -> int:
        """Estimated seconds until the waiting requests are answered."""
        return max(1, min(MAX_RETRY_AFTER, math.ceil(self.length * self._seconds)))

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, which is never called if this is cancelled while it waits.

        Raises Refusal at the end of the server.
        """
        loop = asyncio.get_running_loop()
        result = loop.run_in_executor(self._thread, self._timed, work)
        ended = loop.create_future()
        self._ends.add(ended)
        try:
            await asyncio.wait({result, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                self.check_ending()
            return result.result()
        finally:
            self._ends.discard(ended)
            result.cancel()

    def _timed(self, work: Callable[[], T]) -> T:
        self.computing = True
        try:
            return work()
        finally:
            self.computing = False
