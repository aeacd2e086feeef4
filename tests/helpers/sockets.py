"""An application on a real port, and clients that write to it byte by byte."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypercorn.asyncio import serve

from jarilab.serving import run_server


@contextmanager
def served(application: Any) -> Iterator[tuple[str, int]]:
    """Where it is served, in a thread. application: makes it of the names that requests may call it by."""
    listening = run_server.listen("127.0.0.1", 0)
    address = listening.getsockname()[:2]
    app = application(run_server.hosts_of(listening))
    begun = threading.Event()
    ends: list[Any] = []

    async def main() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        ends.append(lambda: loop.call_soon_threadsafe(stop.set))
        begun.set()
        await serve(app, run_server.config_of(listening, 1.0), shutdown_trigger=stop.wait)  # type: ignore[arg-type]

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    begun.wait(10)
    try:
        yield address
    finally:
        ends[0]()
        thread.join(10)


def connected(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=20)


def head(address: tuple[str, int], *lines: str, path: str = "/") -> bytes:
    """The headers of a request with a body of JSON."""
    host, port = address
    first = (f"POST {path} HTTP/1.1", f"Host: {host}:{port}", "Content-Type: application/json")
    return "".join(f"{line}\r\n" for line in (*first, *lines, "")).encode()


def answer_of(client: socket.socket) -> tuple[int, str]:
    """The status and the rest of an answer, until the server closes; 0 where there is none."""
    read = b""
    try:
        while part := client.recv(2**16):
            read += part
    except ConnectionError:
        pass
    status, _, rest = read.decode().partition("\r\n")
    return int(status.split()[1]) if status else 0, rest
