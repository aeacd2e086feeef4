"""ONNX files compute in ONNX Runtime what PyTorch does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch

import jarilab
from jarilab import LanguageModel, Tokens, UserError
from jarilab.export import onnx_file
from jarilab.export.onnx_file import write_onnx
from jarilab.pages.program.program import Followed
from jarilab.positions.patches import Images

pytestmark = pytest.mark.slow

NEAR = 1e-5


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """As a person runs it: where `torch.export` follows a model, a length is a symbol and no `int`."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def runtime() -> Any:
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=f"NO {name}: files of ONNX were NOT checked (pip install 'jarilab[onnx]')")
    return pytest.importorskip("onnxruntime", reason="NO onnxruntime: files of ONNX were NOT checked")


def tokens(ids: list[int], frame: str) -> Tokens:
    return Tokens.of(torch.tensor([ids]), frame)


def test_file_equals_pytorch_at_any_length_and_with_edits(runtime: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = jarilab.EncoderDecoder(
        12,
        12,
        d_model=16,
        n_heads=2,
        n_encoder_layers=1,
        n_decoder_layers=1,
        encoder_encoding="t5",
        decoder_encoding="rotary",
    ).eval()
    inputs = tokens([3, 4, 5], "source"), tokens([1, 6], "target")
    described = write_onnx(model, inputs, tmp_path / "model.onnx")
    assert [one["name"] for one in described["inputs"][:4]] == [
        "source",
        "places of source",
        "target",
        "places of target",
    ]
    assert described["sites"] == ["encoder.0", "decoder.0.self", "decoder.0.cross"]
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    names = [one.name for one in session.get_inputs()]
    for source, target in (([3, 4, 5], [1, 6]), ([7], [1]), ([3, 9, 8, 5, 4, 3], [1, 2, 3, 4])):
        many, few = len(source), len(target)
        links = [np.ones((2, *shape), bool) for shape in ((many, many), (few, few), (few, many))]
        read = [np.array([source]), np.arange(many), np.array([target]), np.arange(few)]
        found = session.run(None, dict(zip(names, [*read, *links], strict=True)))
        with torch.no_grad(), jarilab.record(model) as tape:
            scores = model(tokens(source, "source"), tokens(target, "target"))
        np.testing.assert_allclose(found[0], scores, atol=NEAR)
        for site, weights in zip(described["sites"], found[1:], strict=True):
            np.testing.assert_allclose(weights, tape.weights(site), atol=NEAR)
        links[0][1] = False
        off = session.run(None, dict(zip(names, [*read, *links], strict=True)))
        assert not off[1][0, 1].any()
        np.testing.assert_allclose(off[1][0, 0], found[1][0, 0], atol=NEAR)
        assert np.abs(off[0] - found[0]).max() > 1e-4


@pytest.mark.parametrize("kept_patches", [None, 4])
def test_image_model_equals_pytorch(kept_patches: int | None, runtime: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = jarilab.VisionTransformer(
        (1, 4, 6), 3, patch_size=2, d_model=16, n_heads=2, n_layers=1, encoding="rotary2d", kept_patches=kept_patches
    ).eval()
    pixels = torch.randn(1, 1, 4, 6)
    pixels[..., 2:] = 0  # four equal patches, of which two are kept
    described = write_onnx(model, (Images(pixels),), tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    image, links = (one.name for one in session.get_inputs())
    scores, _ = session.run(None, {image: pixels.numpy(), links: np.ones((2, 6, 6), bool)})
    assert described["lengths"] == {}
    with torch.no_grad():
        expected = model(Images(pixels))
    np.testing.assert_allclose(scores.reshape(-1), expected.reshape(-1), atol=NEAR)


def test_unsupported_models_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = LanguageModel(12, d_model=16, n_heads=2, n_layers=1)
    monkeypatch.setattr(onnx_file, "check_packages", lambda: None)
    monkeypatch.setattr(onnx_file, "LARGEST_FILE", 1000)
    with pytest.raises(UserError, match="has 1,000 bytes at most, and this model"):
        write_onnx(model, (tokens([3, 4], "target"),), tmp_path / "model.onnx")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    monkeypatch.setitem(__import__("sys").modules, "onnx", object())
    with pytest.raises(UserError, match=r"needs the package onnxscript; pip install 'jarilab\[onnx\]'"):
        onnx_file.check_packages()


def test_description_of_an_exported_forward() -> None:
    model = LanguageModel(12, d_model=16, n_heads=2, n_layers=1, encoding="learned:positions=9").eval()
    followed = Followed(model, (tokens([3, 4], "target"),))
    assert followed.described["lengths"] == {"target": [1, 9]}
    assert [one["kind"] for one in followed.described["inputs"]] == ["ids", "places", "links"]
