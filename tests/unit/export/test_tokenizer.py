"""Exported tokenizers and image processors read and write as the run does."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from tests.helpers.small import SMALL, initialised
from tests.unit.pages.kit.test_spelling import MADE, TEXTS
from torch import nn

import jarilab
from jarilab import UserError
from jarilab.data.text.spelling import STRIPPED, Reading, Spelling, Writing
from jarilab.export import image_processor, tokenizer
from jarilab.export.equivalents import LUMINANCE
from jarilab.export.huggingface import write
from jarilab.export.tokenizer import library_of
from jarilab.huggingface import load as load_folder
from jarilab.huggingface import loading, read
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.images import ImageClassification
from jarilab.tasks.predictors.base import predictor_for
from jarilab.tasks.text import Text
from jarilab.tasks.translation import Translation

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None,
        reason="NO transformers: folders of Hugging Face were NOT checked (pip install 'jarilab[huggingface]')",
    ),
    pytest.mark.filterwarnings("ignore"),
]
WORDS = ("ein Hund rennt", "zwei Katzen schlafen", "Ärger <eos> über Öl!", "이백 이십", "12 34")


def run_of(task: Any, model: nn.Module) -> Any:
    """What an export asks of an open run."""
    return SimpleNamespace(task=task, model=initialised(model))


def translator(task: Any, **options: Any) -> Any:
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1, "encoding": "sinusoidal"}
    return run_of(task, jarilab.EncoderDecoder(**task.model_options, **SMALL, **(layers | options)))


def continued(task: Any) -> Any:
    return run_of(task, jarilab.LanguageModel(**task.model_options, **SMALL, n_layers=1, encoding="rotary"))


def translation(at: Path, **options: Any) -> Translation:
    """A task of two files, prepared."""
    for name, sign in (("source", str.lower), ("target", str.upper)):
        lines = [f"{sign(one)} {sign(two)} {n}" for one in WORDS for two in WORDS for n in range(4)]
        (at / name).write_text("\n".join(lines) + "\n")
    task = Translation(train=(str(at / "source"), str(at / "target")), vocab_size=300, longest=24, **options)
    task.prepare()
    return task


def joined(at: Path) -> Any:
    task = Arithmetic(maximum=30)
    task.join()
    return continued(task)


RUNS = {
    "arithmetic": (lambda at: translator(Arithmetic(maximum=30)), True),
    "arithmetic in one sequence": (joined, False),
    "two vocabularies of words": (lambda at: translator(translation(at, tokenizer="words", joint=False)), True),
    "Marian, bpe": (
        lambda at: translator(translation(at, joint=False), norm="post", encoding="sinusoidal:layout=concatenated"),
        True,
    ),
    "one vocabulary": (lambda at: translator(translation(at, tokenizer="unigram"), shared=True), False),
}


def settings_of(task: Any) -> dict[str, Any]:
    """The classes and the answer length of a task, as `export` passes them to `write`."""
    longest = task.longest.get("target") if "source" in task.longest else None
    return {"classes": getattr(task, "classes", ()), "answer": longest}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_folder_reads_and_answers_as_the_run(name: str, tmp_path: Path) -> None:
    make, two = RUNS[name]
    run, out = make(tmp_path), tmp_path / "out"
    write(run.model, out, **settings_of(run.task))
    said = tokenizer.write(run, out)
    assert said.startswith("a tokenizer that reads ")
    assert said.endswith(" texts as the run does")
    assert (out / "target" / "tokenizer.json").exists() == two
    transformers, loaded = loading.library(), load_folder(out)
    mine = transformers.AutoTokenizer.from_pretrained(out)
    texts = [text for text, _ in run.task.held_out_pairs(8)]
    read_here = mine(texts, padding=True, return_tensors="pt")
    own_B = [run.task.read(text) for text in texts]
    if not run.task.one_sequence:
        assert read_here["input_ids"].tolist() == run.task.sources(own_B).ids.tolist()
    model: Any = loaded.model
    written = model.generate(**read_here)
    if run.task.one_sequence:
        written = written[:, read_here["input_ids"].shape[1] :]
    predictor = predictor_for(run.model, run.task)
    expected = [said.answer for said in predictor.predict(texts, predictor.options())]
    if "words" not in name:  # an unknown word is copied by the run, which is more than a tokenizer can do
        assert loaded.target_tokenizer.batch_decode(written, skip_special_tokens=True) == expected
    assert read(loaded, texts[0]).names
    if two:
        for _, text in run.task.held_out_pairs(8):
            assert loaded.target_tokenizer(text).input_ids == run.task.read_target(text)


@pytest.mark.parametrize("name", MADE)
def test_library_equals_the_task(name: str) -> None:
    made = MADE[name]()
    spelling: Spelling = made.spelling
    assert spelling.read is not None
    assert spelling.write is not None
    there = library_of(spelling.read, spelling.write, made.names, [])
    there.encode_special_tokens = True
    read_at_all = 0
    for text in TEXTS:
        try:
            own = made.read(text)
        except UserError:
            continue
        assert there.encode(text).ids == own, text
        read_at_all += 1
    assert read_at_all > 10


def test_pattern_ends_are_not_line_ends() -> None:
    read, write = Reading("[^]", rules=(STRIPPED, ("=$", ""))), Writing()
    there = library_of(read, write, ["a", " ", "\n", "="], [])
    assert there.encode(" a \n a=\na=\n ").tokens == list("a \n a=\na")


@pytest.mark.parametrize("kind", ["bpe", "words", "characters"])
def test_tokenizer_of_a_language_model_adds_nothing(kind: Any, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(f"{word} <pad>" for word in WORDS * 12))
    task = Text(train=(str(tmp_path / "text.txt"),), tokenizer=kind, vocab_size=300, context_length=16)
    task.prepare()
    run = continued(task)
    assert "texts as the run does" in tokenizer.write(run, tmp_path / "out")
    opened = loading.library().AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "zwei Katzen <pad>"
    assert opened(text).input_ids == task.read(text)
    assert opened.decode(task.read(text)) == task.write(task.read(text))
    assert (opened.padding_side, opened.pad_token_id, opened.eos_token_id) == ("left", 0, 2)
    assert opened.model_max_length == 16
    assert not (tmp_path / "out" / "target").exists()


def test_different_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = translator(translation(tmp_path, tokenizer="characters"))
    for name, change, said in (
        ("_decoders", lambda writing: [], "writes the tokens"),
        ("_of_pieces", lambda reading: tokenizer._of_names(reading, run.task.show_source(range(30))), "not"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(tokenizer, name, change)
            with pytest.raises(UserError, match="as the run does, so nothing was written") as refused:
                tokenizer.write(run, tmp_path / name)
        assert said in str(refused.value)


def test_missing_data_leave_random_texts(tmp_path: Path) -> None:
    task = translation(tmp_path)
    (tmp_path / "target").unlink()
    assert "texts as the run does, none of them held out: " in tokenizer.write(translator(task), tmp_path / "out")


def test_task_without_spelling_has_no_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arithmetic, "spelling", Spelling())
    assert tokenizer.write(translator(Arithmetic(maximum=30)), tmp_path).startswith("no tokenizer, since its task")
    assert not any(tmp_path.iterdir())


def pictures(fit: Any, channels: int) -> Any:
    """A run of images of 4 x 6 pixels."""
    task = ImageClassification(colours="grey" if channels == 1 else "colour", fit=fit)
    shape = (channels, 4, 6)
    facts = {"shape": list(shape), "classes": ["cat", "dog", "cow"]}
    task._facts = facts | {"mean": [0.3, 0.4, 0.5][:channels], "deviation": [0.2, 0.3, 0.1][:channels]}
    model = jarilab.VisionTransformer(
        shape, 3, patch_size=2, **SMALL, n_layers=1, pool="class", encoding="learned2d:rows=2,columns=3"
    )
    return run_of(task, model)


@pytest.mark.parametrize("channels", [1, 3])
def test_image_processor_equals_the_run(channels: int, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    run = pictures("stretch", channels)
    write(run.model, tmp_path, **settings_of(run.task))
    assert image_processor.write(run, tmp_path) == ("preprocessor_config.json, which makes of images what the run does")
    path = tmp_path / "drawn.png"
    pixels_HW3 = torch.randint(256, (4, 6, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    image.fromarray(pixels_HW3.numpy()).save(path)
    found = read(load_folder(tmp_path), str(path))
    (label, *_), *_ = run.task.interpret(run.model(run.task.sources([run.task.read(str(path))])), [])
    assert found.answer == run.task.classes[label.number]
    own = run.task.sources([run.task.read(str(path))]).pixels
    read_there = found.inputs["pixel_values"]
    if channels == 1:  # a model that reads grey by its weights
        read_there = (read_there * torch.tensor(LUMINANCE).view(-1, 1, 1)).sum(1, keepdim=True)
        own_level = 1 / 255 / 0.2
        assert (read_there - own).abs().max() < own_level
    else:
        assert torch.allclose(read_there, own, atol=1e-5)


def test_padded_images_have_no_processor(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    run = pictures("pad", 3)
    write(run.model, tmp_path, **settings_of(run.task))
    assert image_processor.write(run, tmp_path).startswith(
        "no preprocessor_config.json: no image processor brings images of 8 x 19 pixels to 4 x 6 as the run does"
    )
    assert not (tmp_path / "preprocessor_config.json").exists()


@pytest.mark.parametrize("channels", [1, 3])
def test_16_bits_are_read_alike(channels: int, tmp_path: Path) -> None:
    """Pillow alone would make everything above 255 white."""
    image = pytest.importorskip("PIL.Image")
    run = pictures("stretch", channels)
    write(run.model, tmp_path, **settings_of(run.task))
    image_processor.write(run, tmp_path)
    path = tmp_path / "drawn.png"
    image.fromarray(numpy.arange(24, dtype=numpy.uint16).reshape(4, 6) * 2600).save(path)
    own = run.task.sources([run.task.read(str(path))]).pixels
    read_there = read(load_folder(tmp_path), str(path)).inputs["pixel_values"]
    assert torch.allclose(read_there, own.expand(-1, 3, -1, -1), atol=1e-5)


@pytest.mark.slow
def test_grey_models_work_in_the_pipeline(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    run = pictures("stretch", 1)
    write(run.model, tmp_path, **settings_of(run.task))
    image_processor.write(run, tmp_path)
    drawn = image.fromarray(numpy.arange(24, dtype=numpy.uint8).reshape(4, 6) * 10)
    drawn.save(tmp_path / "drawn.png")
    own_V = run.model(run.task.sources([run.task.read(str(tmp_path / "drawn.png"))]))[0].softmax(-1)
    pipeline = loading.library().pipeline("image-classification", model=str(tmp_path))
    for asked in (str(tmp_path / "drawn.png"), drawn):
        found = {label["label"]: label["score"] for label in pipeline(asked)}
        assert [found[name] for name in run.task.classes] == pytest.approx(own_V.tolist(), abs=1e-5)
