"""Text-to-image runs in the explorer: images, attention of codes, and edits."""

import asyncio
import base64
import copy
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

import jarilab
from helpers.serving import served
from jarilab.core.errors import UserError
from jarilab.data.images.image_files import read_image
from jarilab.explorer import Explorer, open_explorer, run_subject, server
from jarilab.explorer.page_file import saved_page
from jarilab.pages.kit.data_blocks import unpacked

CAPTION = "a small red 3 top left"
GRID = [f"{row},{column}" for row in range(8) for column in range(8)]
WORDS = ["<bos>", *(f" {word}" for word in CAPTION.split()), "<picture>"]


@pytest.fixture(scope="module")
def explorers(painted_runs: Path) -> dict[str, Explorer]:
    """Painting takes a second, and is done once for each caption."""
    return {run: open_explorer([painted_runs / run]) for run in ("painter", "table", "folder")}


def view_of(explorer: Explorer, line: str = CAPTION) -> dict[str, Any]:
    return copy.deepcopy(explorer.look(line, live=True)["views"][0])


def painted(run: Path, line: str = CAPTION) -> torch.Tensor:
    """The image of `jarilab predict`, by the run's own settings."""
    task: Any = jarilab.load(run).task
    how = {"guidance": task.guidance, "temperature": task.temperature, "seed": 1}
    (painting,) = jarilab.predict(run, [line], count=1, **how)
    return painting.images[0]


def test_a_view_shows_the_image_that_predict_paints(explorers: dict[str, Explorer], painted_runs: Path) -> None:
    view, image = view_of(explorers["painter"]), painted(painted_runs / "painter")
    assert list(view["sides"]) == ["target"]
    target = view["sides"]["target"]
    assert target["tokens"] == [*WORDS, *GRID]
    assert np.array_equal(unpacked(target["picture"].pop("pixels")), image.permute(1, 2, 0))
    expected = {"rows": 8, "columns": 8, "height": 8, "width": 8, "first": 8, "pool": None}
    assert target["picture"] == expected
    assert [(site["site"], site["shape"]) for site in view["sites"]] == [
        (f"decoder.{layer}.self", [72, 72]) for layer in range(2)
    ]
    assert view["lens"] is view["rollout"] is None
    assert not any("induction_probe" in site["measures"] for site in view["sites"])


def test_the_answer_is_what_the_judge_reads_and_nobody_reads_a_folder_of_images(
    explorers: dict[str, Explorer], painted_runs: Path
) -> None:
    task: Any = jarilab.load(painted_runs / "painter").task
    view = view_of(explorers["painter"], "A small red 3 top left")
    assert view["expected"] == CAPTION
    assert view["answer"] == task.judged(painted(painted_runs / "painter"))
    view = view_of(explorers["folder"], "light")
    assert view["answer"] is view["expected"] is None
    assert view["sides"]["target"]["picture"]["pixels"]["shape"] == [16, 16, 3]
    assert view["sides"]["target"]["tokens"][:4] == ["<bos>", " light", "<picture>", "0,0"]


def test_outputs_are_the_words_and_codes_that_follow(explorers: dict[str, Explorer], painted_runs: Path) -> None:
    """As the painter scores them with its caption, which is not what guidance makes of them."""
    outputs = view_of(explorers["painter"])["outputs"]
    assert [output["token"] for output in outputs[:7]] == WORDS[1:]
    assert outputs[6]["top"][0] == ["<picture>", 1]
    assert len(outputs) == 7 + 64
    loaded: Any = jarilab.load(painted_runs / "painter")
    codes = torch.tensor([[int(output["token"].removeprefix("code ")) for output in outputs[7:]]])
    words = loaded.task.sources([loaded.task.read(CAPTION)])
    best = loaded.model(words, codes).image[0].softmax(-1).max(-1)
    for output, number, share in zip(outputs[7:], best.indices.tolist(), best.values.tolist(), strict=True):
        assert output["top"][0] == [f"code {number}", pytest.approx(share, abs=1e-5)]


@pytest.mark.parametrize("run", ["painter", "table"])
def test_every_head_opens_and_adds_up(explorers: dict[str, Explorer], run: str) -> None:
    explorer = explorers[run]
    for site in explorer.look(CAPTION, live=False)["views"][0]["sites"]:
        detail = explorer.head(CAPTION, 0, site["site"], 1)
        summed = sum(unpacked(part["matrix"]) for part in detail["parts"])
        assert np.allclose(summed, unpacked(detail["scores"]), atol=1e-4)
        assert detail["walk_error"] < 1e-9
        assert site["trust"]["rebuild_error"] < 1e-4
        assert ("embedding + position" in [step["name"] for step in detail["steps"]]) is (run == "painter")
        assert all(np.isfinite(value) for value in detail["erasure"].values())
        assert {"importance", "ablation", "distance"} <= site["measures"].keys()
        assert {"induction", "offset", "previous"}.isdisjoint(site["measures"])


def test_checks_tell_who_goes_by_distance_alone_and_where_a_table_ends(explorers: dict[str, Explorer]) -> None:
    table = view_of(explorers["table"])["checks"]
    assert [check["label"] for check in table] == ["shift, decoder.0.self", "shift, decoder.1.self"]
    assert max(check["value"] for check in table) < 1e-6
    (ends,) = view_of(explorers["painter"])["checks"]
    assert ends["value"] is None
    assert "knows the positions 0 to 6" in ends["about"]


def test_edits_are_measured_over_what_was_painted(explorers: dict[str, Explorer]) -> None:
    explorer = explorers["painter"]
    before = explorer.look(CAPTION, live=True)["views"][0]
    off = explorer.operate(CAPTION, 0, [{"kind": "head", "site": "decoder.0.self", "head": 1}])
    assert off["effect"]["answer"] is None
    assert off["effect"]["divergence"] > 0
    assert [row["token"] for row in off["effect"]["tokens"]] == [output["token"] for output in before["outputs"]]
    assert off["effect"]["tokens"][6] == {"token": "<picture>", "before": 1, "after": 1}
    shapes = [[site["shape"] for site in view["sites"]] for view in (off["view"], before)]
    assert shapes[0] == shapes[1], "the maps go along the original image"
    assert len(off["effect"]["controls"]) == 3
    link = {"kind": "link", "site": "decoder.0.self", "head": 0, "query": 40, "key": 3, "how": "force"}
    forced = explorer.operate(CAPTION, 0, [link])
    weights = unpacked(forced["view"]["sites"][0]["weights"])[0, 40]
    assert weights[3] == weights.sum() == 1
    assert len(forced["effect"]["controls"]) == 20
    with pytest.raises(UserError, match="cannot force the link"):
        explorer.operate(CAPTION, 0, [{**link, "query": 3, "key": 40}])
    assert explorer.look(CAPTION, live=True)["views"][0]["sites"][0]["weights"] == before["sites"][0]["weights"]


def test_a_page_says_in_both_languages_that_it_cannot_paint(explorers: dict[str, Explorer]) -> None:
    (view,) = saved_page(explorers["painter"], CAPTION, None, 0)["views"]
    english, korean = view["engine"]["why"]
    assert english == "a page cannot compute the answers of model text_to_image for task captions"
    assert korean == "과제 captions, 모델 text_to_image의 답은 페이지가 스스로 계산할 수 없습니다"


@pytest.mark.parametrize("how", ["off", "shift", "stretch", "shuffle"])
def test_places_are_moved_or_it_is_told_why_not(explorers: dict[str, Explorer], how: str) -> None:
    change = {"kind": "place", "how": how, "amount": 2}
    table = explorers["table"].operate(CAPTION, 0, [change])["effect"]["divergence"]
    assert table < 1e-9 if how == "shift" else table > 1e-9
    if how in ("off", "shuffle"):
        assert explorers["painter"].operate(CAPTION, 0, [change])["effect"]["divergence"] > 1e-9
        return
    with pytest.raises(UserError, match=r"knows the positions 0 to 6, got \d+"):
        explorers["painter"].operate(CAPTION, 0, [change])


def test_each_kept_step_paints_its_own_image(painted_runs: Path) -> None:
    page = saved_page(open_explorer([painted_runs / "painter"]), CAPTION, None, 0)
    assert all(len(site["details"]) == 2 for site in page["views"][0]["sites"])
    steps = page["views"][0]["steps"]
    assert [frame["step"] for frame in page["frames"]] == steps
    assert len(steps) > 2
    pixels = [frame["views"][0]["sides"]["target"]["picture"]["pixels"]["data"] for frame in page["frames"]]
    assert pixels[0] != pixels[-1] == page["views"][0]["sides"]["target"]["picture"]["pixels"]["data"]


def test_a_image_is_painted_once_for_all_that_is_shown_of_it(
    painted_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explorer = open_explorer([painted_runs / "painter"])
    loaded: Any = explorer.subjects[0].run
    drawn, steps = [], loaded.model.steps
    monkeypatch.setattr(loaded.model, "steps", lambda *a, **how: drawn.append(how) or steps(*a, **how))
    explorer.look(CAPTION, live=True)
    explorer.head(CAPTION, 0, "decoder.1.self", 1)
    explorer.operate(CAPTION, 0, [{"kind": "head", "site": "decoder.0.self", "head": 1}])
    assert drawn == [{"guidance": 2.0, "temperature": 0.7, "seed": 1}]


def test_painters_stand_side_by_side_on_the_same_caption(explorers: dict[str, Explorer], painted_runs: Path) -> None:
    first, second = open_explorer([painted_runs / "painter", painted_runs / "table"]).look(CAPTION, live=True)["views"]
    assert first["vocabulary"] == second["vocabulary"]
    assert first["sides"]["target"]["tokens"] == second["sides"]["target"]["tokens"]
    assert first["sites"][0]["weights"] != second["sites"][0]["weights"]
    assert view_of(explorers["folder"], "dark")["vocabulary"] != first["vocabulary"]


def test_another_caption_is_painted_live_and_mistakes_are_told(
    explorers: dict[str, Explorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    explorer = explorers["painter"]

    async def asked(line: str) -> httpx.Response:
        app = server.application(explorer, CAPTION, {"127.0.0.1:8000"})
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000", timeout=60
        ) as client:
            return await client.post("/api/look", json={"input": line})

    other = asyncio.run(asked("a large blue 7 bottom right")).json()["views"][0]
    assert other["sides"]["target"]["tokens"][4] == " 7"
    wrong = asyncio.run(asked("a purple 7"))
    assert (wrong.status_code, "expected words of the training captions, got purple" in wrong.json()["error"]) == (
        400,
        True,
    )
    monkeypatch.setattr(run_subject, "MAX_TOKENS", 71)
    with pytest.raises(UserError, match="at most 71 words and codes, got 72"):
        explorer.look("a large blue 8 bottom right", live=True)


def test_paintings_are_served(painted_runs: Path) -> None:
    """Here, where the run is trained already."""
    opened = jarilab.load(painted_runs / "painter")
    told = served(opened, {"inputs": [CAPTION], "options": {"count": 2}}).json()["predictions"][0]
    (expected,) = jarilab.predict(opened, [CAPTION], count=2)
    assert told["prompt"] == CAPTION
    for image, painted in zip(told["images"], expected.images, strict=True):
        assert torch.equal(read_image(base64.b64decode(image), 3), painted)
    image = served(opened, {"inputs": [{"image": told["images"][0]}]}).json()["predictions"][0]
    assert (image["input"], len(image["images"])) == ("image 1", 2)
    for name in ("/etc/passwd", "secret.png", "#x"):
        assert "a text that names a file" in served(opened, {"inputs": [name]}).json()["error"]
    for options in ({"out": "x.png"}, {"count": 17}):
        assert served(opened, {"inputs": [CAPTION], "options": options}).status_code == 422
