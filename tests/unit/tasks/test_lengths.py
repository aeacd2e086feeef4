"""Held-out data of other lengths: each task's against a loop, windows with a stride, and what is refused."""

import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import jarilab
from jarilab.core.errors import UserError
from jarilab.data.images import labelled
from jarilab.data.text import END, FIRST, PADDING
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.images import Digits
from jarilab.tasks.number_words import NumberWords
from jarilab.tasks.predictors.base import untrained_positions
from jarilab.tasks.sequences import Copy, Reverse
from jarilab.tasks.text import AT_ONCE, Text

SONG = "".join(chr(97 + number * number % 26) for number in range(2000))
SMALL = {"model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "training.epochs": 1, "training.batch_size": 8}


class Bigrams:
    """A learner that scores the next token by the last one and by its position in the window."""

    model = None

    def __init__(self, size: int):
        self.table = torch.randn(size, size, generator=torch.Generator().manual_seed(1))
        self.batches: list[Any] = []

    def scores(self, batch: Any) -> torch.Tensor:
        self.batches.append(batch)
        (tokens,) = batch.inputs
        far_L = tokens.positions.index().expand(tokens.ids.shape) / 100
        return self.table[tokens.ids] * (1 + far_L.unsqueeze(-1))

    def write(self, sources: Any) -> list[list[int]]:
        raise NotImplementedError


@pytest.fixture(scope="module")
def song(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("song") / "song.txt"
    path.write_text(SONG)
    return path


@pytest.fixture(scope="module")
def text(song: Path) -> Text:
    task = Text(train=(str(song),), valid=str(song), context_length=32)
    task.prepare()
    return task


def mean_loss(task: Text, table: torch.Tensor, length: int, stride: int) -> float:
    """The loss of each token once, in the first window that reads it, by a loop over tokens."""
    ids = [FIRST, *task.read(SONG), END]
    losses = []
    for index in range(len(ids) - 1):
        start = max(0, math.ceil((index + 1 - length) / stride)) * stride
        scores = table[ids[index]].double() * (1 + (index - start) / 100)
        losses.append(-float(scores.log_softmax(-1)[ids[index + 1]]))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("length", "stride"), [(32, 32), (64, 64), (64, 16), (500, 7), (33, 32), (2001, 1), (32, 5)])
def test_windows_of_a_text_are_those_of_a_loop(text: Text, length: int, stride: int) -> None:
    longer, learner = text.at_length(length, stride), Bigrams(text.model_options["vocab_size"])
    metrics = longer.evaluate(learner)
    assert metrics["loss"] == pytest.approx(mean_loss(text, learner.table, length, stride), rel=1e-5)
    counted = sum(int((batch.labels != PADDING).sum()) for batch in learner.batches)
    assert counted == len(SONG) + 1
    most = AT_ONCE * 32
    assert all(batch.labels.numel() <= max(most, length) for batch in learner.batches)
    assert text.context_length == 32, "the task itself stays"


def test_without_a_stride_windows_do_not_overlap(text: Text) -> None:
    one, other = Bigrams(40), Bigrams(40)
    assert text.at_length(64).evaluate(one) == text.at_length(64, 64).evaluate(other)
    assert text.at_length(32).evaluate(one) == text.evaluate(other), "at the trained length nothing changes"


def written(ids: list[int], task: Arithmetic) -> str:
    return task.write([number for number in ids if number != PADDING])


@pytest.mark.parametrize("answers", ["plain", "reversed", "padded"])
@pytest.mark.parametrize("operators", ["+-", "-"])
def test_longer_operands(answers: Any, operators: Any) -> None:
    task = Arithmetic(maximum=99, answers=answers, operators=operators)
    longer = task.at_length(5)
    pairs = longer.held_out_pairs()
    assert len(pairs) == 1000 * len(operators)
    for source, answer in pairs:
        operator = "+" if "+" in source else "-"
        left, right = source.split(operator)
        assert len(left) == len(right) == 5
        assert left[0] != "0"
        value = int(left) + int(right) if operator == "+" else int(left) - int(right)
        digits = str(abs(value)).zfill(5 + (operators == "+-") if answers == "padded" else 1)
        expected = "-" * (value < 0) + digits
        assert answer == (expected[::-1] if answers == "reversed" else expected)
    assert longer.longest["source"] == 11
    assert longer.held_out_pairs() == task.at_length(5).held_out_pairs(), "the same in every process"
    assert "carries and borrows" in longer._kinds(longer._held_out)


def test_shorter_operands_are_held_out_too() -> None:
    task = Arithmetic(maximum=150)
    held_out = set(task.held_out_pairs())
    pairs = task.at_length(2).held_out_pairs()
    assert pairs
    assert set(pairs) < held_out
    two = {pair for pair in held_out if all(len(side) == 2 for side in pair[0].replace("-", "+").split("+"))}
    assert set(pairs) == two


def test_longer_lines_of_numbers() -> None:
    task = Reverse(lines=50, held_out=20, lengths="1..8", symbols=9)
    task.prepare()
    assert task.describe()
    assert task.trained_length == 8
    longer = task.at_length(30)
    assert len(longer.held_out) == 20
    for source, target in longer.held_out:
        assert len(source.split()) == 30
        assert target.split() == source.split()[::-1]
    assert longer.longest["target"] == 31
    assert task.longest["target"] == 9
    assert {len(source.split()) for source, _ in task.held_out} <= set(range(1, 9))
    short = task.at_length(3)
    assert {len(source.split()) for source, _ in short.held_out} == {3}
    assert short.longest == task.longest


def test_pairs_by_the_length_of_their_source() -> None:
    task = NumberWords(direction="ko-en", maximum=9999)
    task.prepare()
    some = task.at_length(6)
    expected = [pair for pair in task.held_out if 3 < len(task.read(pair[0])) <= 6]
    assert some.held_out == expected
    assert 0 < len(expected) < len(task.held_out)


@pytest.mark.parametrize("size", [None, 8])
def test_images_of_other_sizes(tmp_path: Path, size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    noise = numpy.random.default_rng(1)
    for number in range(40):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        pixels = noise.integers(0, 255, (32, 32) if size else (8, 8), dtype=numpy.uint8)
        image.fromarray(pixels).save(tmp_path / "ab"[number % 2] / f"{number}.png")
    from jarilab.tasks.images import ImageClassification

    task = ImageClassification(train=str(tmp_path), size=size, held_out=0.3)
    task.prepare()
    read: list[Path] = []
    original = labelled.read_bytes
    monkeypatch.setattr(labelled, "read_bytes", lambda path: read.append(path) or original(path))
    larger, _ = task.at_length(32), task.at_length(16)
    held_out = [path for path, _ in task.held_out.files]
    assert read == (held_out * 2 if size else []), "no file of a training image, and none without more details"
    assert 0 < len(held_out) < 40
    assert larger.held_out.shape == (1, 32, 32)
    assert task.held_out.shape == (1, 8, 8)
    assert torch.equal(larger.held_out.labels, task.held_out.labels)
    assert torch.equal(larger.held_out.marks, task.held_out.marks), "the same images are held out"
    details = [number for number in range(40) if numpy.array(
        image.open(tmp_path / "ab"[number % 2] / f"{number}.png")
    ).tolist() == larger.held_out.images(torch.tensor([0]))[0, 0].tolist()]  # fmt: skip
    assert details or size is None, "the pixels of the file, not of the small image"


@pytest.fixture(scope="module")
def run(song: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = {"task.train": str(song), "task.context_length": 16} | SMALL
    jarilab.train("text", folder, encoding="learned:positions=64", settings=settings, threads=1)
    return folder


def test_untrained_rows_are_noted(run: Path) -> None:
    at_16, at_32 = (jarilab.evaluate(run, length=length, threads=1) for length in (16, 32))
    assert at_16["notices"] == []
    (notice,) = at_32["notices"]
    assert "16 to 31" in notice
    assert "64 rows" in notice
    assert (at_32["length"], at_32["trained_length"], at_32["stride"]) == (32, 16, None)
    assert at_16["loss"] == jarilab.evaluate(run, threads=1)["loss"]
    assert jarilab.evaluate(run, length=32, stride=8, threads=1)["loss"] != at_32["loss"]
    assert jarilab.evaluate(run, stride=16, threads=1)["loss"] == at_16["loss"]


def test_a_run_is_measured_with_another_encoding(song: Path, tmp_path: Path) -> None:
    settings = {"task.train": str(song), "task.context_length": 16} | SMALL
    jarilab.train("text", tmp_path / "run", encoding="rotary", settings=settings, threads=1)
    measured = {
        encoding: jarilab.evaluate(tmp_path / "run", length=32, encoding=encoding, threads=1)
        for encoding in (None, "rotary_linear:factor=1", "rotary_linear:factor=2")
    }
    plain, same, stretched = measured.values()
    assert same["loss"] == plain["loss"]
    assert stretched["loss"] != plain["loss"]
    assert stretched["encoding"] == "rotary_linear:factor=2"
    shaw = lambda: jarilab.evaluate(tmp_path / "run", encoding="shaw", threads=1)  # noqa: E731
    refused(shaw, "the parameters of rotary", "shaw", "is not trained", "train a model")


def test_lengths_of_held_out_lines_are_not_trained_ones() -> None:
    task = Copy(lines=9, held_out=9, lengths="1..8", test_lengths="1..20")
    task.prepare()
    model = jarilab.EncoderDecoder(53, 53, d_model=16, n_encoder_layers=1, n_decoder_layers=1, encoding="learned")
    for notice, side in zip(untrained_positions(model, task, task.at_length(16)), ("source", "target"), strict=True):
        assert f"positions 9 to 16 of the {side}" in notice
    assert untrained_positions(model, task, task.at_length(8)) == []


@pytest.mark.parametrize("encoding", ["learned2d", "learned", "rotary2d"])
@pytest.mark.parametrize("resolution", ["extrapolate", "resize"])
def test_untrained_rows_of_images_are_noted(encoding: str, resolution: str) -> None:
    pytest.importorskip("sklearn")
    task = Digits()
    task.prepare()
    model = jarilab.VisionTransformer(
        task.shape, 10, patch_size=2, d_model=16, n_layers=1, encoding=encoding, pool="class", resolution=resolution
    )
    notices = untrained_positions(model, task, task.at_length(16))
    rows = {"learned2d": ("4 to 7", "32 rows"), "learned": ("16 to 63", "512 rows")}
    if encoding in rows and resolution == "extrapolate":
        (notice,) = notices
        assert all(part in notice for part in rows[encoding])
    else:
        assert notices == []
    assert untrained_positions(model, task, task.at_length(8)) == []


def refused(action: Any, *parts: str) -> None:
    with pytest.raises(UserError) as error:
        action()
    for part in parts:
        assert part in str(error.value)


def test_lengths_that_cannot_be_measured(run: Path, text: Text) -> None:
    refused(lambda: jarilab.evaluate(run, length=65, threads=1), "0 to 63", "got 64", "without a limit")
    refused(lambda: jarilab.evaluate(run, length=1, threads=1), "2 or more", "got 1", "give")
    refused(lambda: jarilab.evaluate(run, length=5000, threads=1), "5,000", "tokens", "smaller length")
    refused(lambda: text.at_length(64, 65), "1 to 64", "got 65", "give")
    refused(lambda: text.at_length(64, 0), "1 to 64", "got 0", "give")
    refused(lambda: Copy(lines=9).at_length(20_000), "10,000", "20000")
    refused(lambda: Copy(lines=9).at_length(20, 5), "windows of a text", "Copy", "omit")
    refused(lambda: Arithmetic(maximum=99).at_length(16), "15 digits", "16", "smaller")
    refused(lambda: Arithmetic(minimum=100, maximum=200).at_length(2), "2 digits", "none", "another")
    words = NumberWords()
    words.prepare()
    refused(lambda: words.at_length(60), "31 to 60", "none", "another length")
