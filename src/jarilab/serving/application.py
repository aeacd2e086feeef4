"""The prediction server: JSON, server-sent events, health and metrics."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel

from jarilab._version import __version__
from jarilab.core.errors import UserError
from jarilab.pages.kit.page import assemble, to_json
from jarilab.runs.loaded import OpenRun
from jarilab.serving.batches import Event, QueuedRequest, RequestBatches
from jarilab.serving.guard import Guard, Limits
from jarilab.serving.prometheus import CONTENT_TYPE, Metrics
from jarilab.serving.queue import Queue
from jarilab.serving.requests import RequestSchema, Serving
from jarilab.serving.responses import DOCUMENTED, Refusal, add_error_handlers, answer

EVENTS = "text/event-stream"


class Answers(BaseModel):
    """The predictions of each input, in order, as `jarilab predict --json` prints them."""

    predictions: list[dict[str, Any]]


class Status(BaseModel):
    """The state of the server."""

    status: str


class Server:
    """A loaded run that answers requests."""

    def __init__(self, run: OpenRun, limits: Serving):
        self.run, self.limits = run, limits
        self.schema = RequestSchema(run.predictor, limits)
        self.queue = Queue(limits.queue)
        self.metrics = Metrics(lambda: self.queue.length)
        self.batches = RequestBatches(
            run.predictor.predict, self.queue, limits.batch_size, self.metrics.observe_batch
        )

    def application(self, hosts: set[str]) -> Guard:
        """The ASGI application. hosts: names of this machine that a request may use, with the port."""
        title = f"jari: {self.run.experiment.task}"
        # Without FastAPI's pages of documentation, which load scripts from another host.
        app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None)
        add_error_handlers(app)
        self._add_state(app)
        self._add_predictions(app)
        return Guard(app, hosts, Limits(body=self.schema.max_body), self.metrics.observe_request)

    def page(self) -> str:
        """The page at `/`, which sends one input and shows the same request as a command."""
        experiment = self.run.experiment
        example = ""
        with suppress(UserError):  # a task without one
            example = self.run.example()
        payload = {
            "task": experiment.task,
            "encoding": experiment.encoding,
            "step": self.run.step,
            "example": example,
            "language": None,
        }
        title = f"jari: {experiment.task}"
        styles = ("kit/theme.css", "kit/base.css")
        package = "jarilab.serving"
        return assemble(package, "serve.html", styles, "serve.js", payload, title, live=True)

    def _add_state(self, app: FastAPI) -> None:
        @app.get("/", response_class=HTMLResponse)
        async def page() -> Response:
            """A field for an input, its answer, and the same as a command."""
            return HTMLResponse(self.page())

        @app.get("/health", response_model=Status, responses=DOCUMENTED)
        async def health() -> Response:
            """The process is alive."""
            return answer({"status": "alive"})

        @app.get("/ready", response_model=Status, responses=DOCUMENTED)
        async def ready() -> Response:
            """The model is loaded, and the server is not stopping."""
            self.queue.check_ending()
            return answer({"status": "ready"})

        @app.get("/metrics", response_class=PlainTextResponse, responses=DOCUMENTED)
        async def metrics() -> Response:
            """Counts and seconds, for Prometheus."""
            return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    def _add_predictions(self, app: FastAPI) -> None:
        streams = {200: {"content": {EVENTS: {"schema": {"type": "string"}}}}}

        async def predict(body: Any, request: Request) -> Response:
            """Predict each input. With `Accept: text/event-stream`, tokens and predictions are sent as soon as they
            are known."""
            events = self._events(body)
            if accepts_events(request.headers.get("accept", "")):
                return await _streamed(events)
            async with aclosing(events):
                predictions = [event.data async for event in events if event.kind == "prediction"]
            predictions.sort(key=itemgetter("line"))
            return answer({"predictions": predictions})

        # FastAPI reads the type from here; the annotation in the source cannot name a class that is made at run time.
        predict.__annotations__["body"] = self.schema.model
        app.post("/predict", response_model=Answers, responses=DOCUMENTED | streams)(predict)

    async def _events(self, body: Any) -> AsyncGenerator[Event, None]:
        """The events of a request as they happen. Raises UserError for wrong inputs, Refusal if it is not answered."""
        options = self.schema.options(body)
        with (
            self.queue.place(),
            tempfile.TemporaryDirectory(prefix="jarilab-", ignore_cleanup_errors=True) as folder,
        ):
            sources, names = self.schema.sources(body.inputs, Path(folder))
            events = self.batches.answer(
                QueuedRequest(sources, names, options), self.limits.deadline
            )
            async with aclosing(events):
                async for event in events:
                    yield event


def accepts_events(accept: str) -> bool:
    """Whether an `Accept` header (RFC 9110, section 12.5.1) names events, and prefers no JSON."""
    quality: dict[str, float] = {}
    for one in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in one.split(";"))
        quality[kind] = 1.0
        for parameter in parameters:
            with suppress(ValueError):
                if parameter.startswith("q="):
                    quality[kind] = float(parameter[2:])

    def of(*kinds: str) -> float:
        return next((quality[kind] for kind in kinds if kind in quality), 0.0)

    events, json = of(EVENTS, "text/*"), of("application/json", "application/*", "*/*")
    return events > 0 and events >= json


async def _streamed(events: AsyncGenerator[Event, None]) -> Response:
    """Server-sent events. An error before the first event is a response with its own status."""
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

    # nginx and other proxies would hold events back until a buffer is full.
    return StreamingResponse(lines(), media_type=EVENTS, headers={"X-Accel-Buffering": "no"})


def _line(event: Event) -> str:
    return f"event: {event.kind}\ndata: {to_json(event.data)}\n\n"
