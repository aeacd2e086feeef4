"""Runs on images in the explorer: patches, answers and edits."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import jarilab
from helpers.serving import served
from jarilab.core.errors import UserError
from jarilab.explorer import open_explorer, payload, run_subject
from jarilab.models.detector import Detector
from jarilab.pages.kit.data_blocks import unpacked
from jarilab.positions.boxes import Detected
from jarilab.positions.patches import Images
from jarilab.tasks.predictors import detection
from jarilab.tasks.predictors.classes import image_sequence

GRID = [f"{row},{column}" for row in range(4) for column in range(4)]


def view_of(run: Path, line: str = "#3") -> dict[str, Any]:
    return open_explorer([run]).look(line, live=False)["views"][0]


@pytest.mark.parametrize("run", ["rotary2d", "class"])
def test_a_view_says_what_predict_says_of_a_image(image_runs: Path, run: str) -> None:
    view = view_of(image_runs / run)
    (answer,) = jarilab.predict(image_runs / run, ["#3"])
    assert (view["answer"], view["expected"]) == (answer.answer, "5")
    (output,) = view["outputs"]
    assert output["top"][0] == [answer.answer, pytest.approx(answer.tokens[0][1], abs=1e-5)]
    assert list(view["sides"]) == ["source"]


def test_the_pixels_are_those_of_the_image_and_patches_have_their_place(image_runs: Path) -> None:
    side = view_of(image_runs / "rotary2d")["sides"]["source"]
    task: Any = jarilab.load(image_runs / "rotary2d").task
    assert side["tokens"] == GRID
    assert np.array_equal(unpacked(side["picture"].pop("pixels"))[..., 0], task.read("#3").pixels[0])
    expected = {"rows": 4, "columns": 4, "height": 4, "width": 4, "first": 0, "pool": "mean"}
    assert side["picture"] == expected


def test_tokens_without_a_place_come_first_and_counted_patches_are_named_by_row_and_column(image_runs: Path) -> None:
    view = view_of(image_runs / "class")
    side = view["sides"]["source"]
    assert side["tokens"] == ["[0]", "[1]", "[2]", *GRID]
    assert (side["picture"]["first"], side["picture"]["pool"]) == (3, "class")
    assert view["sites"][0]["shape"] == [19, 19]


@pytest.mark.parametrize("run", ["none", "rotary2d", "learned2d", "class", "detection"])
def test_every_head_opens_and_adds_up(image_runs: Path, run: str) -> None:
    explorer = open_explorer([image_runs / run])
    for site in explorer.look("#3", live=False)["views"][0]["sites"]:
        detail = explorer.head("#3", 0, site["site"], 1)
        summed = sum(unpacked(part["matrix"]) for part in detail["parts"])
        assert np.allclose(summed, unpacked(detail["scores"]), atol=1e-4)
        assert detail["walk_error"] < 1e-9
        assert site["trust"]["rebuild_error"] < 1e-4
        names = [step["name"] for step in detail["steps"]]
        assert ("embedding + position" in names) == (run in ("learned2d", "class"))
        made_of = "each query" if site["site"].startswith("decoder") else "each patch"
        assert made_of in detail["steps"][0]["formula"]


def test_checks_tell_who_is_blind_to_the_order_of_patches(image_runs: Path) -> None:
    found = {}
    for run in ("none", "rotary2d", "learned2d", "class", "detection"):
        checks = view_of(image_runs / run)["checks"]
        found[run] = {c["label"]: c["value"] for c in checks if c["label"].endswith("encoder.0")}
    assert found["none"] == {"permutation, encoder.0": 0, "shift, encoder.0": 0}
    assert found["rotary2d"]["permutation, encoder.0"] > 1e-4
    assert found["rotary2d"]["shift, encoder.0"] < 1e-6
    assert min(found["learned2d"].values()) > 1e-4
    assert found["class"]["permutation, encoder.0"] > 1e-4
    assert min(found["detection"].values()) > 1e-6


def test_edits_change_the_class_and_places_of_patches_can_be_moved(image_runs: Path) -> None:
    explorer = open_explorer([image_runs / "none", image_runs / "learned2d"])
    off = {"kind": "place", "side": "both", "how": "off"}
    before = explorer.look("#3", live=True)["views"][1]
    moved = explorer.operate("#3", 1, [off])
    assert explorer.operate("#3", 0, [off])["effect"]["divergence"] < 1e-12
    assert moved["effect"]["divergence"] > 1e-6
    assert moved["effect"]["tokens"][0]["before"] == pytest.approx(before["outputs"][0]["top"][0][1], abs=1e-5)
    assert moved["effect"]["tokens"][0]["after"] != moved["effect"]["tokens"][0]["before"]
    assert moved["view"]["sites"][0]["weights"] != before["sites"][0]["weights"]
    head = explorer.operate("#3", 1, [{"kind": "head", "site": "encoder.1", "head": 0}])["effect"]
    assert head["divergence"] > 0
    assert len(head["controls"]) == 3
    again = explorer.look("#3", live=True)["views"][1]
    assert again["sites"][0]["weights"] == before["sites"][0]["weights"], "the model is as it was"
    with pytest.raises(UserError, match="expected positions of the source, which are the patches"):
        explorer.operate("#3", 1, [{"kind": "place", "side": "target", "how": "off"}])


def test_a_image_in_a_file_is_read(image_runs: Path, tmp_path: Path) -> None:
    explorer = open_explorer([image_runs / "rotary2d"])
    view = explorer.look("#3", live=True)["views"][0]
    pixels = unpacked(view["sides"]["source"]["picture"]["pixels"])[..., 0].astype("uint8")
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(pixels).save(tmp_path / "five.png")
    again = explorer.look(str(tmp_path / "five.png"), live=True)["views"][0]
    assert again["outputs"] == view["outputs"]
    assert again["expected"] is None
    with pytest.raises(UserError, match="#0 to #"):
        explorer.look("#100000", live=True)
    with pytest.raises(UserError, match=r"nowhere\.png"):
        explorer.look(str(tmp_path / "nowhere.png"), live=True)


def test_too_many_patches_are_refused_before_the_model_runs(image_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_subject, "MAX_TOKENS", 15)
    with pytest.raises(UserError, match="at most 15 patches, got 16"):
        open_explorer([image_runs / "rotary2d"]).look("#3", live=False)


def test_object_queries_have_boxes_and_what_they_say(image_runs: Path) -> None:
    view = view_of(image_runs / "detection")
    target = view["sides"]["target"]
    assert target["tokens"] == ["q0", "q1", "q2", "q3"]
    task: Any = (loaded := jarilab.load(image_runs / "detection")).task
    read = task.read("#3")
    (said,) = task.interpret(loaded.model(task.sources([read])), [read])
    height, width = read.size
    boxes = sorted((np.array(one.box) / [width, height, width, height]).clip(0, 1).tolist() for one in said)
    assert np.allclose(sorted(target["boxes"]), boxes, atol=1e-5)
    names = {*task.classes, "nothing"}
    assert all(output["token"] == output["top"][0][0] and output["token"] in names for output in view["outputs"])
    assert view["answer"] == ", ".join(sorted(task.classes[one.number] for one in said if one.probability >= 0.5))
    assert view["expected"] == ", ".join(sorted(task.expected("#3").split(", ")))
    crosses = [site for site in view["sites"] if site["kind"] == "cross"]
    assert [site["shape"] for site in crosses] == [[4, 36], [4, 36]]
    assert all(site["queries"] == "target" and site["keys"] == "source" for site in crosses)
    edited = open_explorer([image_runs / "detection"]).operate("#3", 0, [{"kind": "place", "how": "shuffle"}])
    assert edited["effect"]["divergence"] > 0
    assert len(edited["effect"]["tokens"]) == 4


def test_a_image_that_was_padded_covers_less_than_its_patches() -> None:
    model = Detector(3, 2, d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1).eval()
    pixels = torch.randint(0, 256, (3, 45, 60), dtype=torch.uint8)
    shown = payload.side_of(image_sequence(model, Images(pixels.unsqueeze(0).float()), pixels))["picture"]
    assert (shown["rows"], shown["columns"], shown["height"], shown["width"]) == (6, 8, 45 / 8, 60 / 8)
    assert shown["pixels"]["shape"] == [45, 60, 3]


def test_boxes_stay_on_the_image() -> None:
    boxes = torch.tensor([[[[0.5, 0.5, 0.5, 0.25], [0.0, 1.0, 0.5, 0.5]]]])
    found = detection._boxes(Detected(torch.zeros(1, 1, 2, 3), boxes))
    assert np.allclose(found, [[0.25, 0.375, 0.75, 0.625], [0, 0.75, 0.25, 1]])


def test_boxes_are_served_as_predict_says_them(image_runs: Path, tmp_path: Path) -> None:
    """Here, where the run is trained already."""
    opened = jarilab.load(image_runs / "detection")
    drawing: Any = pytest.importorskip("PIL.Image")
    drawing.new("RGB", (64, 48), "white").save(tmp_path / "a.png")
    image = base64.b64encode((tmp_path / "a.png").read_bytes()).decode()
    told = served(opened, {"inputs": [{"image": image}], "options": {"threshold": 0.0}})
    (expected,) = jarilab.predict(opened, [tmp_path / "a.png"], threshold=0.0)
    assert told.json()["predictions"] == [{"line": 1, **json.loads(json.dumps(expected.record())), "input": "image 1"}]
    assert len(expected.objects) > 0
    assert served(opened, {"inputs": ["#1"], "options": {"draw": "x.png"}}).status_code == 422
