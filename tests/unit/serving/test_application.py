"""The prediction server: answers of `jarilab predict`, and limits."""

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import jarilab
from helpers.runs import language_run, tiny, train
from helpers.serving import HOST, served
from jarilab.runs.experiment import Experiment
from jarilab.runs.loaded import OpenRun, load
from jarilab.serving.application import Server, accepts_events
from jarilab.serving.requests import Serving

LINES = ["1+2", "12-30", "7+7", "30-1", "2+29", "8-8"]


@pytest.fixture(scope="module")
def add(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    folder = tmp_path_factory.mktemp("add") / "run"
    train(folder, tiny("rotary"))
    return load(folder)


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    return load(language_run(tmp_path_factory.mktemp("language")))


def asked(app: Any, talk: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    """What a client is told."""

    async def main() -> Any:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", timeout=60) as client:
            return await talk(client)

    return asyncio.run(main())


def events_of(text: str) -> list[tuple[str, Any]]:
    """The events of a stream: their names and data."""
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def test_answers_equal_predict(add: OpenRun) -> None:
    options = {"beam_size": 3, "n_best": 2, "length_penalty": 0.5}
    response = served(add, {"inputs": [*LINES, "1+x"], "options": options})
    expected = [prediction.record() for prediction in jarilab.predict(add, [*LINES, "1+x"], **options)]
    assert response.status_code == 200
    assert response.json()["predictions"] == expected
    assert [one["rank"] for one in expected] == [1, 2] * 6 + [1]


def test_the_first_page_has_a_field_and_the_request_as_a_command(add: OpenRun) -> None:
    html = asked(Server(add, Serving()).application({HOST}), lambda client: client.get("/")).text
    (payload,) = re.findall(r'id="payload">(.*?)</script>', html)
    told = json.loads(payload)
    assert (told["task"], told["encoding"], told["step"]) == ("arithmetic", "rotary", add.step)
    assert told["example"] == add.example()
    assert "curl ${location.origin}/predict --json" in html
    assert "connect-src 'self'" in html


def test_waiting_requests_are_one_batch_with_equal_answers(add: OpenRun) -> None:
    server = Server(add, Serving())
    sizes: list[int] = []
    server.batches._observe = sizes.append
    bodies = [{"inputs": [line], "options": {"beam_size": beam}} for beam in (1, 2) for line in LINES]

    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(client.post("/predict", json=body) for body in bodies))

    together = [response.json()["predictions"] for response in asked(server.application({HOST}), talk)]
    alone = [served(add, body).json()["predictions"] for body in bodies]
    for several, one in zip(together, alone, strict=True):
        assert [each["answer"] for each in several] == [each["answer"] for each in one]
        assert [each["line"] for each in several] == [1]
        assert several[0]["score"] == pytest.approx(one[0]["score"], abs=1e-5)
    assert sum(sizes) == 12
    assert max(sizes) >= 5  # the first may have gone alone
    assert len(sizes) <= 4


def test_tokens_are_streamed(language: OpenRun) -> None:
    options = {"max_new_tokens": 9, "seed": 5, "stop": ["zzz"]}
    body = {"inputs": ["one", "two"], "options": options}
    told = served(language, body, accept="text/event-stream")
    events = events_of(told.text)
    expected = [one.record() for one in jarilab.predict(language, ["one", "two"], **options | {"stop": ("zzz",)})]
    assert told.headers["content-type"].startswith("text/event-stream")
    for line, record in enumerate(expected, 1):
        pieces = [data["text"] for name, data in events if name == "token" and data["line"] == line]
        assert len(pieces) > 2
        assert "".join(pieces) == record["text"]
    assert [data for name, data in events if name == "prediction"] == [
        {"line": line, **record} for line, record in enumerate(expected, 1)
    ]
    assert events[-1] == ("end", {})
    assert served(language, body).json()["predictions"][1]["text"] == expected[1]["text"]


def test_events_of_immediate_answers(add: OpenRun) -> None:
    events = events_of(served(add, {"inputs": LINES[:3]}, accept="text/event-stream").text)
    assert [name for name, _ in events] == ["prediction"] * 3 + ["end"]
    assert [data["input"] for _, data in events[:3]] == LINES[:3]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, "inputs: field required"),
        ({"inputs": []}, 422, "inputs: list should have at least 1 item"),
        ({"inputs": ["1"] * 33}, 422, "inputs: list should have at most 32 items"),
        ({"inputs": ["1" * 2049]}, 422, "inputs.0: string should have at most 2048 characters"),
        ({"inputs": "1+1"}, 422, "inputs: expected a list"),
        ({"inputs": [1]}, 422, "inputs.0: expected a text"),
        ({"inputs": ["1"], "zqxjk": 1}, 422, "the body: extra inputs are not permitted"),
        ({"inputs": ["1"], "options": {"zqxjk": 1}}, 422, "options: extra inputs are not permitted"),
        (
            {"inputs": ["1"], "options": {"beam_size": 17}},
            422,
            "options.beam_size: expected 16 or less",
        ),
        ({"inputs": ["1"], "options": {"beam_size": "2"}}, 422, "options.beam_size: expected an integer"),
        ({"inputs": ["1"], "options": {"beam_size": 10**30}}, 422, "options.beam_size: "),
        ({"inputs": ["1"], "options": {"longest": 10**6}}, 422, "options.longest: expected"),
        ({"inputs": ["1"], "options": {"length_penalty": 1e308}}, 422, "options.length_penalty: "),
        ({"inputs": ["1"], "options": {"n_best": 2}}, 400, "got best 2; raise beam_size"),
        ({"inputs": ["1"], "options": {"beam_size": -1}}, 400, "beam_size"),
    ],
)
def test_limits(add: OpenRun, body: Any, status: int, words: str) -> None:
    for headers in ({}, {"accept": "text/event-stream"}):
        response = served(add, body, **headers)
        assert (response.status_code, words in response.json()["error"]) == (status, True), response.text
        assert "zqxjk" not in response.text


def test_text_cannot_name_a_file_of_the_server(digits: OpenRun, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_text("root:x:0:0")
    for text in (str(secret), "/etc/passwd", "#1/../x", "#" + "9" * 30, "x"):
        response = served(digits, {"inputs": [text]})
        assert (response.status_code, "root" in response.text) == (400, False)
        assert "expected an image as" in response.json()["error"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    small = {"training.examples": 64, "training.evaluations": 1, "training.evaluation_examples": 8}
    vit = {**small, "model.d_model": 16, "model.n_heads": 2, "model.n_layers": 1, "model.patch_size": 4}
    folder = tmp_path_factory.mktemp("digits") / "run"
    train(folder, Experiment.of("digits", "none", vit, 1, "float32"))
    return load(folder)


def png_of(size: tuple[int, int], tmp_path: Path) -> tuple[str, Path]:
    """An image in base64, and its file."""
    pillow: Any = pytest.importorskip("PIL.Image")
    pillow.new("L", size, 90).save(tmp_path / "a.png")
    return base64.b64encode((tmp_path / "a.png").read_bytes()).decode(), tmp_path / "a.png"


def test_images_are_answered_like_files(digits: OpenRun, tmp_path: Path) -> None:
    image, path = png_of((8, 8), tmp_path)
    response = served(digits, {"inputs": [{"image": image}, "#1", {"image": "AAAA" + image}], "options": {"n_best": 2}})
    assert response.status_code == 400
    assert response.json()["error"].startswith("image 3: expected PNG")
    response = served(digits, {"inputs": [{"image": image}, "#1"], "options": {"n_best": 2}})
    expected = [one.record() for one in jarilab.predict(digits, [path, "#1"], n_best=2)]
    told = response.json()["predictions"]
    assert [one["answer"] for one in told] == [one["answer"] for one in expected]
    assert [one["input"] for one in told] == ["image 1", "image 1", "#1", "#1"]
    large, _ = png_of((3000, 3000), tmp_path)
    for sent, words in ((large, "its header says 3,000 x 3,000"), ("!", "image 1: expected base64")):
        response = served(digits, {"inputs": [{"image": sent}]})
        assert (response.status_code, words in response.json()["error"]) == (400, True)
    assert not list(tmp_path.glob("jarilab-*"))


def test_health_and_readiness(add: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(add, Serving())
    app = server.application({HOST})
    paths = ("/health", "/ready", "/predict")

    async def talk(client: httpx.AsyncClient) -> list[tuple[int, str | None]]:
        answers = [await client.get(path) for path in paths[:2]]
        answers.append(await client.post("/predict", json={"inputs": ["1+1"]}))
        return [(one.status_code, one.headers.get("retry-after")) for one in answers]

    assert asked(app, talk) == [(200, None)] * 3
    monkeypatch.setattr(server.queue, "ending", True)
    assert asked(app, talk) == [(200, None), (503, "5"), (503, "5")]


def test_metrics(add: OpenRun) -> None:
    app = Server(add, Serving()).application({HOST})

    async def talk(client: httpx.AsyncClient) -> str:
        await client.post("/predict", json={"inputs": LINES})
        await client.post("/predict", json={})
        told = await client.get("/metrics")
        assert told.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return told.text

    lines = asked(app, talk).splitlines()
    for line in (
        "jarilab_requests_total 2.0",
        'jarilab_answers_total{status="200"} 1.0',
        'jarilab_answers_total{status="422"} 1.0',
        "jarilab_queue_length 0.0",
        'jarilab_batch_size_bucket{le="4.0"} 0.0',
        'jarilab_batch_size_bucket{le="8.0"} 1.0',
        "jarilab_batch_size_sum 6.0",
        "jarilab_request_seconds_count 2.0",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("accept", "events"),
    [
        ("", False),
        ("*/*", False),
        ("text/event-stream", True),
        ("TEXT/Event-Stream; charset=utf-8", True),
        ("text/*, application/json;q=0.5", True),
        ("application/json, text/event-stream;q=0", False),
        ("text/event-stream; Q=0.4, */*;q=0.5", False),
        ("text/event-stream, */*", True),
        ("text/event-stream;q=x", True),
    ],
)
def test_accept(accept: str, events: bool) -> None:
    assert accepts_events(accept) == events


def test_proxies_pass_events_on_at_once(add: OpenRun) -> None:
    assert served(add, {"inputs": ["1+2"]}, accept="text/event-stream").headers["x-accel-buffering"] == "no"


def test_a_byte_that_is_no_utf8_is_named(add: OpenRun) -> None:
    async def talk(client: httpx.AsyncClient) -> Any:
        headers = {"content-type": "application/json"}
        return (await client.post("/predict", content=b'{"inputs":["\xff"]}', headers=headers)).json()

    told = asked(Server(add, Serving()).application({HOST}), talk)
    assert told == {"error": "the body is no UTF-8: byte 0xff at position 12; encode it as UTF-8"}
