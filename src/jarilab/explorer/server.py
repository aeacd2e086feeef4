"""The page, live: another input runs as soon as it is typed. For one person on this machine.

It listens on loopback unless told otherwise, answers only requests that name its own host and come from its own page,
and reads small JSON only. One request computes at a time; the others wait, and past `WAITING` of them are sent away.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.config import Config
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from jarilab.errors import UserError
from jarilab.explorer import render
from jarilab.explorer.session import Explorer
from jarilab.images import HELD_OUT
from jarilab.web.page import to_json

LARGEST_BODY = 2**20
WAITING = 16
SHOWN = 400
"""Characters of the beginning and of the end of an error that are told: it may quote all of what was asked."""
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


class _Edit(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PlaceEdit(_Edit):
    """Tokens at other places."""

    kind: Literal["place"]
    side: Literal["source", "target", "both"] = "both"
    how: Literal["off", "shift", "stretch", "shuffle"]
    amount: float | None = None


class HeadEdit(_Edit):
    """A head switched off."""

    kind: Literal["head"]
    site: str
    head: int


class LinkEdit(_Edit):
    """One query and one key; of all heads where none is named."""

    kind: Literal["link"]
    site: str
    head: int | None = None
    query: int
    key: int
    how: Literal["force", "erase"]


Edit = Annotated[PlaceEdit | HeadEdit | LinkEdit, Field(discriminator="kind")]


class Surgery(_Asked):
    """Changes to one view's forward."""

    view: int = 0
    step: int | None = None
    edits: list[Edit] = Field(min_length=1, max_length=64)
    controls: bool = True


class TooManyError(Exception):
    """More requests wait than can be kept waiting."""


def application(explorer: Explorer, line: str, hosts: set[str], **opens: Any) -> FastAPI:
    """The server's part of the page.

    hosts: what a request may call this machine, port included. opens: the `site`, `head` and `steps` that the
    page opens at, as `Explorer.look` takes them.
    """
    app = FastAPI(title="jari", docs_url=None, redoc_url=None, openapi_url=None)
    _guard(app, hosts)
    _tell_mistakes(app)
    queue = Queue()
    reads_files = any(opened.run.predictor.reads_files for opened in explorer.opened)

    async def answer(asked: _Asked, work: Callable[[], Any]) -> Response:
        if reads_files:
            _check_image(asked.input.strip(), line.strip())
        return _answer(await queue.run(work))

    @app.get("/")
    async def page() -> Response:
        def drawn() -> str:
            return render(explorer.look(line, live=True, **opens))

        return HTMLResponse(await run_in_threadpool(drawn))

    @app.post("/api/look")
    async def look(asked: Look) -> Response:
        return await answer(asked, partial(explorer.look, asked.input, asked.steps, live=True))

    @app.post("/api/head")
    async def head(asked: Head) -> Response:
        where = (asked.view, asked.site, asked.head, asked.step, asked.query)
        return await answer(asked, partial(explorer.head, asked.input, *where))

    @app.post("/api/surgery")
    async def surgery(asked: Surgery) -> Response:
        edits = [edit.model_dump(exclude_none=True) for edit in asked.edits]
        work = partial(explorer.operate, asked.input, asked.view, edits, asked.step)
        return await answer(asked, partial(work, controls=asked.controls))

    return app


class Queue:
    """Computes one request at a time; the others wait."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        """What `work` gives. Raises TooManyError where too many wait already."""
        if self.waiting >= WAITING:
            raise TooManyError
        self.waiting += 1
        try:
            async with self.turn:
                return await run_in_threadpool(work)
        finally:
            self.waiting -= 1


def _guard(app: FastAPI, hosts: set[str]) -> None:
    """What is asked by another page, or is no small JSON, is refused; every answer has the headers."""

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        refused = await _refused(request, hosts)
        response = refused if refused is not None else await go_on(request)
        response.headers.update(HEADERS)
        return response


def _tell_mistakes(app: FastAPI) -> None:
    """Every mistake is answered as JSON, in a sentence."""

    @app.exception_handler(UserError)
    async def wrong(_: Request, error: UserError) -> Response:
        return _error(str(error), 400)

    @app.exception_handler(TooManyError)
    async def busy(_: Request, error: TooManyError) -> Response:
        return _error(f"{WAITING} requests are waiting already; try again in a moment", 503)

    @app.exception_handler(RequestValidationError)
    async def misread(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _error("the body is no JSON", 422)
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return _error(f"{where}: {first['msg']}", 422)

    @app.exception_handler(HTTPException)
    async def nothing(request: Request, error: HTTPException) -> Response:
        return _error(f"{request.method} {request.url.path}: {error.detail}", error.status_code)


def _answer(content: Any, status: int = 200) -> Response:
    return Response(to_json(content), status, media_type="application/json")


def _error(text: str, status: int) -> Response:
    """What went wrong: the beginning and the end where it is long, since the end says what to do."""
    if len(text) > 2 * SHOWN:
        text = f"{text[:SHOWN]} ... {text[-SHOWN:]}"
    return _answer({"error": text}, status)


def _check_image(asked: str, first: str) -> None:
    """Raises UserError for a file that nobody has shown: errors quote how a file begins, and pages show images.

    first: the input from the command line, in whose folder the others may lie.
    """
    if asked == first or re.fullmatch(rf"{HELD_OUT}\d+", asked):
        return
    named = first and not first.startswith(HELD_OUT)
    folder = Path(first).parent.resolve() if named else None
    try:
        if folder is not None and Path(asked).resolve().parent == folder:
            return
    except (OSError, ValueError, RuntimeError):  # no path at all, or one that leads in a circle
        pass
    where = f", or an image in the folder {folder}" if folder is not None else ""
    raise UserError(
        f"expected the number of a held-out image, such as {HELD_OUT}3{where}; got {asked[:80]!r}; open the page "
        "with --input and an image to look at those in its folder"
    )


async def _refused(request: Request, hosts: set[str]) -> Response | None:
    """Why a request is not answered: a foreign host (DNS rebinding), another page's request, a large body."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if host not in hosts:
        return _error(f"this is not {host}; the page is at {sorted(hosts)[0]}", 421)
    if origin is not None and origin.removeprefix("http://") not in hosts:
        return _error("only the page itself may ask", 403)
    if request.method == "POST":
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _error("expected application/json", 415)
        length = request.headers.get("content-length", "")
        if not length.isdecimal():
            return _error("expected a Content-Length", 411)
        if int(length) > LARGEST_BODY:
            return _error(
                f"expected at most {LARGEST_BODY >> 20} MB, got {int(length) >> 20} MB", 413
            )
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
        raise UserError(
            f"{host}:{port} cannot be listened on: {reason}; choose another with --port"
        ) from None
    return listening


def serve(
    explorer: Explorer,
    line: str,
    listening: socket.socket,
    **opens: Any,
) -> None:
    """Answer until interrupted. opens: see `application`."""
    host, port = listening.getsockname()[:2]
    hosts = {f"{name}:{port}" for name in {"127.0.0.1", "localhost", "[::1]", host}}
    config = Config()
    config.bind = [f"fd://{listening.fileno()}"]
    config.accesslog = config.errorlog = None
    config.h11_max_incomplete_size = 2**16
    asyncio.run(hypercorn_serve(application(explorer, line, hosts, **opens), config))  # type: ignore[arg-type]
