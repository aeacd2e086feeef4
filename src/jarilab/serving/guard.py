"""Before and behind an application: foreign requests and large, slow or abandoned ones end here.

Bodies are counted as they come, whatever their headers say, and are whole before the application is called. A client
that leaves ends the work for it. Pure ASGI, so that any server can run it.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jarilab.serving.answers import mistake, refused
from jarilab.serving.queue import Refusal

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
LINGER = 1.0
"""Seconds in which a refused client may end what it is sending, so that it reads why."""
LEFT = 499
"""The status of a request whose client left before the answer, as nginx writes it."""


@dataclass(frozen=True)
class Limits:
    """body: bytes of one. seconds: in which it must have come. held: bytes of all that are coming in at the same
    time."""

    body: int = 2**20
    seconds: float = 10.0
    held: int = 2**26


class Guard:
    """An application behind its limits.

    hosts: what a request may call this machine, port included. observe: told the status and the seconds of every
    answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        limits: Limits | None = None,
        observe: Callable[[int, float], None] = lambda status, seconds: None,
    ):
        self.app, self.hosts, self.limits = app, hosts, limits or Limits()
        self.observe = observe
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        incoming, outgoing = _Incoming(self, receive), _Outgoing(send)
        begun = time.monotonic()
        # Reads until the client is gone: a server whose messages nobody takes stands still.
        listening = asyncio.create_task(incoming.listen())
        try:
            await self._answer(scope, incoming, outgoing)
        except Refusal as refusal:
            await _refuse(refused(refusal), scope, incoming, outgoing)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            if not outgoing.status:
                fault = mistake("a fault of the server's own; it is in its log", 500)
                await _refuse(fault, scope, incoming, outgoing)
        finally:
            incoming.forget()
            listening.cancel()
            self.observe(outgoing.status or LEFT, time.monotonic() - begun)

    async def _answer(self, scope: Scope, incoming: _Incoming, outgoing: _Outgoing) -> None:
        self._check(scope["method"], Headers(scope=scope))
        if scope["method"] not in ("GET", "HEAD"):
            await incoming.body()
        work = asyncio.create_task(self.app(scope, incoming.replay, outgoing.send))  # type: ignore[arg-type]
        gone = asyncio.create_task(incoming.gone.wait())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work

    def _check(self, method: str, headers: Headers) -> None:
        """Raises Refusal for a foreign host (DNS rebinding), another page's request, and a body that says it is large
        or no JSON."""
        if headers.get("host", "") not in self.hosts:
            names = " or ".join(sorted(self.hosts))
            raise Refusal(421, f"this server is called {names}; ask it by that name")
        origin = headers.get("origin")
        if origin is not None and origin.removeprefix("http://") not in self.hosts:
            raise Refusal(403, "only a page of this server itself may ask")
        if method != "POST":
            return
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refusal(415, "expected application/json; send Content-Type: application/json")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.limits.body:
            raise self.too_large

    @property
    def too_large(self) -> Refusal:
        """What is said of a large body."""
        return Refusal(413, f"expected a body of at most {self.limits.body:,} bytes; ask for less")


class _Incoming:
    """What a client sends: a body, and that it leaves."""

    def __init__(self, guard: Guard, receive: Receive):
        self._guard, self._receive = guard, receive
        self._parts: list[bytes] = []
        self._size = 0
        self._refusal: Refusal | None = None
        self.ready = asyncio.Event()
        """The body is whole, or refused."""
        self.ended = asyncio.Event()
        """The client sends nothing more."""
        self.gone = asyncio.Event()

    async def listen(self) -> None:
        """Take all that comes, and keep no more of it than may be kept."""
        while (message := await self._receive())["type"] == "http.request":
            self._take(message.get("body", b""))
            if not message.get("more_body", False):
                self.ready.set()
                self.ended.set()
        for event in (self.ready, self.ended, self.gone):
            event.set()

    def _take(self, part: bytes) -> None:
        if self.ready.is_set():
            return
        self._parts.append(part)
        self._size += len(part)
        self._guard.held += len(part)
        if self._size > self._guard.limits.body:
            self._refuse(self._guard.too_large)
        elif self._guard.held > self._guard.limits.held:
            self._refuse(Refusal(503, "too many large bodies come in at the same time", 1))

    def _refuse(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self.forget()
        self.ready.set()

    def forget(self) -> None:
        """Let go of what was kept."""
        self._guard.held -= self._size
        self._parts, self._size = [], 0

    async def body(self) -> None:
        """Wait for the whole body. Raises Refusal for a large or slow one."""
        seconds = self._guard.limits.seconds
        try:
            async with asyncio.timeout(seconds):
                await self.ready.wait()
        except TimeoutError:
            self._refuse(Refusal(408, f"expected the whole body within {seconds:g} seconds"))
        if self._refusal is not None:
            raise self._refusal

    async def replay(self) -> Message:
        """The body for the application; then nothing more until the client leaves."""
        if self._parts:
            body = b"".join(self._parts)
            self._parts = []
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}


class _Outgoing:
    """What a client is sent, with the headers of every answer."""

    def __init__(self, send: Send):
        self._send = send
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message).update(HEADERS)
        await self._send(message)


async def _refuse(response: Any, scope: Scope, incoming: _Incoming, outgoing: _Outgoing) -> None:
    """Answer a client that may be sending still: closed at once, it would not read why."""

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await outgoing.send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    await incoming.ended.wait()
            message = {"type": "http.response.body", "body": b""}
        await outgoing.send(message)

    await response(scope, incoming.replay, send)
