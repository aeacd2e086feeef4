"""The server of the live page: answers and refusals."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jarilab.core.errors import UserError
from jarilab.explorer import Explorer, open_explorer, server
from jarilab.serving import run_server
from jarilab.serving.queue import Queue

HOST = "127.0.0.1:8000"


@pytest.fixture(scope="module")
def explorer(runs: Path) -> Explorer:
    return open_explorer([runs / "none", runs / "rotary"])


def ask(explorer: Explorer, *requests: tuple[str, str, dict[str, Any]], line: str = "1+2") -> list[httpx.Response]:
    """Send requests, all at once. line: what the page was opened with."""

    async def all_at_once() -> list[httpx.Response]:
        app = server.application(explorer, line, {HOST})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{HOST}") as client:
            return await asyncio.gather(*(client.request(method, path, **how) for method, path, how in requests))

    return asyncio.run(all_at_once())


def post(explorer: Explorer, path: str, body: Any, **headers: str) -> httpx.Response:
    return ask(explorer, ("POST", path, {"json": body, "headers": headers}))[0]


def test_look_and_head(explorer: Explorer) -> None:
    page = post(explorer, "/api/look", {"input": "12+3", "steps": {"1": 0}})
    assert page.status_code == 200
    assert [view["step"] for view in page.json()["views"]] == [12, 0]
    assert page.headers["cache-control"] == "no-store"
    head = post(explorer, "/api/head", {"input": "12+3", "view": 1, "site": "encoder.0", "head": 1, "step": 0})
    assert {"steps", "scores", "lens"} <= head.json().keys()


def test_answers_say_where_the_time_went(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, body = explorer.subjects[0], {"input": "14+9"}
    tape = subject.tape

    def slow(line: str, step: int) -> Any:
        time.sleep(0.1)
        return tape(line, step)

    monkeypatch.setattr(subject, "tape", slow)
    answers = ask(explorer, *[("POST", "/api/look", {"json": body})] * 3)
    waits = []
    for response in answers:
        phases = dict(phase.split(";dur=") for phase in response.headers["server-timing"].split(", "))
        assert list(phases) == ["wait", "forward", "measure", "write"]
        assert float(phases["forward"]) >= 100
        waits.append(float(phases["wait"]))
    assert max(waits) - min(waits) >= 200  # the third waits for two others


def test_controls_give_way_to_the_next_request(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = explorer.subjects[0]
    site = subject.tape("1+2", subject.model_step(None)).sites[0]
    link = {"kind": "link", "site": site, "head": 0, "query": 0, "key": 1, "how": "erase"}
    body = {"input": "1+2", "edits": [link]}
    alone = post(explorer, "/api/surgery", body).json()["effect"]
    assert not alone["interrupted"]
    assert len(alone["controls"]) > 1
    monkeypatch.setattr(Queue, "must_give_way", lambda *_: True)  # as if another request waited
    left = post(explorer, "/api/surgery", body).json()["effect"]
    assert left["interrupted"]
    assert left["controls"] == alone["controls"][:1]


def test_requests_of_one_kind_do_not_give_way_to_each_other(explorer: Explorer) -> None:
    site = explorer.subjects[0].tape("2+1", explorer.subjects[0].model_step(None)).sites[0]
    link = {"kind": "link", "site": site, "head": 0, "query": 0, "key": 1, "how": "erase"}
    requests = [
        ("surgery", {"edits": [link]}),
        ("effects", {}),
        ("effects", {"view": 1}),
        ("surgery", {"edits": [link]}),
    ]
    posts = [("POST", f"/api/{name}", {"json": {"input": "2+1", **more}}) for name, more in requests]
    first, *_, last = (response.json() for response in ask(explorer, *posts))
    assert not first["effect"]["interrupted"]
    assert not last["effect"]["interrupted"]
    answers = [response.json() for response in ask(explorer, posts[1], posts[2])]
    assert all(any(site["effect"] for site in answer["sites"].values()) for answer in answers)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"input": "1+x"}, 400, "no token for 'x'"),
        ({"input": "1+2", "steps": {"0": 5}}, 400, "keeps its weights of the steps 0, 12, not of 5"),
        ({"input": 3}, 422, "input: expected a text"),
        ({}, 422, "input: field required"),
        ({"input": "1+2", "more": 1}, 422, "the body: extra inputs are not permitted; /openapi.json lists the fields"),
        ({"input": "1" * 100_001}, 422, "input: string should have at most 100000 characters"),
    ],
)
def test_unreadable_input(explorer: Explorer, body: Any, status: int, words: str) -> None:
    response = post(explorer, "/api/look", body)
    assert response.status_code == status
    assert words in response.json()["error"]


@pytest.mark.parametrize(
    ("edit", "status", "words"),
    [
        (
            {"kind": "link", "how": "off", "query": 0, "key": 0},
            422,
            "edits.0.link.how: expected 'force' or 'erase'",
        ),
        ({"kind": "link", "how": "erase", "key": 0}, 422, "edits.0.link.query: field required"),
        ({"kind": "head", "how": "off", "head": 0}, 422, "edits.0.head.how: extra inputs are not permitted"),
        ({"kind": "head", "head": 9}, 400, "encoder.0 has the heads 0 to 1, got 9"),
        ({"kind": "token", "side": "both", "key": 0}, 422, "edits.0.token.side: expected 'source' or 'target'"),
        ({"kind": "token", "side": "source", "key": -1}, 400, "the source has the tokens 0 to 2, got -1"),
        ({"kind": "token", "side": "source", "key": 0, "head": 1}, 422, "edits.0.token.head: extra inputs"),
        ({"kind": "none"}, 422, "expected tags: 'place', 'head', 'link', 'token'"),
    ],
)
def test_unknown_edit(explorer: Explorer, edit: Any, status: int, words: str) -> None:
    where = {} if edit["kind"] == "token" else {"site": "encoder.0"}
    body = {"input": "1+2", "edits": [{**where, **edit}]}
    response = post(explorer, "/api/surgery", body)
    assert response.status_code == status
    assert words in response.json()["error"]


def test_all_kinds_of_edits(explorer: Explorer) -> None:
    link = {"kind": "link", "site": "encoder.0", "head": None, "query": 0, "key": 1, "how": "erase"}
    place = {"kind": "place", "side": "both", "how": "shift", "amount": 2}
    token = {"kind": "token", "side": "source", "key": 2}
    edits = [link, place, {"kind": "head", "site": "encoder.0", "head": 0}, token]
    response = post(explorer, "/api/surgery", {"input": "1+2", "view": 1, "edits": edits})
    assert response.json()["effect"]["divergence"] > 0


@pytest.mark.parametrize("query", [3, 999, -1])
def test_unknown_query(explorer: Explorer, query: int) -> None:
    response = post(explorer, "/api/head", {"input": "1+2", "site": "encoder.0", "query": query})
    assert (response.status_code, response.json()["error"]) == (400, f"encoder.0 has the queries 0 to 2, got {query}")


def test_error_does_not_quote_the_whole_request(explorer: Explorer) -> None:
    for body in ({"input": "x" * 90_000}, {"input": "1+2", "y" * 90_000: 1}):
        response = post(explorer, "/api/look", body)
        assert response.status_code in (400, 422)
        assert len(response.content) < 1000


def test_only_images_of_the_first_inputs_folder_are_read(image_runs: Path, tmp_path: Path) -> None:
    explorer = open_explorer([image_runs / "rotary2d"])
    here, below = tmp_path / "here", tmp_path / "here" / "below"
    below.mkdir(parents=True)
    pillow: Any = pytest.importorskip("PIL.Image")
    for folder in (tmp_path, here, below):
        pillow.new("L", (8, 8), 128).save(folder / "a.png")
    (tmp_path / "secret").write_text("root:x:0:0")
    (here / "link.png").symlink_to(tmp_path / "secret")
    (here / "circle.png").symlink_to(here / "circle.png")
    (here / "b.png").symlink_to(tmp_path / "a.png")

    def told(asked: str, line: str) -> tuple[int, str]:
        how = {"json": {"input": asked}}
        response = ask(explorer, ("POST", "/api/look", how), line=line)[0]
        return response.status_code, response.json().get("error", "")

    first = str(here / "b.png")
    for asked in (first, str(here / "a.png"), f" {here}/below/../a.png ", "#3"):
        assert told(asked, first) == (200, "")
    others = [
        "secret",
        "a.png",
        "here/link.png",
        "here/circle.png",
        "here/below/a.png",
        "here/../a.png",
        "here/c\0.png",
    ]
    for asked in [str(tmp_path / other) for other in others] + ["/etc/passwd", "", "a" * 90_000, "#x"]:
        for line in (first, "#3"):
            status, error = told(asked, line)
            assert (status, "root:x" in error, len(error) < 1000) == (400, False, True)
            assert error.startswith("expected the number of a held-out image, such as #3")
            assert (f"or an image in the folder {here}" in error) == (line == first)
    assert told(str(here / "a.png"), "#3")[0] == 400


def test_only_its_own_page_may_ask(explorer: Explorer) -> None:
    body = {"input": "1+2"}
    assert post(explorer, "/api/look", body, host="evil.example").status_code == 421
    assert post(explorer, "/api/look", body, origin="http://evil.example").status_code == 403
    assert post(explorer, "/api/look", body, origin="null").status_code == 403
    assert post(explorer, "/api/look", body, origin=f"http://{HOST}").status_code == 200
    plain = {"content": b'{"input":"1+2"}', "headers": {"content-type": "text/plain"}}
    assert ask(explorer, ("POST", "/api/look", plain))[0].status_code == 415
    nothing = ask(explorer, ("GET", "/etc/passwd", {}))[0].json()
    assert nothing["error"] == "Not Found; /openapi.json lists what there is"


def test_large_body_is_refused(explorer: Explorer) -> None:
    headers = {"content-type": "application/json", "content-length": str(50 * 2**20)}
    response = ask(explorer, ("POST", "/api/look", {"content": b"{}", "headers": headers}))[0]
    assert (response.status_code, response.json()["error"]) == (
        413,
        "expected a body of at most 1,048,576 bytes; ask for less",
    )


def test_invalid_json(explorer: Explorer) -> None:
    how = {"content": b'{"inp', "headers": {"content-type": "application/json"}}
    response = ask(explorer, ("POST", "/api/look", how))[0]
    assert (response.status_code, response.json()["error"]) == (422, "the body is no JSON")


def test_64_concurrent_requests(explorer: Explorer) -> None:
    requests = [("POST", "/api/look", {"json": {"input": f"{number % 6}+1"}}) for number in range(64)]
    answers = ask(explorer, *requests)
    codes = [response.status_code for response in answers]
    assert set(codes) == {200, 503}
    assert codes.count(200) >= server.MAX_REQUESTS
    assert all(int(response.headers["retry-after"]) >= 1 for response in answers if response.status_code == 503)
    assert post(explorer, "/api/look", {"input": "1+2"}).status_code == 200


@pytest.mark.parametrize("number", [2**31, 2**63, -(2**63) - 1, 10**30])
@pytest.mark.parametrize("name", ["query", "key", "head"])
def test_number_beyond_int32(explorer: Explorer, name: str, number: int) -> None:
    edit = {"kind": "link", "site": "encoder.0", "query": 0, "key": 1, "how": "erase", name: number}
    response = post(explorer, "/api/surgery", {"input": "1+2", "edits": [edit]})
    assert response.status_code == 422
    assert response.json()["error"].startswith(f"edits.0.link.{name}: expected ")


MARK = "zqxjk"
HOSTILE = {
    "nan": b'{"input": "1+2", "edits": [{"kind": "place", "how": "shift", "amount": NaN}]}',
    "infinity": b'{"input": "1+2", "edits": [{"kind": "place", "how": "shift", "amount": 1e999}]}',
    "far": b'{"input": "1+2", "edits": [{"kind": "place", "how": "stretch", "amount": 1e300}]}',
    "surrogate": b'{"input": "\\ud800 zqxjk"}',
    "surrogate key": b'{"input": "1+2", "\\ud800 zqxjk": 1}',
    "tag": b'{"input": "1+2", "edits": [{"kind": "zqxjk"}]}',
    "deep": b"[" * 200_000,
    "deep value": b'{"input": ' + b'{"zqxjk":' * 50_000,
    "digits": b'{"view": ' + b"9" * 5_000 + b"}",
    "no UTF-8": b'{"input": "\xff\xfe zqxjk"}',
    "key": b'{"zqxjk": 1}',
    "step": b'{"input": "1+2", "steps": {"zqxjk": 1}}',
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_body_is_not_quoted(explorer: Explorer, what: str) -> None:
    how = {"content": HOSTILE[what], "headers": {"content-type": "application/json"}}
    for path in ("/api/look", "/api/surgery"):
        response = ask(explorer, ("POST", path, how))[0]
        assert response.status_code in (400, 422), (path, response.text)
        assert MARK not in response.text
        assert len(response.content) < 2000


def test_chunked_body_is_limited(explorer: Explorer) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 2**16

    how = {"content": endless(), "headers": {"content-type": "application/json"}}
    response = ask(explorer, ("POST", "/api/look", how))[0]
    assert response.status_code == 413


def test_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(
            UserError, match="cannot be listened on: Address already in use; choose another with --port"
        ):
            run_server.listen("127.0.0.1", taken.getsockname()[1])


def test_a_page_of_what_is_looked_at_is_made(explorer: Explorer) -> None:
    body = {"input": "1+2", "site": "encoder.0", "head": 1, "steps": {"0": 0, "1": 0}}
    html = post(explorer, "/api/page", body).json()["html"]
    assert html.startswith("<!doctype html>")
    assert "connect-src 'none'" in html
    assert '"step":0,' in html
    assert '"site":"encoder.0","head":1,' in html
