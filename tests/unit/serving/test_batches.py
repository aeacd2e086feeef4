"""Batches of waiting jobs: equal options, errors, and clients that disconnect."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from jarilab.core.errors import UserError
from jarilab.serving.batches import Event, QueuedRequest, RequestBatches
from jarilab.serving.queue import Queue, Refusal
from jarilab.tasks.predictors.base import Prediction


@dataclass
class Echo(Prediction):
    """Says what it was asked, a letter at a time."""

    input: str
    error: str | None = None

    def record(self) -> dict[str, Any]:
        return {"line": 99, "input": self.input, "answer": self.input}

    def stream(self) -> Iterator[str]:
        yield from self.input

    def text(self) -> Iterator[str]:
        yield self.input


class Echoes:
    """A predictor that waits until it may go on, and fails at `bad`."""

    def __init__(self) -> None:
        self.may, self.begun = threading.Event(), threading.Event()
        self.batches: list[list[str]] = []
        self.said: list[str] = []

    def predict(self, sources: Iterable[str], options: Any, *, at_once: int) -> Iterator[Echo]:
        self.batches.append(list(sources))
        self.begun.set()
        self.may.wait(20)
        for source in self.batches[-1]:
            if source == "bad":
                raise RuntimeError("bad")
            self.said.append(source)
            yield Echo(source)


async def told(batches: RequestBatches, job: QueuedRequest, seconds: float = 20.0) -> list[Event] | Exception:
    with batches.queue.place():
        try:
            return [event async for event in batches.answer(job, seconds)]
        except (RuntimeError, UserError, Refusal) as error:
            return error


def answers(events: list[Event] | Exception) -> list[str]:
    assert isinstance(events, list), events
    return [event.data["answer"] for event in events if event.kind == "prediction"]


def job(options: Any, *sources: str) -> QueuedRequest:
    return QueuedRequest(sources, sources, options)


def talked(most: int, talk: Callable[[RequestBatches, Echoes], Any]) -> tuple[Any, Echoes]:
    echoes = Echoes()
    batches = RequestBatches(echoes.predict, Queue(16), most, lambda size: None)

    async def main() -> Any:
        try:
            return await asyncio.wait_for(talk(batches, echoes), 20)
        finally:
            echoes.may.set()

    return asyncio.run(main()), echoes


async def waiting(batches: RequestBatches, echoes: Echoes, *jobs: QueuedRequest) -> list[Any]:
    """The first job computes, and the others wait in their order, before anything goes on."""
    tasks = []
    for one in jobs:
        tasks.append(asyncio.create_task(told(batches, one)))
        await asyncio.sleep(0)
        await asyncio.to_thread(echoes.begun.wait, 10)
    return tasks


@pytest.mark.parametrize("at", range(3))
def test_equal_options_share_a_batch_but_not_an_error(at: int) -> None:
    sources = ["a", "b", "c"]
    sources[at] = "bad"

    async def talk(batches: RequestBatches, echoes: Echoes) -> list[Any]:
        jobs = [job(1, "first"), *(job(1, source) for source in sources), job(2, "d"), job(1, "e", "f", "g")]
        tasks = await waiting(batches, echoes, *jobs)
        echoes.may.set()
        return await asyncio.gather(*tasks)

    events, echoes = talked(5, talk)
    assert echoes.batches[:2] == [["first"], sources]
    assert ["d"] in echoes.batches
    assert ["e", "f", "g"] in echoes.batches  # which had no room in the batch
    for number, source in enumerate(sources, 1):
        if source == "bad":
            assert isinstance(events[number], RuntimeError)
        else:
            assert [event.kind for event in events[number]] == ["token", "prediction"]
            assert answers(events[number]) == [source]
    assert answers(events[5]) == ["e", "f", "g"]
    assert [event.data["line"] for event in events[5] if event.kind == "prediction"] == [1, 2, 3]


def test_abandoned_job_is_not_computed() -> None:
    async def talk(batches: RequestBatches, echoes: Echoes) -> list[Any]:
        tasks = await waiting(batches, echoes, job(1, "first", "second"), job(1, "b"), job(1, "c"))
        for task in tasks[:2]:
            task.cancel()
        await asyncio.gather(*tasks[:2], return_exceptions=True)
        assert batches.queue.length == 1
        echoes.may.set()
        return [await tasks[2]]

    events, echoes = talked(8, talk)
    assert answers(events[0]) == ["c"]
    assert echoes.batches == [["first", "second"], ["c"]]
    assert echoes.said == ["first", "c"]  # the second was not begun


def test_timeout_has_retry_after() -> None:
    async def talk(batches: RequestBatches, echoes: Echoes) -> Any:
        return await told(batches, job(1, "slow"), 0.05)

    refused, _ = talked(8, talk)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.retry_after) == (503, 1)
    assert str(refused) == "not answered within 0.05 seconds; ask for less, or try again later"


def test_short_jobs_do_not_wait_for_long_ones() -> None:
    """Batches are computed in turns, and predictions of a batch letter by letter."""
    ended: list[str] = []

    async def talk(batches: RequestBatches, echoes: Echoes) -> list[Any]:
        echoes.may.set()

        async def ask(options: Any, *sources: str) -> Any:
            events = await told(batches, job(options, *sources))
            ended.append(sources[0])
            return events

        long = [asyncio.create_task(ask(number, "long" * 20_000)) for number in range(2)]
        await asyncio.to_thread(echoes.begun.wait, 10)
        return [await ask(3, "ab", "c"), *await asyncio.gather(*long)]

    (short, *_), _ = talked(8, talk)
    assert ended[0] == "ab"
    assert [(event.kind, event.data["line"]) for event in short] == [
        ("token", 1),
        ("token", 1),
        ("token", 2),
        ("prediction", 1),
        ("prediction", 2),
    ]
