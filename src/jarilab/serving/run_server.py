"""A server process: a listening socket, and an application that runs until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import h11
from hypercorn import protocol
from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.h11 import H11Protocol

from jarilab.core.errors import UserError
from jarilab.serving.queue import Queue

HEADER_SECONDS = 5.0
"""Time for the headers of a request, and for an idle connection."""
READ_SECONDS = 30.0
"""Time in which a client must read some of its answer."""
USE_HTTP_1 = bytes.fromhex("000000 04 00 00000000000008 07 00 00000000 00000000 0000000d")
"""HTTP/2's empty SETTINGS, and GOAWAY with the error HTTP_1_1_REQUIRED (RFC 9113, sections 6.5, 6.8 and 7)."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. port: 0 for any free one. Raises UserError if host and port cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it a restarted server waits for a minute until connections of the last one have expired.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections have it from here
            milliseconds = int(1000 * READ_SECONDS)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"{host}:{port} cannot be listened on: {reason}; choose another with --port"
        ) from None
    return listening


def address_of(listening: socket.socket) -> str:
    """The URL of a socket, such as `http://127.0.0.1:8000/`."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def hosts_of(listening: socket.socket, names: Collection[str] = ()) -> set[str]:
    """The host names that requests may use, with ports. names: further ones, with a port or without."""
    host, port = listening.getsockname()[:2]
    names = {name.lower() for name in names}
    here = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
    local = {f"{name}:{port}" for name in here}
    if port == 80:  # clients leave it out
        local |= here
    without_port = {f"{name}:{port}" for name in names if ":" not in name}
    return local | without_port | names


def run(
    app: Any,
    listening: socket.socket,
    queue: Queue,
    *,
    grace: float,
    on_ready: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Serve until Ctrl-C or SIGTERM, finish open requests within `grace` seconds, refuse the others, and exit.

    A second signal ends it at once. queue: where requests of the application wait. on_ready: called when signals are
    handled, before the first request is accepted.
    """
    # A client that sends many requests and leaves would fill the log with a warning for each answer.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    asyncio.run(_serve(app, config_of(listening, grace + 1), queue, grace, on_ready))
    sys.stdout.flush()
    sys.stderr.flush()
    # Python would wait for the thread that computes for a client that is gone, and PyTorch takes half a second of the
    # processor to unload.
    os._exit(0)


class Http1(H11Protocol):
    """HTTP/1.1 alone. Hypercorn gives connections of HTTP/2 no time limit for their first request."""

    async def handle(self, event: Event) -> None:
        """Send clients of HTTP/2 back to HTTP/1.1."""
        if isinstance(event, RawData) and event.data.startswith(b"PRI * HTTP/2.0"):
            await self.send(RawData(USE_HTTP_1))
            await self.send(Closed())
        else:
            await super().handle(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore offers to upgrade, as RFC 9110 permits."""


protocol.H11Protocol = Http1  # type: ignore[misc]  # Hypercorn has no option for it


def config_of(listening: socket.socket, grace: float) -> Config:
    """The Hypercorn settings of all servers. grace: seconds to finish open requests. Detaches the socket."""
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.accesslog = config.errorlog = None
    config.h11_max_incomplete_size = 2**16  # bytes of headers
    config.keep_alive_timeout = HEADER_SECONDS  # counts from the connection until a request is read
    config.graceful_timeout = grace
    return config


def report_faults_once(loop: asyncio.AbstractEventLoop) -> None:
    """Print one line for faults of connections. A stranger may cause thousands, such as too many open files."""
    reported: set[str] = set()

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message, error = context["message"], context.get("exception")
        if isinstance(
            error, asyncio.CancelledError
        ):  # a connection that was cut when the server ended
            return
        if not isinstance(error, OSError):
            loop.default_exception_handler(context)
        elif message not in reported:
            reported.add(message)
            print(f"jarilab: {message}: {error.strerror}", file=sys.stderr, flush=True)

    loop.set_exception_handler(report)


async def _serve(
    app: Any, config: Config, queue: Queue, grace: float, on_ready: Callable[[], None]
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    report_faults_once(loop)

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        queue.end(grace)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, on_signal, number)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(on_signal, number))
    on_ready()
    serving = asyncio.create_task(hypercorn_serve(app, config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    # From Python 3.12 on, a closed server waits for its connections without a limit.
    await asyncio.wait({serving}, timeout=config.graceful_timeout)
    stopped.cancel()
    if serving.done():
        serving.result()
