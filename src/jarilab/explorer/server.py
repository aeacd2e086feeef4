"""The page, live: another input runs as soon as it is typed. For one person on this machine.

It listens on loopback unless told otherwise, answers only requests that name its own host and come from its own page,
and reads small JSON only. One request computes at a time; the others wait, and past `WAITING` of them are sent away.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field

from jarilab.explorer import render
from jarilab.explorer.session import Explorer
from jarilab.serving import running
from jarilab.serving.answers import DOCUMENTED, answer, tell_mistakes
from jarilab.serving.guard import Guard
from jarilab.serving.queue import Queue

WAITING = 16
Text = Field(max_length=100_000)
Number = Annotated[int, Field(ge=-(2**31), lt=2**31)]
"""Of a view, a site, a head, a step, a token: what a tensor can be asked for."""
Amount = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")
    input: str = Text


class Look(_Asked):
    """An input, and steps of training by the number of the view."""

    steps: dict[Number, Number] = Field(default_factory=dict, max_length=64)


class Head(_Asked):
    """One head of one view."""

    view: Number = 0
    site: str
    head: Number = 0
    step: Number | None = None
    query: Number = 0


class _Edit(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PlaceEdit(_Edit):
    """Tokens at other places."""

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
    """One query and one key; of all heads where none is named."""

    kind: Literal["link"]
    site: str
    head: Number | None = None
    query: Number
    key: Number
    how: Literal["force", "erase"]


class TokenEdit(_Edit):
    """A token that nobody looks at."""

    kind: Literal["token"]
    side: Literal["source", "target"]
    key: Number


Edit = Annotated[PlaceEdit | HeadEdit | LinkEdit | TokenEdit, Field(discriminator="kind")]


class Surgery(_Asked):
    """Changes to one view's forward."""

    view: Number = 0
    step: Number | None = None
    edits: list[Edit] = Field(min_length=1, max_length=64)
    controls: bool = True


def application(explorer: Explorer, line: str, hosts: set[str], **opens: Any) -> Guard:
    """The server's part of the page.

    hosts: what a request may call this machine, port included. opens: the `site`, `head` and `steps` that the
    page opens at, as `Explorer.look` takes them.
    """
    app = FastAPI(title="jari", docs_url=None, redoc_url=None, responses=DOCUMENTED)
    tell_mistakes(app)
    queue = Queue(WAITING)

    async def computed(work: Callable[[], Any]) -> Any:
        with queue.place():
            return await queue.run(work)

    async def answered(asked: _Asked, work: Callable[[], Any]) -> Response:
        explorer.check(asked.input, line)
        return answer(await computed(work))

    @app.get("/", response_class=HTMLResponse)
    async def page() -> Response:
        def drawn() -> str:
            return render(explorer.look(line, live=True, **opens))

        return HTMLResponse(await computed(drawn))

    @app.post("/api/look")
    async def look(asked: Look) -> Response:
        return await answered(asked, partial(explorer.look, asked.input, asked.steps, live=True))

    @app.post("/api/head")
    async def head(asked: Head) -> Response:
        where = (asked.view, asked.site, asked.head, asked.step, asked.query)
        return await answered(asked, partial(explorer.head, asked.input, *where))

    @app.post("/api/surgery")
    async def surgery(asked: Surgery) -> Response:
        edits = [edit.model_dump(exclude_none=True) for edit in asked.edits]
        work = partial(explorer.operate, asked.input, asked.view, edits, asked.step)
        return await answered(asked, partial(work, controls=asked.controls))

    return Guard(app, hosts)


def serve(
    explorer: Explorer,
    line: str,
    listening: socket.socket,
    **opens: Any,
) -> None:
    """Answer until interrupted. opens: see `application`."""
    hosts = running.hosts_of(listening)
    running.run(application(explorer, line, hosts, **opens), listening)
