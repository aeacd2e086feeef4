"""What a server does before it can answer, as a page that reloads itself and as a line in the terminal."""

from __future__ import annotations

import contextlib
import html
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from jarilab.training.progress import working

CLIENT_SECONDS = 1.0
"""Time for a request, so that no client stops the others."""
STOP_SECONDS = 3.0
"""Time to refuse the clients that wait when the process is asked to stop."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_END = b"\0"


class WaitingPage:
    """Answers on a listening socket until the server itself does, within a `with` block.

    listening: the socket; None writes to the terminal only. Every answer is 503 with what is done at the moment. Ctrl-C
    and SIGTERM refuse the clients that wait, and end the process with code 0, as when the server itself is stopped.
    """

    def __init__(self, listening: socket.socket | None):
        self._listening, self._text, self._address = listening, "", ""
        self._shown: Any = None
        if listening is not None:
            from jarilab.serving.run_server import address_of  # which the extra `explore` installs

            self._address = f"{address_of(listening)}: "
        self._thread = threading.Thread(target=self._answer_all, daemon=True)

    def __enter__(self) -> WaitingPage:
        if self._listening is not None:
            self._bell, self._rung = socket.socketpair()
            self._bell.setblocking(False)
            # Python would run a handler only after the library call in which a model is loaded. The bell rings at once.
            self._handlers = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
            signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
            self._thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.end()
        if error is not None and self._listening is not None:
            self._listening.close()

    def end(self) -> None:
        """Leave the socket to the server, and the signals, unless it handles them already."""
        if not self._thread.is_alive():
            return
        self._bell.send(_END)
        self._thread.join()
        current = signal.set_wakeup_fd(-1)
        if current != self._bell.fileno():
            signal.set_wakeup_fd(current)  # of the server
        else:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        for end in (self._bell, self._rung):
            end.close()

    @contextlib.contextmanager
    def working(self, description: str) -> Iterator[None]:
        """A block of work with this description, such as `opening gpt2`."""
        self._text = f"{description} ..."
        with working(f"{self._address}{description}") as self._shown:
            yield

    def _answer_all(self) -> None:
        assert self._listening is not None
        while True:
            ready, _, _ = select.select([self._listening, self._rung], [], [])
            if self._rung not in ready:
                self._answer_one(CLIENT_SECONDS)
            elif (rung := self._rung.recv(1)) == _END:
                return
            elif rung[0] in _SIGNALS:
                self._stop()

    def _stop(self) -> None:
        """Refuse the clients that wait, and end the process."""
        assert self._listening is not None
        self._text = "this server is stopping; try again later"
        deadline = time.monotonic() + STOP_SECONDS
        # A closed socket resets the connections of those that nobody has accepted.
        while time.monotonic() < deadline and select.select([self._listening], [], [], 0)[0]:
            self._answer_one(STOP_SECONDS / 30)
        self._listening.close()
        if self._shown is not None:
            self._shown.end()  # a spinner hides the cursor
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)

    def _answer_one(self, seconds: float) -> None:
        assert self._listening is not None
        with contextlib.suppress(OSError):
            connection, _ = self._listening.accept()
            with connection:
                connection.settimeout(seconds)
                connection.recv(1 << 16)
                connection.sendall(self._answer())
                # What is closed with unread bytes is reset, and the client may lose the answer.
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1 << 16)

    def _answer(self) -> bytes:
        text = html.escape(self._text)
        page = f'<!doctype html><meta charset="utf-8"><title>jari</title><p style="font: 1rem sans-serif">{text}'
        body = page.encode()
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html; charset=utf-8\r\nRefresh: 1\r\n"
            f"Retry-After: 1\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body
