"""Requests that wait together and ask alike are answered in one batch."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jarilab.pages.kit.images import png
from jarilab.serving.answers import Refusal
from jarilab.serving.queue import Queue
from jarilab.tasks.predictors.base import Prediction

CELLS = 2**22
"""The most cells of an attention map, query by key, that a batch may have for each head: it grows with the square of
the longest input."""


@dataclass(frozen=True)
class Event:
    """Something that a client may be told: a `token` of an answer, a whole `prediction`, or the `end`."""

    kind: str
    data: Any = None


END = Event("end")


@dataclass(eq=False)
class Job:
    """A request: sources that have the same options.

    names: what the sources are called in the answer. left: nobody waits for it any more.
    """

    sources: Sequence[str]
    names: Sequence[str]
    options: Any
    events: asyncio.Queue[Event | Exception] = field(default_factory=asyncio.Queue)
    left: bool = False
    skip: int = 0
    """Events of an answer begun anew that were told before."""
    _told: int = 0
    _loop: Any = field(default_factory=asyncio.get_running_loop)

    def tell(self, event: Event | Exception) -> None:
        """Called by the thread that computes."""
        if self.skip:
            self.skip -= 1
            return
        self._told += 1
        self._loop.call_soon_threadsafe(self.events.put_nowait, event)

    def again(self) -> None:
        """It is answered anew, from the beginning; what was told is not told twice."""
        self.skip, self._told = self._told, 0


class Batches:
    """Answers jobs in turn, and with the first all that wait and have equal options.

    predict: that of a predictor. most: inputs of a batch. sizes: told how many inputs each batch has.
    """

    def __init__(
        self,
        predict: Callable[..., Iterator[Prediction]],
        queue: Queue,
        most: int,
        sizes: Callable[[int], None],
    ):
        self.predict, self.queue, self.most, self._sizes = predict, queue, most, sizes
        self._waiting: list[Job] = []
        self._running: asyncio.Task[None] | None = None

    async def answer(self, job: Job, seconds: float) -> AsyncGenerator[Event, None]:
        """What becomes of a job, as it happens; it leaves the queue with whoever waits for it. The caller holds a place
        in the queue. Raises Refusal after so many seconds, and what computing raises."""
        deadline = time.monotonic() + seconds
        self._waiting.append(job)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        try:
            while (event := await self._next(job, deadline, seconds)) is not END:
                yield event
        finally:
            job.left = True
            if job in self._waiting:
                self._waiting.remove(job)

    async def _next(self, job: Job, deadline: float, seconds: float) -> Event:
        try:
            event = await asyncio.wait_for(job.events.get(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            told = f"not answered within {seconds:g} seconds; ask for less, or try again later"
            raise Refusal(503, told, self.queue.patience) from None
        if isinstance(event, Exception):
            raise event
        return event

    async def _run(self) -> None:
        while self._waiting:
            jobs = self._take()
            self._sizes(sum(len(job.sources) for job in jobs))
            await self.queue.run(partial(self._compute, jobs))

    def _take(self) -> list[Job]:
        """The first, and those that fit to it."""
        first, room = self._waiting[0], self.most
        taken = []
        for job in self._waiting:
            fits = job.options == first.options and len(job.sources) <= room
            if job is first or fits:
                taken.append(job)
                room -= len(job.sources)
        self._waiting = [job for job in self._waiting if job not in taken]
        return taken

    def _compute(self, jobs: Sequence[Job]) -> None:
        try:
            self._together(jobs)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].tell(error)
                return
            # One of them is at fault: the others must not suffer by it.
            for job in jobs:
                if not job.left:
                    job.again()
                    self._compute([job])

    def _together(self, jobs: Sequence[Job]) -> None:
        sources = [source for job in jobs for source in job.sources]
        owners = ((job, number) for job in jobs for number in range(len(job.sources)))
        job, number = jobs[0], 0
        at_once = self._at_once(sources)
        for prediction in self.predict(sources, jobs[0].options, at_once=at_once):
            if prediction.rank == 1:
                before = job
                job, number = next(owners)
                if job is not before:
                    before.tell(END)
            if all(one.left for one in jobs):
                return
            for event in _events(prediction, job, number):
                job.tell(event)
        job.tell(END)

    def _at_once(self, sources: Sequence[str]) -> int:
        longest = max(len(source.encode()) for source in sources)
        return max(1, min(self.most, CELLS // max(1, longest**2)))


def _events(prediction: Prediction, job: Job, number: int) -> Iterator[Event]:
    """What is told of a prediction, as long as somebody waits for it."""
    if job.left:
        return
    for piece in prediction.stream():
        if job.left:
            return
        yield Event("token", {"line": number + 1, "text": piece})
    yield Event("prediction", _record(prediction, job, number))


def _record(prediction: Prediction, job: Job, number: int) -> dict[str, Any]:
    """As `jarilab predict --json` has it, of this request alone, with what was painted."""
    source, name = job.sources[number], job.names[number]
    record: dict[str, Any] = {"line": number + 1}
    for key, value in prediction.record().items():
        if key != "line":
            # A file of the server is called what the client knows it by.
            record[key] = (
                value.replace(source, name) if isinstance(value, str) and source != name else value
            )
    if prediction.images is not None:
        pngs = [png(image.permute(1, 2, 0).numpy()) for image in prediction.images]
        record["images"] = [base64.b64encode(png).decode() for png in pngs]
    return record
