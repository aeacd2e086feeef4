"""A run that answers over HTTP: JSON, server-sent events, and what whoever keeps it running asks for."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel

from jarilab._version import __version__
from jarilab.core.errors import UserError
from jarilab.pages.kit.page import to_json
from jarilab.runs.loaded import OpenRun
from jarilab.serving.answers import DOCUMENTED, Refusal, answer, tell_mistakes
from jarilab.serving.batches import Batches, Event, Job
from jarilab.serving.guard import Guard, Limits
from jarilab.serving.metrics import CONTENT_TYPE, Metrics
from jarilab.serving.queue import Queue
from jarilab.serving.requests import Asking, Serving

EVENTS = "text/event-stream"
ENDING = 5
"""Seconds after which a server that ends may have a successor."""


class Answers(BaseModel):
    """A prediction for each input, in order, or several where several are asked for; each as `jarilab predict --json`
    has it."""

    predictions: list[dict[str, Any]]


class Status(BaseModel):
    """How the server is."""

    status: str


class Server:
    """One run, ready to answer."""

    def __init__(self, run: OpenRun, limits: Serving):
        self.run, self.limits = run, limits
        self.asking = Asking(run.predictor, limits)
        self.queue = Queue(limits.queue)
        self.metrics = Metrics(lambda: self.queue.taken)
        self.batches = Batches(
            run.predictor.predict, self.queue, limits.batch_size, self.metrics.observe_batch
        )
        self.ending = False

    def end(self) -> None:
        """Take nothing new; what is in hand is answered."""
        self.ending = True

    def application(self, hosts: set[str]) -> Guard:
        """What answers. hosts: what a request may call this machine, port included."""
        title = f"jari: {self.run.experiment.task}"
        app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None)
        tell_mistakes(app)
        self._add_state(app)
        self._add_predictions(app)
        return Guard(app, hosts, Limits(body=self.asking.largest), self.metrics.observe_request)

    def _add_state(self, app: FastAPI) -> None:
        @app.get("/health", response_model=Status, responses=DOCUMENTED)
        async def health() -> Response:
            """The process is alive."""
            return answer({"status": "alive"})

        @app.get("/ready", response_model=Status, responses=DOCUMENTED)
        async def ready() -> Response:
            """The model is loaded, and the server does not end."""
            self._check_ending()
            return answer({"status": "ready"})

        @app.get("/metrics", response_class=PlainTextResponse, responses=DOCUMENTED)
        async def metrics() -> Response:
            """Counts and seconds, for Prometheus."""
            return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    def _check_ending(self) -> None:
        if self.ending:
            raise Refusal(503, "this server ends; ask again later", ENDING)

    def _add_predictions(self, app: FastAPI) -> None:
        streams = {200: {"content": {EVENTS: {"schema": {"type": "string"}}}}}

        async def predict(asked: Any, request: Request) -> Response:
            """What the run says of each input. With `Accept: text/event-stream`, each token as it is written where the
            run writes text, and each prediction as soon as it is known."""
            self._check_ending()
            events = self._events(asked)
            if EVENTS in request.headers.get("accept", ""):
                return await _streamed(events)
            async with aclosing(events):
                told = [event.data async for event in events if event.kind == "prediction"]
            return answer({"predictions": told})

        predict.__annotations__["asked"] = self.asking.model
        app.post("/predict", response_model=Answers, responses=DOCUMENTED | streams)(predict)

    async def _events(self, asked: Any) -> AsyncGenerator[Event, None]:
        """What is told of a request, as it happens. Raises UserError and Refusal."""
        options = self.asking.options(asked)
        with (
            self.queue.place(),
            tempfile.TemporaryDirectory(prefix="jarilab-", ignore_cleanup_errors=True) as folder,
        ):
            sources, names = self.asking.sources(asked.inputs, Path(folder))
            events = self.batches.answer(Job(sources, names, options), self.limits.deadline)
            async with aclosing(events):
                async for event in events:
                    yield event


async def _streamed(events: AsyncGenerator[Event, None]) -> Response:
    """Server-sent events. A mistake before the first of them is an answer of its own, with its status."""
    first = await anext(events)

    async def lines() -> AsyncIterator[str]:
        async with aclosing(events):
            try:
                yield _line(first)
                async for event in events:
                    yield _line(event)
            except (UserError, Refusal) as error:
                yield _line(Event("error", {"error": str(error)}))
            else:
                yield _line(Event("end", {}))

    return StreamingResponse(lines(), media_type=EVENTS)


def _line(event: Event) -> str:
    return f"event: {event.kind}\ndata: {to_json(event.data)}\n\n"
