"""What a server does before it can answer, as a page that reloads itself and as a line in the terminal."""

from __future__ import annotations

import contextlib
import html
import socket
import threading
from collections.abc import Iterator

from jarilab.training.progress import working

POLL_SECONDS = 0.1
CLIENT_SECONDS = 1.0
"""Time for a request, so that no client stops the others."""


class WaitingPage:
    """Answers on a listening socket until the server itself does, within a `with` block.

    listening: the socket; None writes to the terminal only. Every answer is 503 with what is done at the moment.
    """

    def __init__(self, listening: socket.socket | None):
        self._listening, self._text, self._ended = listening, "", threading.Event()
        self._address = ""
        if listening is not None:
            from jarilab.serving.run_server import address_of  # which the extra `explore` installs

            self._address = f"{address_of(listening)}: "
        self._thread = threading.Thread(target=self._answer_all, daemon=True)

    def __enter__(self) -> WaitingPage:
        if self._listening is not None:
            self._listening.settimeout(POLL_SECONDS)
            self._thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.end()
        if error is not None and self._listening is not None:
            self._listening.close()

    def end(self) -> None:
        """Leave the socket to the server."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._listening is not None:
            self._listening.settimeout(None)

    @contextlib.contextmanager
    def working(self, description: str) -> Iterator[None]:
        """A block of work with this description, such as `opening gpt2`."""
        self._text = description
        with working(f"{self._address}{description}"):
            yield

    def _answer_all(self) -> None:
        assert self._listening is not None
        while not self._ended.is_set():
            with contextlib.suppress(OSError):  # also without a client for POLL_SECONDS
                connection, _ = self._listening.accept()
                with connection:
                    connection.settimeout(CLIENT_SECONDS)
                    connection.recv(1 << 16)
                    connection.sendall(self._answer())

    def _answer(self) -> bytes:
        text = html.escape(self._text)
        page = f'<!doctype html><meta charset="utf-8"><title>jari</title><p style="font: 1rem sans-serif">{text} ...'
        body = page.encode()
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html; charset=utf-8\r\nRefresh: 1\r\n"
            f"Retry-After: 1\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body
