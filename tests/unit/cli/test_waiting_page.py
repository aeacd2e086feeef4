"""While a model is opened, its port answers with what is being done, and then belongs to the server."""

import socket
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
