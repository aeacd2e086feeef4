"""The example of each export answers as the run does, in a process that has no jarilab."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
from tests.helpers.runs import language_run, tiny, train

import jarilab
from jarilab.export import ctranslate2, huggingface, programs
from jarilab.runs.loaded import load

PACKAGES = {"onnx": ("onnxruntime", "onnxscript"), "ctranslate2": ("ctranslate2",), "huggingface": ("transformers",)}


def example_of(folder: Path) -> str:
    """What the example of a README prints last."""
    text = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    without_jarilab = "import sys\nsys.modules['jarilab'] = None\n"
    environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", without_jarilab + code], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


def exported(run: Path, out: Path, to: str) -> dict[str, Any]:
    for package in PACKAGES.get(to, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"NO {package}: its example was NOT run")
    if to == "ctranslate2":
        return ctranslate2.export(run, out)
    return huggingface.export(run, out) if to == "huggingface" else programs.export(run, out, to=to)


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """As a user runs it: while `torch.export` follows a model, a length is a symbol."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def add(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("add") / "run"
    train(folder, tiny("sinusoidal"))
    return folder


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_run(tmp_path_factory.mktemp("language"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "to", ["torch", *(pytest.param(to, marks=pytest.mark.long) for to in ("ctranslate2", "huggingface", "onnx"))]
)
def test_example_of_a_sequence(to: str, add: Path, tmp_path: Path) -> None:
    description = exported(add, tmp_path / "out", to)
    assert description["reads"].startswith("a tokenizer that reads ")
    (answer,) = jarilab.predict(add, [load(add).example()])
    assert example_of(tmp_path / "out") == answer.record()["answer"]
    if to == "onnx":
        assert description["opset"] >= 17
        assert (tmp_path / "out" / "README.md").read_text().startswith("# ONNX, opset 18\n")


@pytest.mark.slow
@pytest.mark.parametrize("to", ["torch", pytest.param("huggingface", marks=pytest.mark.long)])
def test_example_of_a_language_model(to: str, language: Path, tmp_path: Path) -> None:
    exported(language, tmp_path / "out", to)
    readme = (tmp_path / "out" / "README.md").read_text()
    (prompt,) = re.findall(r"""tokenizer(?:\.encode\(|\(\[)'(.*)'""", readme)
    (answer,) = jarilab.predict(language, [prompt], max_new_tokens=20, temperature=0)
    assert example_of(tmp_path / "out").strip() == answer.record()["text"].strip()


@pytest.mark.long
@pytest.mark.slow
def test_example_of_a_vision_transformer(image_runs: Path, tmp_path: Path) -> None:
    """Of a PNG with 16 bits."""
    image: Any = pytest.importorskip("PIL.Image")
    loaded = load(image_runs / "rotary2d")
    model: Any = loaded.model
    predictor: Any = loaded.predictor
    programs.export(loaded.folder, tmp_path / "out", to="torch")
    _, height, width = model.shape
    pixels_HW = np.arange(height * width, dtype=np.uint16).reshape(height, width) * 1000
    path = tmp_path / "out" / "image.png"
    image.fromarray(pixels_HW).save(path)
    assert example_of(tmp_path / "out") == predictor.answer(loaded.task.read(str(path)))
