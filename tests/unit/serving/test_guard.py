"""Large, slow and abandoned requests, over real sockets."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from helpers.sockets import answer_of, connected, head, served
from jarilab.serving import run_server
from jarilab.serving.guard import Guard, Limits
from jarilab.serving.queue import Queue, Refusal
from jarilab.serving.responses import add_error_handlers, refusal_response

CHUNK = b"10000\r\n" + b" " * 2**16 + b"\r\n"


class Place:
    """A guarded application that counts bytes, or waits behind a queue of three places."""

    def __init__(self) -> None:
        self.queue, self.free, self.called = Queue(3), threading.Event(), 0
        self.seen: list[int] = []

    def application(self, hosts: set[str]) -> Guard:
        app = FastAPI()
        add_error_handlers(app)

        @app.post("/")
        async def counted(request: Request) -> int:
            return len(await request.body())

        @app.get("/hello")
        async def hello() -> str:
            return "hello"

        @app.post("/wait")
        async def waited() -> str:
            with self.queue.place():
                return await self.queue.run(self.work)

        @app.post("/fault")
        async def fault() -> str:
            raise RuntimeError("secret")

        limits = Limits(body=2**18, seconds=0.5, total=3 * 2**17)
        self.guard = Guard(app, hosts, limits, lambda status, _: self.seen.append(status))
        return self.guard

    def work(self) -> str:
        self.called += 1
        self.free.wait(20)
        return "done"


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.free.set()


@pytest.fixture
def address(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(run_server, "HEADER_SECONDS", 0.5)
    with served(place.application) as address:
        yield address


def dripped(client: Any, sent: bytes) -> None:
    """A byte every tenth of a second, until the server has had enough."""
    for byte in sent:
        try:
            client.sendall(bytes([byte]))
        except ConnectionError:
            return
        time.sleep(0.1)


def until(true: Any) -> None:
    for _ in range(200):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError("it never came true")


@pytest.mark.parametrize(
    ("listening", "headers"),
    [
        (("127.0.0.1", 8000), {"host": "Model.Example.org", "origin": "https://model.example.org"}),
        (("127.0.0.1", 8000), {"host": "LOCALHOST:8000", "content-type": "Application/JSON; charset=utf-8"}),
        (("127.0.0.1", 80), {"host": "localhost", "origin": "http://localhost"}),
        (("2001:db8::1", 8000), {"host": "[2001:db8::1]:8000"}),
    ],
)
def test_names_are_accepted_as_http_writes_them(listening: tuple[str, int], headers: dict[str, str]) -> None:
    socket = SimpleNamespace(getsockname=lambda: listening)
    guard = Guard(FastAPI(), run_server.hosts_of(socket, ["Model.example.ORG"]))
    client = TestClient(guard)
    assert client.post("/", headers={"content-type": "application/json", **headers}).status_code == 404
    other = {**headers, "origin": "ftp://localhost:8000"}
    assert client.post("/", headers=other).status_code == 403
    assert client.post("/", headers={**headers, "host": "localhost.example.org"}).status_code == 421


def test_large_chunked_body_is_refused_and_freed(place: Place, address: tuple[str, int]) -> None:
    with connected(address) as client:
        client.sendall(head(address, "Transfer-Encoding: chunked"))
        for _ in range(6):  # 384 kB, and it would go on
            client.sendall(CHUNK)
        status, rest = answer_of(client)
    assert (status, "expected a body of at most 262,144 bytes" in rest) == (413, True)
    until(lambda: place.guard.received == 0)


def test_small_chunked_body_is_read(address: tuple[str, int]) -> None:
    with connected(address) as client:
        client.sendall(head(address, "Transfer-Encoding: chunked", "Connection: close"))
        client.sendall(3 * CHUNK + b"0\r\n\r\n")
        status, rest = answer_of(client)
    assert (status, rest[-6:]) == (200, "196608")


def test_slow_body_is_refused(place: Place, address: tuple[str, int]) -> None:
    begun = time.monotonic()
    with connected(address) as client:
        client.sendall(head(address, "Content-Length: 1000"))
        try:
            for _ in range(40):  # a byte every tenth of a second, so that no single read is slow
                client.sendall(b" ")
                time.sleep(0.1)
        except ConnectionError:
            pass
        status, _ = answer_of(client)
    assert status in (0, 408)  # 0 where the answer was lost to a byte that came after the end
    assert place.seen == [408]
    assert time.monotonic() - begun < 5


def test_slow_headers_close_the_connection(address: tuple[str, int]) -> None:
    begun = time.monotonic()
    with connected(address) as client:
        slow = threading.Thread(target=dripped, args=(client, head(address, "Content-Length: 2")))
        slow.start()
        assert answer_of(client) == (0, "")
        slow.join()
    assert time.monotonic() - begun < 5


def test_total_of_concurrent_bodies_is_limited(place: Place, address: tuple[str, int]) -> None:
    clients = [connected(address) for _ in range(3)]
    for client in clients:
        client.sendall(head(address, f"Content-Length: {2**18}") + b" " * (2**17 + 2**16))
    answers = [answer_of(client) for client in clients]
    for client in clients:
        client.close()
    assert sorted(status for status, _ in answers)[-1] == 503
    refused = next(rest for status, rest in answers if status == 503)
    assert "retry-after: 1" in refused.lower()
    until(lambda: place.guard.received == 0)


def test_disconnected_clients_free_their_places(place: Place, address: tuple[str, int]) -> None:
    clients = [connected(address) for _ in range(3)]
    for client in clients:
        client.sendall(head(address, "Content-Length: 2", path="/wait") + b"{}")
    until(lambda: place.queue.length == 3)
    with connected(address) as late:
        late.sendall(head(address, "Content-Length: 2", "Connection: close", path="/wait") + b"{}")
        status, rest = answer_of(late)
    assert (status, "retry-after: " in rest.lower()) == (503, True)
    for client in clients:
        client.close()
    until(lambda: place.queue.length == 0)
    with connected(address) as new:
        new.sendall(head(address, "Content-Length: 2", "Connection: close", path="/wait") + b"{}")
        until(lambda: place.queue.length == 1)
        place.free.set()
        assert answer_of(new)[0] == 200
    assert place.called == 2  # the first, which ran when its client left, and the new one


def test_server_error_hides_its_cause(address: tuple[str, int], capfd: pytest.CaptureFixture[str]) -> None:
    for path, expected in (("/fault", 500), ("/", 200)):
        with connected(address) as client:
            client.sendall(head(address, "Content-Length: 2", "Connection: close", path=path) + b"{}")
            status, rest = answer_of(client)
        assert (status, "secret" in rest) == (expected, False)
    assert "RuntimeError: secret" in capfd.readouterr().err


def test_invalid_http_is_refused(address: tuple[str, int]) -> None:
    both = head(address, "Content-Length: 2", "Transfer-Encoding: chunked") + b"0\r\n\r\n"
    for sent in (b"GET /\r\n\r\n", b"\0\xff\r\n\r\n", both, head(address, "Content-Length: -1"), b"A" * 2**17):
        with connected(address) as client:
            client.sendall(sent)
            status, rest = answer_of(client)
        assert status < 500
        assert len(rest) < 2000
    with connected(address) as client:
        client.sendall(head(address, "Content-Length: 2", "Connection: close") + b"{}")
        assert answer_of(client)[0] == 200


def test_retry_after() -> None:
    queue = Queue(8)

    asyncio.run(queue.run(lambda: time.sleep(0.01)))
    with contextlib.ExitStack() as places:
        places.enter_context(queue.place())
        assert queue.retry_after == 1
        for _ in range(7):
            places.enter_context(queue.place())
        for seconds, patience in ((3.0, 24), (300.0, 60)):
            queue._seconds = seconds
            assert queue.retry_after == patience
        with pytest.raises(Refusal) as raised, queue.place():
            pass
        assert (raised.value.status, refusal_response(raised.value).headers["retry-after"]) == (503, "60")
    assert queue.length == 0


def test_an_ending_queue_refuses_new_and_unfinished_requests() -> None:
    async def main() -> list[Any]:
        queue, free = Queue(3), threading.Event()

        async def ask(ticket: str) -> Any:
            try:
                with queue.place(ticket):
                    return await queue.run(lambda: free.wait(20))
            except Refusal as refusal:
                return refusal.status, refusal.retry_after

        asking = [asyncio.create_task(ask(ticket)) for ticket in "ab"]
        await asyncio.sleep(0.05)
        assert [queue.ahead(ticket) for ticket in "abc"] == [0, 1, None]
        queue.end(0.1)
        answers = [await ask("c"), *await asyncio.gather(*asking)]
        assert queue.computing
        free.set()
        return answers

    assert asyncio.run(main()) == [(503, 5)] * 3


def test_only_http_1_is_spoken(address: tuple[str, int]) -> None:
    """Connections of HTTP/2 that say nothing would stay open."""
    with connected(address) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("0000000400" + 8 * "0"))
        assert client.recv(100)[-4:] == bytes([0, 0, 0, 13])  # HTTP_1_1_REQUIRED
        assert client.recv(100) == b""
    upgrade = ("Content-Length: 0", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABk")
    lines = head(address, *upgrade[1:], path="/nothing").replace(b"POST", b"GET")
    with connected(address) as client:
        client.sendall(lines)
        assert client.recv(100).startswith(b"HTTP/1.1 404 ")


def test_head_is_answered_without_a_body(address: tuple[str, int]) -> None:
    answers = []
    for method in (b"GET", b"HEAD"):
        with connected(address) as client:
            client.sendall(head(address, "Connection: close", path="/hello").replace(b"POST", method))
            answers.append(answer_of(client))
    (status, whole), headers = answers
    assert whole.endswith('"hello"')
    assert headers == (200, whole.removesuffix('"hello"')), status


def test_many_faults_of_connections_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        run_server.report_faults_once(loop)
        fault = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
        for _ in range(3):
            loop.call_exception_handler(fault)
        loop.call_exception_handler({"message": "cut at the end", "exception": asyncio.CancelledError()})

    asyncio.run(main())
    assert capsys.readouterr().err == "jarilab: socket.accept() out of system resource: Too many open files\n"


def test_host_names() -> None:
    with run_server.listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        hosts = run_server.hosts_of(listening, ["model.example", "other.example:443"])
    assert {f"localhost:{port}", f"model.example:{port}", "model.example", "other.example:443"} <= hosts
    assert f"other.example:443:{port}" not in hosts


def test_headers_of_every_response() -> None:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(Place().application({"here"}))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get("/nothing")

    response = asyncio.run(main())
    assert (response.status_code, response.headers["x-content-type-options"]) == (404, "nosniff")


def asked(method: str, **headers: str) -> tuple[int, str]:
    """The status and text of a request to a server that is called `here`, and `there:81`."""

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(Place().application({"here", "there:81"}))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, "/", headers=headers, content=b"{}")

    response = asyncio.run(main())
    return response.status_code, response.text


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_from_another_page_is_refused(method: str) -> None:
    for origin in ("http://evil.example", "null", "http://here.evil.example", "https://there", "http://here:8000"):
        status, text = asked(method, origin=origin, **JSON)
        assert (status, "only a page of this server" in text) == (403, True), origin
    for origin in ("http://here", "http://there:81", "https://here"):  # of a proxy that speaks HTTPS
        assert asked("POST", origin=origin, **JSON)[0] == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_to_another_name_is_refused(method: str) -> None:
    for host in ("evil.example", "here:80", "there", ""):
        status, text = asked(method, host=host, **JSON)
        assert (status, "here or there:81" in text) == (421, True), host
    assert asked("POST", host="there:81", **JSON)[0] == 200


def test_form_is_refused() -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp"):
        status, text = asked("POST", **{"content-type": kind})
        assert (status, "application/json" in text) == (415, True), kind
    assert asked("POST", **{"content-type": "application/json; charset=utf-8"})[0] == 200
