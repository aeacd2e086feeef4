"""The server of a live page, for one person on this machine.

It listens on loopback by default. It answers only small JSON requests that name its host and come from its
page. One request computes at a time. `MAX_REQUESTS` may wait; more are refused.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NoReturn

from fastapi import FastAPI, Query, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field

from jarilab.explorer import render
from jarilab.explorer.page_file import saved_page
from jarilab.explorer.session import Explorer
from jarilab.serving import run_server
from jarilab.serving.guard import Guard
from jarilab.serving.queue import Queue
from jarilab.serving.responses import DOCUMENTED, add_error_handlers, answer

MAX_REQUESTS = 16
GRACE_SECONDS = 2.0
"""Seconds to finish open requests at the end."""
Text = Field(max_length=100_000)
Number = Annotated[int, Field(ge=-(2**31), lt=2**31)]
"""The number of a view, head, step or token, within what tensors can index."""
Ticket = Annotated[str, Query(max_length=100)]
"""A name of a request that its page makes up, by which it asks for the place in the queue."""
Amount = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")
    input: str = Text


class Look(_Request):
    """An input, and training steps by the number of the view."""

    steps: dict[Number, Number] = Field(default_factory=dict, max_length=64)


class PageRequest(Look):
    """The head at which a page opens, that is saved."""

    site: str
    head: Number


class HeadRequest(_Request):
    """One head of one view."""

    view: Number = 0
    site: str
    head: Number = 0
    step: Number | None = None
    query: Number = 0


class EffectsRequest(_Request):
    """The effects of all heads of one view."""

    view: Number = 0
    step: Number | None = None


class _Edit(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PlaceEdit(_Edit):
    """Moved positions of the tokens of a side."""

    kind: Literal["place"]
    side: Literal["source", "target", "both"] = "both"
    how: Literal["off", "shift", "stretch", "shuffle"]
    amount: Amount | None = None


class HeadEdit(_Edit):
    """A head switched off."""

    kind: Literal["head"]
    site: str
    head: Number


class LinkEdit(_Edit):
    """A link from a query to a key that is forced or erased; in all heads if `head` is None."""

    kind: Literal["link"]
    site: str
    head: Number | None = None
    query: Number
    key: Number
    how: Literal["force", "erase"]


class TokenEdit(_Edit):
    """A token that is hidden from all queries."""

    kind: Literal["token"]
    side: Literal["source", "target"]
    key: Number


Edit = Annotated[PlaceEdit | HeadEdit | LinkEdit | TokenEdit, Field(discriminator="kind")]


class Surgery(_Request):
    """Edits of one view's forward. draft: without an answer that is generated anew."""

    view: Number = 0
    step: Number | None = None
    edits: list[Edit] = Field(min_length=1, max_length=64)
    controls: bool = True
    draft: bool = False


CONTROLS_PATIENCE, EFFECTS_PATIENCE = 1, 2
"""Of requests for random controls, and for the effects of all heads: see `Queue.place`."""


def application(
    explorer: Explorer, line: str, hosts: set[str], queue: Queue | None = None, **initial: Any
) -> Guard:
    """The ASGI application.

    hosts: names of this machine that a request may use, with the port. queue: where requests wait. initial: the
    `site`, `head` and `steps` that the page opens at, see `Explorer.look`.
    """
    app = FastAPI(title="jari", docs_url=None, redoc_url=None, responses=DOCUMENTED)
    add_error_handlers(app)
    queue = queue or Queue(MAX_REQUESTS)

    def draw() -> str:
        data = explorer.look(line, live=True, **initial)
        return render(data | {"files": explorer.files(line)})

    _add_page(app, queue, draw)

    async def respond(
        request: _Request, ticket: str, work: Callable[[], Any], *, patience: int = 0
    ) -> Response:
        explorer.check(request.input, line)
        return await _timed_answer(explorer, queue, work, ticket, patience=patience)

    @app.post("/api/look")
    async def look(request: Look, ticket: Ticket = "") -> Response:
        work = partial(explorer.look, request.input, request.steps, live=True)
        return await respond(request, ticket, work)

    @app.post("/api/page")
    async def save(request: PageRequest, ticket: Ticket = "") -> Response:
        return await respond(request, ticket, partial(_saved, explorer, request))

    @app.post("/api/head")
    async def head(request: HeadRequest, ticket: Ticket = "") -> Response:
        arguments = (request.view, request.site, request.head, request.step, request.query)
        return await respond(request, ticket, partial(explorer.head, request.input, *arguments))

    @app.post("/api/effects")
    async def effects(request: EffectsRequest, ticket: Ticket = "") -> Response:
        work = partial(explorer.effects, request.input, request.view, request.step)
        work = partial(work, proceed=lambda: not queue.must_give_way(EFFECTS_PATIENCE))
        return await respond(request, ticket, work, patience=EFFECTS_PATIENCE)

    @app.post("/api/surgery")
    async def surgery(request: Surgery, ticket: Ticket = "") -> Response:
        edits = [edit.model_dump(exclude_none=True) for edit in request.edits]
        work = partial(explorer.operate, request.input, request.view, edits, request.step)
        patience = CONTROLS_PATIENCE if request.controls else 0
        proceed = (lambda: not queue.must_give_way(CONTROLS_PATIENCE)) if request.controls else None
        work = partial(work, proceed=proceed, draft=request.draft)
        return await respond(request, ticket, work, patience=patience)

    return Guard(app, hosts)


def _add_page(app: FastAPI, queue: Queue, draw: Callable[[], str]) -> None:
    """Add the page itself, and the place of a request in the queue."""

    @app.get("/", response_class=HTMLResponse)
    async def page() -> Response:
        return HTMLResponse(await _compute(queue, draw))

    @app.get("/api/queue")
    async def place(ticket: Ticket) -> Response:
        """How many requests are answered before the one that was sent with this ticket."""
        return answer({"ahead": queue.ahead(ticket)})


async def _compute(
    queue: Queue, work: Callable[[], Any], ticket: str = "", *, patience: int = 0
) -> Any:
    with queue.place(ticket, patience=patience):
        return await queue.run(work)


async def _timed_answer(
    explorer: Explorer, queue: Queue, work: Callable[[], Any], ticket: str, *, patience: int
) -> Response:
    """The JSON of `work`, with a Server-Timing header (W3C) that says where the time went, in milliseconds."""

    def timed() -> tuple[Any, float, float, float]:
        explorer.forward_seconds, begun = 0.0, time.perf_counter()
        content = work()
        return content, begun, time.perf_counter(), explorer.forward_seconds

    arrived = time.perf_counter()
    content, begun, computed, forward = await _compute(queue, timed, ticket, patience=patience)
    response = answer(content)
    seconds = {
        "wait": begun - arrived,
        "forward": forward,
        "measure": computed - begun - forward,
        "write": time.perf_counter() - computed,
    }
    timing = [f"{phase};dur={1000 * each:.1f}" for phase, each in seconds.items()]
    response.headers["Server-Timing"] = ", ".join(timing)
    return response


def _saved(explorer: Explorer, request: PageRequest) -> dict[str, str]:
    """The HTML of a page that computes by itself."""
    page = saved_page(explorer, request.input, request.site, request.head, request.steps)
    return {"html": render(page)}


def serve(
    explorer: Explorer,
    line: str,
    listening: socket.socket,
    on_ready: Callable[[], None],
    **initial: Any,
) -> NoReturn:
    """Serve until interrupted. on_ready: see `run_server.run`. initial: see `application`."""
    hosts, queue = run_server.hosts_of(listening), Queue(MAX_REQUESTS)
    app = application(explorer, line, hosts, queue, **initial)
    run_server.run(app, listening, queue, grace=GRACE_SECONDS, on_ready=on_ready)
