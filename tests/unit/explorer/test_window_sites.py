"""Models that attend in windows: one map for each window."""

import importlib.util

import pytest
import torch

import jarilab
from helpers import folders
from helpers.architectures import MODELS
from jarilab.explorer import huggingface_subject
from jarilab.explorer.window_sites import MAX_WINDOWS, PADDING, Windows

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]


def test_windows_of_swin(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / "noise.png")
    view = huggingface_subject.HuggingFaceSubject(folders.swin(tmp_path / "swin")).view(str(tmp_path / "noise.png"), 0)
    assert [shown["site"] for shown in view["sites"]] == [
        *(f"encoder.0.{layer} window {window}" for layer in (0, 1) for window in (0, 5, 10, 15)),
        *(f"encoder.1.0 window {window}" for window in (0, 1, 2, 3)),
    ]
    assert "Shown: 4/16 (encoder.0.0, encoder.0.1); 4/4 (encoder.1.0)" in view["purpose"][0]
    assert view["edits"] == []
    assert "all windows" in view["uneditable"][0]

    def tokens(site):
        (shown,) = [one for one in view["sites"] if one["site"] == site]
        assert shown["trust"]["rebuild_error"] < 1e-6
        return view["sides"][shown["queries"]]["tokens"]

    # The second window of the second row, of 4 x 4 patches; in the second layer all are two patches further.
    assert tokens("encoder.0.0 window 5") == [f"{4 + i},{4 + j}" for i in range(4) for j in range(4)]
    assert tokens("encoder.0.1 window 5") == [f"{6 + i},{6 + j}" for i in range(4) for j in range(4)]
    assert tokens("encoder.0.1 window 15")[:3] + tokens("encoder.0.1 window 15")[-1:] == [
        "14,14",
        "14,15",
        "14,0",
        "1,1",
    ]
    assert tokens("encoder.1.0 window 1") == [f"{i},{4 + j}" for i in range(4) for j in range(4)]


@torch.no_grad()
def test_window_is_a_batch_row():
    model, inputs = MODELS["Swin"]()
    with jarilab.record(model) as tape:
        model(pixel_values=inputs["pixel_values"][:1])
    windows = Windows.of(tape, (8, 8))
    assert MAX_WINDOWS == 4
    for window in range(4):
        expected = tape.weights("encoder.0.1")[window]
        assert torch.equal(windows.tape.weights(f"encoder.0.1 window {window}")[0], expected)
    assert "encoder.1.0" in windows.tape.sites  # one window is the whole grid
    assert windows.names["encoder.1.0"][-1] == "3,3"
    assert Windows.of(tape, None).names == {}


@torch.no_grad()
def test_windows_beyond_the_image_have_padding():
    model, inputs = MODELS["Swin"]()
    with jarilab.record(model) as tape:
        model(pixel_values=inputs["pixel_values"][:1].repeat(1, 1, 1, 2)[..., :56])
    names = Windows.of(tape, (8, 14)).names
    assert [name for name in names if name.startswith("encoder.0.0")][-1] == "encoder.0.0 window 7"
    assert names["encoder.0.0 window 7"][:5] == ["4,12", "4,13", PADDING, PADDING, "5,12"]
