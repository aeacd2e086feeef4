"""`jarilab explore`: the page that is live, in a browser, and the command around it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.browser import Pages, ServedPages, assert_colours, canvas_bytes, until
from helpers.command import command
from jarilab.cli import main
from jarilab.explorer import Explorer, open_explorer
from jarilab.pages.kit.data_blocks import unpacked

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # as a person's terminal has it


@contextmanager
def started(*arguments: Any) -> Iterator[subprocess.Popen[str]]:
    """The command as a process, which does not live on whatever happens."""
    command = [sys.executable, "-m", "jarilab", "explore", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def address_of(process: subprocess.Popen[str]) -> str:
    """Where it says that the page is."""
    said = process.stdout.readline() if process.stdout else ""
    told = r"http://127\.0\.0\.1:\d+/    open this address in a browser; Ctrl-C ends it\n"
    assert re.fullmatch(told, said), said + str(ended(process))
    return said.split()[0]


# Live ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(runs: Path) -> Iterator[str]:
    """The address of a page of two models."""
    opens = ("--site", "encoder.0", "--head", 0)
    with started(runs / "none", runs / "rotary", "--input", "12+7", *opens, "--port", 0) as process:
        yield address_of(process)
        process.send_signal(signal.SIGINT)
        assert ended(process)[1:] == ("", "")


@pytest.mark.slow
def test_it_stops_while_it_is_asked(runs: Path) -> None:
    """What is not answered within the grace gets 503 as JSON, and nothing is printed."""
    asked = {"input": "12+7", "edits": [{"kind": "head", "site": "encoder.0", "head": 0}]}
    with started(runs / "rotary", "--input", "12+7", "--port", 0) as process:
        url = f"{address_of(process)}api/surgery"
        with ThreadPoolExecutor(16) as clients:
            answers = [
                clients.submit(httpx.post, url, json={**asked, "input": f"{number}+7"}, timeout=60)
                for number in range(16)
            ]
            while not any(answer.done() for answer in answers):
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            code, _, said = ended(process)
            assert (code, "Traceback" in said) == (0, False), said
        # On a busy machine a client may come after the end: it is refused, and asked nothing.
        came = [answer.result() for answer in answers if not isinstance(answer.exception(), httpx.ConnectError)]
        assert {answer.status_code for answer in came} <= {200, 503}
        assert all("error" in answer.json() for answer in came if answer.status_code == 503)


@pytest.fixture(scope="module")
def expected(runs: Path) -> Explorer:
    """The same models, in this process."""
    return open_explorer([runs / "none", runs / "rotary"])


@pytest.fixture
def opened(browser: Any, tmp_path: Path, live: str) -> Iterator[tuple[Any, ServedPages]]:
    watched = ServedPages(browser, tmp_path, live)
    page = watched.visit(live)
    yield page, watched
    for context in watched.contexts:
        context.close()
    assert (watched.troubles, watched.foreign) == ([], [])


def ask(page: Any, line: str) -> None:
    page.locator("#input").fill(line)
    page.keyboard.press("Enter")
    page.wait_for_function("() => !document.documentElement.hasAttribute('aria-busy')")


@pytest.mark.long
@pytest.mark.browser
def test_another_input_runs(opened: tuple[Any, ServedPages], expected: Explorer) -> None:
    page, _ = opened
    for line in ("12+7", "3+0"):
        if line != "12+7":
            ask(page, line)
        for number, view in enumerate(expected.look(line, live=True)["views"]):
            card = page.locator(".model").nth(number)
            until(page, lambda card=card, view=view: f"expected {view['expected']}" in card.text_content())
            said = card.locator(".token.big").text_content()
            assert said == (view["answer"] or "∅")
            assert_colours(canvas_bytes(page, number)[..., :3], unpacked(view["sites"][0]["weights"])[0])
    assert "input=3%2B0" in page.url
    assert page.title().startswith("3+0")
    page.reload()
    until(page, lambda: page.locator(".queries").first.inner_text().split() == ["3", "+", "0"])
    page.go_back()
    until(page, lambda: page.locator(".queries").first.inner_text().split() == ["1", "2", "+", "7"])
    assert page.locator("#input").input_value() == "12+7"
    page.locator("#input").focus()  # as it is after Enter: the field follows the page all the same
    page.go_forward()
    until(page, lambda: page.locator(".queries").first.inner_text().split() == ["3", "+", "0"])
    assert page.locator("#input").input_value() == "3+0"


@pytest.mark.slow
@pytest.mark.browser
def test_an_input_that_cannot_be_read_is_told_and_the_page_stays(opened: tuple[Any, ServedPages]) -> None:
    page, watched = opened
    before = canvas_bytes(page)
    ask(page, "1+x")
    assert "no token for 'x'" in page.get_by_role("alert").text_content()
    assert (canvas_bytes(page) == before).all()
    assert page.locator(".queries").first.inner_text().split() == ["1", "2", "+", "7"]
    assert page.locator("#input").input_value() == "1+x"
    assert "input" not in page.url
    ask(page, "3+0")
    until(page, lambda: page.locator(".queries").first.inner_text().split() == ["3", "+", "0"])
    assert page.locator("#error").text_content() == ""
    assert len(watched.troubles) == 1  # Chromium's own line on the console
    assert "400" in watched.troubles.pop()


@pytest.mark.browser
def test_a_head_is_computed_when_it_is_opened(opened: tuple[Any, ServedPages]) -> None:
    page, watched = opened
    page.locator("[data-view='0'][data-site='decoder.0.cross'][data-head='1']").click()
    for panel in ("walk", "lens", "parts"):
        page.locator(f"#tab-{panel}").click()
        until(page, lambda panel=panel: page.locator(f"#panel-{panel} :is(table, canvas)").count() > 0)
    assert sum("/api/head" in address for address in watched.requests) == 2  # encoder.0 at first, then this one


@pytest.mark.browser
def test_surgery_switches_a_head_off(opened: tuple[Any, ServedPages], expected: Explorer) -> None:
    page, _ = opened
    page.locator("input[name=view] >> nth=1").check()
    page.locator("#tab-surgery").click()
    assert "No edit is applied" in page.locator("#panel-surgery").text_content()
    page.locator("[data-keep=add-head]").click()
    result = page.locator(".surgery-result")
    until(page, lambda: "larger than that of" in result.text_content())
    edits = [{"kind": "head", "site": "encoder.0", "head": 0}]
    effect = expected.operate("12+7", 1, edits)["effect"]
    assert effect["divergence"] > 0
    found = re.search(r"next-token distributions: ([\d.]+(?:·10(\S+))?)", result.text_content())
    assert found
    digits, _, power = found[1].partition("·10")
    exponent = power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or "0"
    assert float(f"{digits}e{exponent}") == pytest.approx(effect["divergence"], rel=6e-3)
    after = (
        result.locator("canvas")
        .nth(1)
        .evaluate("c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]")
    )
    assert set(zip(*[iter(after)] * 4, strict=True)) == {(0xF8, 0xF6, 0xEF, 255)}  # it looks at nothing
    page.locator("#panel-surgery").get_by_role("button", name="Undo: encoder.0 head 0 off").click()
    until(page, lambda: not page.locator(".edited").count())
    page.locator("[data-keep=add-place]").click()  # which has no other place to be compared with
    until(page, lambda: "no edits of this kind at random other places" in result.text_content())


@pytest.mark.browser
def test_scrub_to_the_untrained_model(opened: tuple[Any, ServedPages], expected: Explorer) -> None:
    page, _ = opened
    page.locator("#scrub").focus()
    page.keyboard.press("Home")
    until(page, lambda: "step 0" in page.locator(".pane h3").first.text_content())
    views = expected.look("12+7", {0: 0, 1: 0}, live=True)["views"]
    for number, view in enumerate(views):
        assert_colours(canvas_bytes(page, number)[..., :3], unpacked(view["sites"][0]["weights"])[0])
    page.reload()
    until(page, lambda: "step 0" in page.locator(".pane h3").first.text_content())
    page.go_back()
    until(page, lambda: "step 12" in page.locator(".pane h3").first.text_content())


# The command ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_figure_is_saved(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "map.svg"
    opens = ("--site", "decoder.0.cross", "--head", 0)
    done = command("explore", runs / "rotary", "--input", "12+7", *opens, "--save", file)
    assert done.stdout == f"{file}: a figure of decoder.0.cross, head 0\n"
    assert ">decoder.0.cross, head 0</text>" in file.read_text()


@pytest.mark.browser
def test_a_file_is_saved_and_opens(pages: Pages, runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "why.html"
    said = command(
        "explore", runs / "rotary", "--input", "12+7", "--site", "decoder.0.cross", "--head", 0, "--save", file
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert re.fullmatch(rf"{re.escape(str(file))}: 0\.\d MB, opens in any browser without a network\n", said.stdout)
    page = pages.open(file.read_text())
    assert page.locator("#head-title").text_content() == "decoder.0.cross, head 0"
    assert re.match(r"L0H0 · \S*decoder\.layers\.0\.cross_attention", page.locator("#head-origin").text_content())
    until(page, lambda: page.locator("#panel-walk canvas").count() > 0)


def test_a_file_that_measured_only_a_part_is_saved_with_a_sentence(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jarilab.explorer.session.SAVING_SECONDS", 1e-9)
    monkeypatch.setattr("jarilab.explorer.run_subject.EFFECTS_SECONDS", 1e-9)
    main(["explore", str(runs / "rotary"), "--input", "12+7", "--save", str(tmp_path / "part.html")])
    assert "not fully compared with chance" in capsys.readouterr().err


def test_without_an_input_an_example_is_looked_at_and_opened(runs: Path, tmp_path: Path) -> None:
    file, opened = tmp_path / "example.html", tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    command = [sys.executable, "-m", "jarilab", "explore", runs / "rotary", "--save", file, "--open", "--still"]
    environment = {**ENVIRONMENT, "BROWSER": f"{browser} %s"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0
    assert done.stderr in ("", "jarilab: looking at 12+1 ...\n")  # which is told where it takes a while
    assert file.is_file()
    assert opened.read_text() == f"{file.as_uri()}\n"


@pytest.mark.slow
def test_mistakes_end_with_2_and_one_line(runs: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(runs / "rotary", bare, ignore=shutil.ignore_patterns("checkpoints"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        mistakes = [
            ((bare, "--input", "1+2"), "checkpoint"),
            ((runs / "rotary", "--input", "1+x"), "no token for 'x'"),
            ((runs / "rotary", "--input", "1+2", "--port", port), f"127.0.0.1:{port} cannot be listened on: Address"),
            ((tmp_path / "nowhere", "--input", "1+2"), "nowhere"),
            ((runs / "rotary", "--input", "1+2", "--site", "encoder.9", "--port", 0), "encoder.9"),
            ((runs / "rotary", "--input", "1+2", "--save", tmp_path / "no" / "where" / "x.html"), "x.html"),
            ((runs / "rotary", "--input", "1+2", "--save", tmp_path / "x.gif"), "got '.gif'; name it such as"),
            (
                (runs / "rotary", "--input", "1+2", "--save", "/dev/null"),
                "not a regular file; write such as",
            ),
            (
                (runs / "rotary", "--input", "1+2", "--save", ""),
                "--save expects a file or a folder, got nothing; write",
            ),
            (
                (runs / "rotary", "--input", "1+2", "--save", tmp_path),
                "holds bare, which is of no saved page; choose another",
            ),
            ((runs / "rotary", "--input", "1+2", "--head", 99, "--port", 0), "heads 0 to"),
        ]
        for arguments, words in mistakes:
            said = command("explore", *arguments)
            assert (said.returncode, said.stdout) == (2, ""), said.stderr
            assert words in said.stderr
            assert said.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("asked", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_it_ends_when_it_is_interrupted(runs: Path, asked: signal.Signals) -> None:
    with started(runs / "rotary", "--input", "1+2", "--port", 0) as process:
        host, port = address_of(process).removeprefix("http://").strip("/").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as held:  # a browser holds its connection
            held.sendall(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            assert held.recv(12) == b"HTTP/1.1 200"
            process.send_signal(asked)
            code, _, err = ended(process)
    assert code in ({0, 130} if asked == signal.SIGINT else {0, 143, -signal.SIGTERM})
    assert err == ""
