"""The page, live: another input runs as soon as it is typed. For one person on this machine.

It listens on loopback unless told otherwise, answers only requests that name its own host and come from its own page,
and reads small JSON only. One request computes at a time; the others wait, and past `WAITING` of them are sent away.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.config import Config
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from jari.errors import UserError
from jari.explorer import render
from jari.explorer.session import Explorer
from jari.page import to_json

LARGEST_BODY = 2**20
WAITING = 16
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Text = Field(max_length=100_000)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")
    input: str = Text


class Look(_Asked):
    """An input, and steps of training by the number of the view."""

    steps: dict[int, int] = Field(default_factory=dict, max_length=64)


class Head(_Asked):
    """One head of one view."""

    view: int = 0
    site: str
    head: int = 0
    step: int | None = None
    query: int = 0


class Edit(BaseModel):
    """One change of a forward: of the places, of a head, of a link."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["place", "head", "link"]
    side: Literal["source", "target", "both"] = "both"
    how: Literal["off", "shift", "stretch", "shuffle", "force", "erase"] | None = None
    amount: float | None = None
    site: str | None = None
    head: int | None = None
    query: int | None = None
    key: int | None = None


class Surgery(_Asked):
    """Changes to one view's forward."""

    view: int = 0
    step: int | None = None
    edits: list[Edit] = Field(min_length=1, max_length=64)


class TooManyError(Exception):
    """More requests wait than can be kept waiting."""


def application(explorer: Explorer, line: str, hosts: set[str], **opens: Any) -> FastAPI:
    """The server's part of the page.

    hosts: what a request may call this machine, port included. opens: the `site` and `head` that the page opens at.
    """
    app = FastAPI(title="jari", docs_url=None, redoc_url=None, openapi_url=None)
    turn, waiting = asyncio.Lock(), 0

    async def in_turn(work: Callable[[], Any]) -> Response:
        nonlocal waiting
        if waiting >= WAITING:
            raise TooManyError
        waiting += 1
        try:
            async with turn:
                return _answer(await run_in_threadpool(work))
        finally:
            waiting -= 1

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        refused = await _refused(request, hosts)
        response = refused if refused is not None else await go_on(request)
        response.headers.update(HEADERS)
        return response

    @app.get("/")
    async def page() -> Response:
        return HTMLResponse(await run_in_threadpool(lambda: render(explorer.look(line, live=True, **opens))))

    @app.post("/api/look")
    async def look(asked: Look) -> Response:
        return await in_turn(lambda: explorer.look(asked.input, asked.steps, live=True))

    @app.post("/api/head")
    async def head(asked: Head) -> Response:
        return await in_turn(
            lambda: explorer.head(asked.input, asked.view, asked.site, asked.head, asked.step, asked.query)
        )

    @app.post("/api/surgery")
    async def surgery(asked: Surgery) -> Response:
        edits = [edit.model_dump(exclude_none=True) for edit in asked.edits]
        return await in_turn(lambda: explorer.operate(asked.input, asked.view, edits, asked.step))

    @app.exception_handler(UserError)
    async def wrong(_: Request, error: UserError) -> Response:
        return _answer({"error": str(error)}, 400)

    @app.exception_handler(TooManyError)
    async def busy(_: Request, error: TooManyError) -> Response:
        return _answer({"error": f"{WAITING} requests are waiting already; try again in a moment"}, 503)

    @app.exception_handler(RequestValidationError)
    async def misread(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _answer({"error": "the body is no JSON"}, 422)
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return _answer({"error": f"{where}: {first['msg']}"}, 422)

    @app.exception_handler(HTTPException)
    async def nothing(request: Request, error: HTTPException) -> Response:
        return _answer({"error": f"{request.method} {request.url.path}: {error.detail}"}, error.status_code)

    return app


def _answer(content: Any, status: int = 200) -> Response:
    return Response(to_json(content), status, media_type="application/json")


async def _refused(request: Request, hosts: set[str]) -> Response | None:
    """Why a request is not answered: a foreign host (DNS rebinding), another page's request, a large body."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if host not in hosts:
        return _answer({"error": f"this is not {host}; the page is at {sorted(hosts)[0]}"}, 421)
    if origin is not None and origin.removeprefix("http://") not in hosts:
        return _answer({"error": "only the page itself may ask"}, 403)
    if request.method == "POST":
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _answer({"error": "expected application/json"}, 415)
        length = request.headers.get("content-length", "")
        if not length.isdecimal():
            return _answer({"error": "expected a Content-Length"}, 411)
        if int(length) > LARGEST_BODY:
            return _answer({"error": f"expected at most {LARGEST_BODY >> 20} MB, got {int(length) >> 20} MB"}, 413)
    return None


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. port: 0 for any that is free. Raises UserError where it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{host}:{port} cannot be listened on: {reason}; choose another with --port") from None
    return listening


def serve(explorer: Explorer, line: str, listening: socket.socket, *, site: str | None = None, head: int = 0) -> None:
    """Answer until interrupted."""
    host, port = listening.getsockname()[:2]
    hosts = {f"{name}:{port}" for name in {"127.0.0.1", "localhost", "[::1]", host}}
    config = Config()
    config.bind = [f"fd://{listening.fileno()}"]
    config.accesslog = config.errorlog = None
    config.h11_max_incomplete_size = 2**16
    asyncio.run(hypercorn_serve(application(explorer, line, hosts, site=site, head=head), config))  # type: ignore[arg-type]
