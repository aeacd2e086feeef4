"""While a model is opened, its port answers with what is being done, and then belongs to the server."""

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from jarilab.cli.waiting_page import WaitingPage
from jarilab.core.errors import UserError
from jarilab.serving import run_server


def test_the_port_tells_what_is_done_and_is_then_free_for_the_server() -> None:
    listening = run_server.listen("127.0.0.1", 0)
    address = run_server.address_of(listening)
    with WaitingPage(listening) as page:
        for task in ("opening <gpt2>", "reading it"):
            with page.working(task), pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(address, timeout=5)
            assert refused.value.code == 503
            assert refused.value.headers["Refresh"] == "1"
            assert task.replace("<", "&lt;").replace(">", "&gt;") in refused.value.read().decode()
            refused.value.close()
        page.end()
        with socket.create_connection(listening.getsockname(), timeout=5):
            connection, _ = listening.accept()
            connection.close()
    listening.close()


def test_an_idle_client_stops_nobody_and_an_error_closes_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jarilab.cli.waiting_page.CLIENT_SECONDS", 0.1)
    listening = run_server.listen("127.0.0.1", 0)
    address = run_server.address_of(listening)
    page = WaitingPage(listening)
    page.__enter__()
    with socket.create_connection(listening.getsockname(), timeout=5), pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(address, timeout=5)
    refused.value.close()
    page.__exit__(UserError, UserError("no model"), None)
    assert listening.fileno() == -1


LOADING = """
import time
from jarilab.cli.waiting_page import WaitingPage
from jarilab.serving import run_server
listening = run_server.listen("127.0.0.1", 0)
with WaitingPage(listening) as page, page.working("opening it"):
    print(listening.getsockname()[1], flush=True)
    while True:
        time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_opens_refuses_those_that_wait(number: signal.Signals) -> None:
    words = [sys.executable, "-c", LOADING]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = ("127.0.0.1", int(process.stdout.readline()))
            silent = socket.create_connection(address, timeout=10)  # the others wait behind it
            clients = [socket.create_connection(address, timeout=10) for _ in range(8)]
            for client in clients:
                client.sendall(b"POST /api/look HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            process.send_signal(number)
            for client in clients:
                said = b"".join(iter(lambda client=client: client.recv(4096), b"")).decode()
                assert said.startswith("HTTP/1.1 503 ")
                assert "opening it ..." in said or "this server is stopping" in said
                client.close()
            silent.close()
            assert (process.wait(20), process.stderr and process.stderr.read()) == (0, "")
        finally:
            process.kill()
