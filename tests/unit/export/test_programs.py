"""Files of ONNX and torch.export compute what the models do."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
from tests.helpers.command import command
from tests.helpers.runs import tiny, train
from tests.helpers.small import SMALL, initialised

import jarilab
from jarilab import UserError
from jarilab.export import huggingface, programs
from jarilab.export.image_parts import DetectorParts, VisionParts
from jarilab.export.parts import LONG, Exportable
from jarilab.export.programs import Onnx, Target, Torch, export, exportable, program_of, saved
from jarilab.export.text_parts import EncoderDecoderParts, LanguageModelParts
from jarilab.models.recurrent import Recurrent

ONE_LAYER = {**SMALL, "n_encoder_layers": 1, "n_decoder_layers": 1}


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """As a person runs it: where `torch.export` follows a model, a length is a symbol and no `int`."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def targets() -> list[Target]:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"NO {name}: graphs of ONNX were NOT checked (pip install 'jarilab[onnx]')")
    return [Onnx(), Torch()]


MODELS = {
    # A table with an end, rotation that depends on all keys, terms and values, two vocabularies.
    "encoder_decoder": lambda: EncoderDecoderParts(
        initialised(
            jarilab.EncoderDecoder(
                9, 12, **ONE_LAYER, encoder_encoding="learned:positions=6", decoder_encoding="rotary_dynamic"
            )
        )
    ),
    # A window, and an encoding that remembers something of each key.
    "decoder": lambda: LanguageModelParts(
        initialised(jarilab.LanguageModel(12, **SMALL, n_layers=1, encoding="forgetting", window=3))
    ),
    "vit": lambda: VisionParts(
        initialised(
            jarilab.VisionTransformer(
                (1, 4, 6), 3, patch_size=2, **SMALL, n_layers=1, encoding="rotary2d", pool="class"
            )
        )
    ),
    "detector": lambda: DetectorParts(initialised(jarilab.Detector(1, 3, **ONE_LAYER, queries=3))),
}


def check(kind: str, targets: list[Target], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is followed once: that takes longest."""
    found = MODELS[kind]()
    parts = found.parts()
    followed = {part.name: program_of(part) for part in parts}
    monkeypatch.setattr(programs, "program_of", lambda part: followed[part.name])
    for target in targets:
        made = saved(found, folder, target)
        assert 0 < made["largest_difference"] < 1e-5 * max(1, made["largest_score"])
        assert [part["file"] for part in made["parts"]] == [f"{part.name}{target.suffix}" for part in parts]
        assert all((folder / part["file"]).is_file() for part in made["parts"])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder", "vit"])
def test_files_equal_the_model(
    kind: str, targets: list[Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(kind, targets, tmp_path, monkeypatch)


@pytest.mark.long
def test_files_equal_a_detector(targets: list[Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check("detector", targets, tmp_path, monkeypatch)


@pytest.mark.long
def test_tables_at_long_distances(targets: list[Target], tmp_path: Path) -> None:
    """Sources reach each border of t5's buckets."""
    found = EncoderDecoderParts(initialised(jarilab.EncoderDecoder(9, 12, **ONE_LAYER, encoding="t5")))
    made = saved(found, tmp_path, targets[0], {"source": 140, "target": 70})
    assert 0 < made["largest_difference"] < 1e-5 * max(1, made["largest_score"])


class Wrong(Exportable):
    """A model that another program takes for another."""

    def __init__(self, found: Exportable):
        self.found = found

    def parts(self) -> Any:
        return self.found.parts()

    def compared(self, run: Any, longest: Any = LONG) -> Any:
        for theirs, own in self.found.compared(run, longest):
            yield theirs, own + 1e-3


@pytest.mark.slow
def test_different_answers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = exportable(initialised(jarilab.LanguageModel(12, **SMALL, n_layers=1)))
    with pytest.raises(UserError, match=r"its scores differ by 1\.0e-03, expected"):
        saved(Wrong(found), tmp_path, Torch())


@pytest.mark.long
@pytest.mark.slow
def test_description_of_a_run(tmp_path: Path) -> None:
    """A task whose sources have no end of their own."""
    train(tmp_path / "run", tiny("t5"))
    out = tmp_path / "out"
    said = command("export", tmp_path / "run", "--to", "torch", "--out", out)
    assert said.returncode == 0, said.stderr
    assert "encoder.pt2, decoder.pt2, jarilab.json; scores differ by " in said.stdout
    assert {"README.md", "decoder.pt2", "encoder.pt2", "jarilab.json", "tokenizer.json"} <= {
        path.name for path in out.iterdir()
    }
    made = json.loads((out / "jarilab.json").read_text())
    encoder, decoder = made["parts"]
    assert encoder["inputs"] == [
        {"name": "ids", "dtype": "int64", "shape": ["batch", "source"]},
        {"name": "keep", "dtype": "bool", "shape": ["batch", "source"]},
    ]
    assert encoder["outputs"] == ["source.0.key", "source.0.value"]
    assert decoder["outputs"] == ["scores", "present.0.key", "present.0.value"]
    tokens = made["tokens"]
    assert "+" in tokens["source"]
    assert not tokens["source_ends"]
    assert (tokens["first"], tokens["end"]) == (1, 2)
    said = command("export", tmp_path / "run", "--to", "torch", "--out", out)
    assert said.returncode == 2
    assert "choose another --out" in said.stderr


@pytest.mark.slow
def test_names_of_dynamic_axes(tmp_path: Path) -> None:
    """`saved` compares the answers of the files with those of the model."""
    onnx: Any = pytest.importorskip("onnx", reason="NO onnx: graphs of ONNX were NOT checked")
    pytest.importorskip("onnxruntime", reason="NO onnxruntime: graphs of ONNX were NOT checked")
    saved(MODELS["decoder"](), tmp_path, Onnx())
    graph = onnx.load(tmp_path / "decoder.onnx").graph

    def shapes(values: Any) -> dict[str, list[Any]]:
        sizes = {value.name: value.type.tensor_type.shape.dim for value in values}
        return {name: [size.dim_param or size.dim_value for size in found] for name, found in sizes.items()}

    read, written = shapes(graph.input), shapes(graph.output)
    assert read["past.0.key"] == ["batch", 2, "before", 8]
    assert written["scores"] == ["batch", "step", 12]
    assert written["present.keep"] == ["batch", "before + step"]


# What is refused -----------------------------------------------------------------------------------------------------


def test_models_without_parts_are_refused() -> None:
    with pytest.raises(UserError, match=r"Recurrent cannot be exported as a graph: expected one of EncoderDecoder, "):
        exportable(Recurrent(5, 5))


def test_models_that_read_the_token_before_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"token_before=true needs the tokens too; train one without it, or answer with"
    ):
        exportable(jarilab.LanguageModel(12, d_model=8, n_heads=2, token_before=True))


def test_language_models_of_classes_are_refused(tmp_path: Path) -> None:
    model = jarilab.LanguageModel(12, d_model=8, n_heads=2, encoding="rotary", classes=3)
    for write in (exportable, lambda model: huggingface.write(model, tmp_path)):
        with pytest.raises(UserError, match=r"LanguageModel of classes cannot.*scores 3 classes.*`jarilab predict`"):
            write(model)


def test_position_policies_are_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", tiny("rotary", training__positions="offset"))
    with pytest.raises(UserError, match=r"trained with --positions offset; answer with `jarilab predict`"):
        export(tmp_path / "run", tmp_path / "out", to="torch")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path / "run", tiny("rotary"))

    def broken(*_: Any) -> Any:
        raise UserError("broken")

    monkeypatch.setattr(programs, "saved", broken)
    with pytest.raises(UserError, match="broken"):
        export(tmp_path / "run", tmp_path / "out", to="torch")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_nonempty_folder_and_missing_run(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UserError, match="no empty folder; choose another --out"):
        export(tmp_path / "run", tmp_path, to="torch")
    with pytest.raises(UserError, match="nowhere"):
        export(tmp_path / "nowhere", tmp_path / "out", to="torch")


def test_missing_runtime_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "check_packages", lambda: None)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"needs the package onnxruntime; pip install 'jarilab\[onnx\]'"):
        export(tmp_path / "run", tmp_path / "out", to="onnx")


@pytest.mark.long
def test_answers_equal_the_run(tmp_path: Path) -> None:
    """1,000 questions, answered greedily from the description alone."""
    runtime: Any = pytest.importorskip("onnxruntime", reason="NO onnxruntime: graphs of ONNX were NOT checked")
    settings = {"model.d_model": 32, "model.n_encoder_layers": 1, "model.n_decoder_layers": 1, "task.maximum": 99}
    settings |= {"training.examples": 100_000, "training.evaluations": 1}
    jarilab.train("arithmetic", tmp_path / "run", encoding="rotary", settings=settings, threads=1)
    made = export(tmp_path / "run", tmp_path / "out", to="onnx")
    encoder, decoder = (runtime.InferenceSession(tmp_path / "out" / part["file"]) for part in made["parts"])
    tokens = made["tokens"]
    questions = [f"{i}{'+-'[i % 2]}{j}" for i in range(40) for j in range(60, 85)]
    longest = max(map(len, questions))
    numbers = {name: number for number, name in enumerate(tokens["source"])}
    read = [[numbers[sign] for sign in question] for question in questions]
    ids = np.array([row + [tokens["padding"]] * (longest - len(row)) for row in read])
    keep = ids != tokens["padding"]
    kept = encoder.run(None, {"ids": ids, "keep": keep})
    held = dict(zip(made["parts"][0]["outputs"], kept, strict=True))
    for one in made["parts"][1]["inputs"]:
        if one["name"].startswith("past"):
            heads, width = one["shape"][1], one["shape"][3]
            held[one["name"]] = np.zeros((len(ids), heads, 0, width), np.float32)
    step, written = np.full((len(ids), 1), tokens["first"]), []
    for _ in range(tokens["longest"]["target"]):
        scores, *present = decoder.run(None, {"ids": step, "keep": keep, **held})
        held |= dict(zip([name for name in held if name.startswith("past")], present, strict=True))
        step = scores[:, -1:].argmax(-1)
        written.append(step)
    answers = []
    for row in np.concatenate(written, 1).tolist():
        ended = row[: row.index(tokens["end"])] if tokens["end"] in row else row
        answers.append("".join(tokens["target"][number] for number in ended))
    said = [answer.answer for answer in jarilab.predict(tmp_path / "run", questions)]
    assert answers == said
    assert len(set(answers)) > 50
