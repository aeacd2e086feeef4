"""`jarilab serve`: the command as a process, and its orderly end."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from helpers.command import command
from helpers.runs import language_run

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_run(tmp_path_factory.mktemp("language"))


@pytest.mark.slow
def test_what_is_in_hand_is_answered_before_it_ends(run: Path) -> None:
    words = [sys.executable, "-m", "jarilab", "serve", str(run), "--port", "0", "--grace", "60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            address = said.split()[0]
            assert said == f"{address}    answers POST {address}predict; Ctrl-C ends it\n"
            assert httpx.get(f"{address}ready").json() == {"status": "ready"}
            asked = {"inputs": ["one", "two", "three", "four"] * 8, "options": {"max_new_tokens": 2000, "seed": 3}}
            headers = {"accept": "text/event-stream"}
            lines: list[str] = []
            with httpx.stream("POST", f"{address}predict", json=asked, headers=headers, timeout=60) as answer:
                for line in answer.iter_lines():
                    lines.append(line)
                    if len(lines) == 1:  # and much is to come
                        process.send_signal(signal.SIGTERM)
            events = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
            assert (events.count("prediction"), events[-1]) == (32, "end")
            assert process.wait(30) == 0
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{address}health")
        finally:
            process.kill()


@pytest.mark.slow
def test_what_takes_longer_than_the_grace_is_refused(run: Path) -> None:
    words = [sys.executable, "-m", "jarilab", "serve", str(run), "--port", "0", "--grace", "0.2"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[0]
            asked = {"inputs": ["one", "two", "three", "four"] * 8, "options": {"max_new_tokens": 2000, "seed": 3}}
            with ThreadPoolExecutor(4) as clients:
                answers = [clients.submit(httpx.post, f"{address}predict", json=asked, timeout=60) for _ in range(4)]
                while "jarilab_queue_length 4.0" not in httpx.get(f"{address}metrics").text:
                    assert not any(answer.done() for answer in answers)
                process.send_signal(signal.SIGTERM)
                assert {answer.result().status_code for answer in answers} == {503}
                assert answers[0].result().json()["error"] == "this server is stopping; try again later"
            assert process.wait(10) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_a_port_in_use_is_a_sentence(run: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = command("serve", run, "--port", port)
    assert (said.returncode, said.stdout) == (2, "")
    assert f"127.0.0.1:{port} cannot be listened on: Address already in use" in said.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--queue", 0), "--queue: expected 1 or more"),
        (("--deadline", "soon"), "--deadline: "),
        (("--batch-sizes", 3), "did you mean --batch-size?"),
    ],
)
def test_a_wrong_limit_is_a_sentence(run: Path, flags: tuple[str, object], words: str) -> None:
    said = command("serve", run, *flags)
    assert said.returncode == 2
    assert words in said.stderr
