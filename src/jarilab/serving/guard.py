"""ASGI middleware that refuses requests of other hosts and pages, and large, slow or abandoned ones.

The size of a body is counted as it arrives, whatever its headers say. The application is called with the complete body.
Its work is cancelled when the client disconnects.
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

from jarilab.serving.queue import Refusal
from jarilab.serving.responses import error_response, refusal_response

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
LINGER_SECONDS = 1.0
"""Seconds in which a refused client may finish sending."""
CLIENT_CLOSED = 499
"""The status of a request whose client disconnected before the answer, as in nginx."""


@dataclass(frozen=True)
class Limits:
    """Limits of bodies. body: bytes of one. seconds: time to receive it. total: bytes of all that arrive at once."""

    body: int = 2**20
    seconds: float = 10.0
    total: int = 2**26


class Guard:
    """An application behind limits.

    hosts: names of this machine that a request may use, with the port. observe: called with the status and the seconds
    of every response.
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
        self.received = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        incoming, outgoing = _Incoming(self, receive), _Outgoing(send, is_head)
        if is_head:  # answered as GET, without the body
            scope = {**scope, "method": "GET"}
        begun = time.monotonic()
        # Reads until the client disconnects: a server blocks while its messages are not received.
        listening = asyncio.create_task(incoming.listen())
        try:
            await self._answer(scope, incoming, outgoing)
        except Refusal as refusal:
            await _refuse(refusal_response(refusal), scope, incoming, outgoing)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            if not outgoing.status:
                fault = error_response("an error of the server itself; see its log", 500)
                await _refuse(fault, scope, incoming, outgoing)
        finally:
            incoming.clear()
            listening.cancel()
            self.observe(outgoing.status or CLIENT_CLOSED, time.monotonic() - begun)

    async def _answer(self, scope: Scope, incoming: _Incoming, outgoing: _Outgoing) -> None:
        self._check(scope["method"], Headers(scope=scope))
        if scope["method"] != "GET":
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
        """Raises Refusal for another host (DNS rebinding), another page, and a body declared as large or not JSON."""
        if headers.get("host", "").lower() not in self.hosts:
            names = " or ".join(sorted(self.hosts))
            raise Refusal(421, f"this server is called {names}; use that name")
        origin = headers.get("origin")
        # A proxy may speak HTTPS for this server.
        scheme, _, name = (origin or "").lower().partition("://")
        if origin is not None and (scheme not in ("http", "https") or name not in self.hosts):
            raise Refusal(403, "only a page of this server may send requests")
        if method != "POST":
            return
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "expected application/json; send Content-Type: application/json")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.limits.body:
            raise self.too_large

    @property
    def too_large(self) -> Refusal:
        """The refusal of a large body."""
        return Refusal(413, f"expected a body of at most {self.limits.body:,} bytes; ask for less")


class _Incoming:
    """The messages of a client: its body, and that it disconnects."""

    def __init__(self, guard: Guard, receive: Receive):
        self._guard, self._receive = guard, receive
        self._parts: list[bytes] = []
        self._size = 0
        self._refusal: Refusal | None = None
        self.ready = asyncio.Event()
        """The body is complete, or refused."""
        self.ended = asyncio.Event()
        """The client has sent everything."""
        self.gone = asyncio.Event()

    async def listen(self) -> None:
        """Receive until the client disconnects, and store the body within the limits."""
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
        self._guard.received += len(part)
        if self._size > self._guard.limits.body:
            self._refuse(self._guard.too_large)
        elif self._guard.received > self._guard.limits.total:
            self._refuse(
                Refusal(503, "too many large bodies arrive at the same time; try again later", 1)
            )

    def _refuse(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self.clear()
        self.ready.set()

    def clear(self) -> None:
        """Drop the stored body."""
        self._guard.received -= self._size
        self._parts, self._size = [], 0

    async def body(self) -> None:
        """Wait for the complete body. Raises Refusal for a large or slow one."""
        seconds = self._guard.limits.seconds
        try:
            async with asyncio.timeout(seconds):
                await self.ready.wait()
        except TimeoutError:
            self._refuse(Refusal(408, f"expected the whole body within {seconds:g} seconds"))
        if self._refusal is not None:
            raise self._refusal

    async def replay(self) -> Message:
        """The body for the application, then the disconnect of the client."""
        if self._parts:
            body = b"".join(self._parts)
            self._parts = []
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}


class _Outgoing:
    """The messages to a client, with the headers of every response. is_head: without bodies."""

    def __init__(self, send: Send, is_head: bool):
        self._send, self._is_head = send, is_head
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message).update(HEADERS)
        elif self._is_head:
            message = {**message, "body": b""}
        await self._send(message)


async def _refuse(response: Any, scope: Scope, incoming: _Incoming, outgoing: _Outgoing) -> None:
    """Answer a client that may still be sending."""
    # If the connection closed at once, the client would see an error of the connection instead of the reason.

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await outgoing.send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    await incoming.ended.wait()
            message = {"type": "http.response.body", "body": b""}
        await outgoing.send(message)

    await response(scope, incoming.replay, send)
