"""Batches of waiting requests that have equal options, computed in turns."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jarilab.pages.kit.image_data import png
from jarilab.serving.queue import Queue
from jarilab.serving.responses import Refusal
from jarilab.tasks.predictors.base import Prediction

MAX_CELLS = 2**22
"""Cells of the attention maps of a batch, in one head. They grow with the square of the longest input."""
TURN_SECONDS = 0.02
"""Seconds that a batch computes before the next one."""


@dataclass(frozen=True)
class Event:
    """An event of an answer. kind: `token`, `prediction`, `end` or `error`. data: its JSON."""

    kind: str
    data: Any = None


END = Event("end")


@dataclass(eq=False)
class QueuedRequest:
    """A request: sources with the same options.

    names: the names of the sources in the answer. abandoned: the client disconnected.
    """

    sources: Sequence[str]
    names: Sequence[str]
    options: Any
    events: asyncio.Queue[Event | Exception] = field(default_factory=asyncio.Queue)
    abandoned: bool = False
    skip: int = 0
    """Events to drop, since an earlier attempt sent them."""
    _sent: int = 0
    _loop: Any = field(default_factory=asyncio.get_running_loop)

    def send(self, event: Event | Exception) -> None:
        """Send an event from the computing thread."""
        if self.skip:
            self.skip -= 1
            return
        self._sent += 1
        self._loop.call_soon_threadsafe(self.events.put_nowait, event)

    def restart(self) -> None:
        """Prepare for computing from the beginning: events that were sent are skipped."""
        self.skip, self._sent = self._sent, 0


class RequestBatches:
    """Answers requests (jobs), each in one batch with waiting requests that have equal options.

    predict: `Predictor.predict`. max_batch: inputs of a batch. observe: called with the size of each batch.
    """

    def __init__(
        self,
        predict: Callable[..., Iterator[Prediction]],
        queue: Queue,
        max_batch: int,
        observe: Callable[[int], None],
    ):
        self.predict, self.queue = predict, queue
        self.max_batch, self._observe = max_batch, observe
        self._waiting: list[QueuedRequest] = []
        self._open: set[QueuedRequest] = set()
        self._running: asyncio.Task[None] | None = None

    async def answer(self, job: QueuedRequest, seconds: float) -> AsyncGenerator[Event, None]:
        """The events of a job as they happen, without its end. The caller has a place in the queue.

        Raises Refusal after `seconds`, and any error of the prediction.
        """
        deadline = time.monotonic() + seconds
        self._waiting.append(job)
        self._open.add(job)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        try:
            while (event := await self._next(job, deadline, seconds)) is not END:
                yield event
        finally:
            job.abandoned = True
            self._open.remove(job)
            if job in self._waiting:
                self._waiting.remove(job)

    async def _next(self, job: QueuedRequest, deadline: float, seconds: float) -> Event:
        try:
            event = await asyncio.wait_for(job.events.get(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise Refusal(
                503,
                f"not answered within {seconds:g} seconds; ask for less, or try again later",
                self.queue.retry_after,
            ) from None
        if isinstance(event, Exception):
            raise event
        return event

    async def _run(self) -> None:
        """Compute batches in turns, so that a short request does not wait for the end of long ones."""
        batches: deque[Iterator[None]] = deque()
        while self._waiting or batches:
            if self._waiting:
                jobs = self._take()
                self._observe(sum(len(job.sources) for job in jobs))
                batches.append(self._compute(jobs))
            batch = batches.popleft()
            try:
                goes_on = await self.queue.run(partial(_take_turn, batch))
            except Refusal as refusal:  # the server stops
                for job in self._open:
                    job.send(refusal)
                return
            if goes_on:
                batches.append(batch)

    def _take(self) -> list[QueuedRequest]:
        """The first job, and others with its options that fit into the batch."""
        first, free = self._waiting[0], self.max_batch
        taken = []
        for job in self._waiting:
            fits = job.options == first.options and len(job.sources) <= free
            if job is first or fits:
                taken.append(job)
                free -= len(job.sources)
        self._waiting = [job for job in self._waiting if job not in taken]
        return taken

    def _compute(self, jobs: Sequence[QueuedRequest]) -> Iterator[None]:
        try:
            yield from self._compute_batch(jobs)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].send(error)
                return
            # One job failed: the others are computed alone.
            for job in jobs:
                if not job.abandoned:
                    job.restart()
                    yield from self._compute([job])

    def _compute_batch(self, jobs: Sequence[QueuedRequest]) -> Iterator[None]:
        """Send the events of a batch: one of each prediction in turn, while further predictions arrive."""
        sources = [source for job in jobs for source in job.sources]
        owners = ((job, number) for job in jobs for number in range(len(job.sources)))
        # Bytes, since the number of tokens is known only later; a token has about one byte or more.
        longest = max(len(source.encode()) for source in sources)
        at_once = max(1, min(self.max_batch, MAX_CELLS // max(1, longest**2)))
        predictions = self.predict(sources, jobs[0].options, at_once=at_once)
        arriving: QueuedRequest | None = jobs[0]
        number, unfinished = 0, list(jobs)
        writing: list[tuple[QueuedRequest, Iterator[Event]]] = []
        while unfinished and not all(job.abandoned for job in jobs):
            prediction = next(predictions, None)
            if prediction is None:
                arriving = None
            else:
                if prediction.rank == 1:
                    arriving, number = next(owners)
                assert arriving is not None, "each job begins with a prediction of rank 1"
                writing.append((arriving, _events(prediction, arriving, number)))
            for entry in list(writing):
                job, events = entry
                if (event := next(events, None)) is None:
                    writing.remove(entry)
                else:
                    job.send(event)
                yield
            still = {job for job, _ in writing}.union(
                jobs[jobs.index(arriving) :] if arriving else ()
            )
            for job in unfinished:
                if job not in still:
                    job.send(END)
            unfinished = [job for job in unfinished if job in still]


def _take_turn(batch: Iterator[None]) -> bool:
    """Compute for about a turn; returns whether the batch goes on."""
    end = time.monotonic() + TURN_SECONDS
    return any(time.monotonic() >= end for _ in batch)


def _events(prediction: Prediction, job: QueuedRequest, number: int) -> Iterator[Event]:
    """The events of a prediction, until the client disconnects."""
    if job.abandoned:
        return
    for piece in prediction.stream():
        if job.abandoned:
            return
        yield Event("token", {"line": number + 1, "text": piece})
    yield Event("prediction", _record(prediction, job, number))


def _record(prediction: Prediction, job: QueuedRequest, number: int) -> dict[str, Any]:
    """The prediction as `jarilab predict --json` prints it, numbered in its request, with generated images."""
    source, name = job.sources[number], job.names[number]
    record: dict[str, Any] = {"line": number + 1}
    for key, value in prediction.record().items():
        if key != "line":
            # The client knows a temporary file by the name of its input.
            record[key] = (
                value.replace(source, name) if isinstance(value, str) and source != name else value
            )
    if prediction.images is not None:
        pngs = [png(image.permute(1, 2, 0).numpy()) for image in prediction.images]
        record["images"] = [base64.b64encode(png).decode() for png in pngs]
    return record
