"""Captions and their images: what is drawn is what is said, what is left out is told, what is generated is judged."""

import json
import os
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

import jarilab
from jarilab.cli import main
from jarilab.core.errors import UserError
from jarilab.core.options import options_of
from jarilab.data.captions import judges, sources
from jarilab.data.captions.attributes import attributes, describe_images, glyphs, matches_caption
from jarilab.data.captions.digit_classifier import DigitClassifier, halves, train_digit_classifier
from jarilab.data.captions.digit_images import DigitImages
from jarilab.data.captions.sources import FolderSource, SceneSource, read_captioned
from jarilab.data.captions.styles import STYLES, Painter
from jarilab.data.images.image_tokenizer import decibels, train_image_tokenizer
from jarilab.nn.init import generator_for
from jarilab.runs.experiment import Experiment
from jarilab.runs.loaded import OpenRun
from jarilab.tasks.base import evenly
from jarilab.tasks.captions import Captions
from jarilab.tasks.predictors.paintings import Painting, PaintingOptions, PaintingPredictor
from jarilab.training.distributed.batch_rows import even_parts, rows_of
from jarilab.training.loop import train

TINY = {
    "task.scenes": 60, "task.code_steps": 4, "task.judge_steps": 4,
    "model.d_model": 16, "model.n_heads": 2, "model.n_layers": 1,
    "training.examples": 16, "training.batch_size": 8, "training.evaluations": 1, "training.evaluation_examples": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> DigitImages:
    return DigitImages.scans("training")


@pytest.fixture(scope="module")
def ready() -> Captions:
    task = Captions(captions="attributes", scenes=60, code_steps=4, judge_steps=4)
    task.prepare()
    return task


# Words and images -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STYLES)
def test_captions_and_numbers_are_each_others_inverse(name: str) -> None:
    style = STYLES[name]
    values = style.values(torch.arange(style.combinations))
    worded = [style.caption(v) for v in values]
    assert len(set(worded)) == style.combinations == {"row": 1000, "attributes": 320}[name]
    assert all(torch.equal(style.understand(c), v) for c, v in list(zip(worded, values, strict=True))[::37])


def test_captions_read_as_people_write_them() -> None:
    assert STYLES["row"].caption(torch.tensor([3, 1, 7])) == "three one seven"
    assert STYLES["attributes"].caption(torch.tensor([0, 0, 3, 0])) == "a small red 3 top left"
    with pytest.raises(UserError, match="expected a caption such as 'zero zero zero', got 'three one'"):
        STYLES["row"].understand("three one")


def test_rules_find_what_was_drawn(digits: DigitImages) -> None:
    style = STYLES["attributes"]
    numbers = torch.arange(960)
    values = style.values(numbers % style.combinations)
    images = Painter(style, digits, seed=1).paint(values, numbers)
    words = attributes(style, images)
    for name, column in (("size", 0), ("colour", 1), ("place", 3)):
        assert (words[name] == values[:, column]).float().mean() > 0.99, name
        wrong = values.clone()
        wrong[:, column] = (wrong[:, column] + 1) % len(style.parts[column][1])
        right = matches_caption(style, wrong, images, values[:, 2:3])
        assert right[name].mean() < 0.01
        assert right["exact_match"].mean() < 0.01
    assert matches_caption(style, values, images, values[:, 2:3])["exact_match"].mean() > 0.98


def test_a_image_of_nothing_is_right_in_nothing() -> None:
    style = STYLES["attributes"]
    empty = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    assert glyphs(style, empty).abs().sum() == 0
    right = matches_caption(style, torch.zeros(2, 4, dtype=torch.long), empty, torch.zeros(2, 1, dtype=torch.long))
    assert right["exact_match"].tolist() == [0, 0]
    assert right["colour"].tolist() == [0, 0]


@pytest.mark.parametrize("name", STYLES)
def test_what_a_image_shows_is_worded_as_its_caption(name: str, digits: DigitImages) -> None:
    style = STYLES[name]
    numbers = torch.arange(0, style.combinations, 9)
    values = style.values(numbers)
    images = Painter(style, digits, seed=1).paint(values, numbers)
    descriptions = describe_images(style, images, values[:, list(style.digits)])
    right = [words == style.caption(v) for words, v in zip(descriptions, values, strict=True)]
    assert sum(right) > 0.97 * len(right)
    blank = torch.zeros(1, 3, style.height, style.width, dtype=torch.uint8)
    assert describe_images(style, blank, values[:1, list(style.digits)]) == [None]


def test_the_row_is_drawn_in_the_order_of_the_words(digits: DigitImages) -> None:
    style = STYLES["row"]
    painter = Painter(style, digits, seed=1)
    one = painter.paint(torch.tensor([[3, 1, 7]]), torch.tensor([5]))
    other = painter.paint(torch.tensor([[3, 1, 8]]), torch.tensor([5]))
    assert one.shape == (1, 3, 16, 48)
    assert torch.equal(one[..., :32], other[..., :32])
    assert not torch.equal(one[..., 32:], other[..., 32:])
    ink = (one[0, 0] > 75).any(0)
    assert all(ink[start : start + 16].any() for start in (0, 16, 32))


def test_paintings_depend_on_seed_and_number_alone(digits: DigitImages) -> None:
    style = STYLES["attributes"]
    values = style.values(torch.tensor([5, 6, 7]))
    painter = Painter(style, digits, seed=1)
    together = painter.paint(values, torch.tensor([0, 1, 2]))
    assert torch.equal(together[1:2], painter.paint(values[1:2], torch.tensor([1])))
    assert not torch.equal(together, Painter(style, digits, seed=2).paint(values, torch.tensor([0, 1, 2])))


def test_digits_that_are_missing_are_named(digits: DigitImages) -> None:
    some = digits.labels != 4
    few = DigitImages(digits.pixels[some], digits.labels[some], digits.ink[some])
    with pytest.raises(UserError, match=r"captions name every digit, but these .* images show no 4"):
        Painter(STYLES["row"], few, seed=1)


def test_a_judge_sees_every_digit_alike_wherever_and_whatever_its_size(digits: DigitImages) -> None:
    style = STYLES["attributes"]
    painter = Painter(style, digits, seed=1)
    corners = torch.tensor([[1, 0, 6, 0], [1, 3, 6, 3]])
    digits_seen = glyphs(style, painter.paint(corners, torch.tensor([1, 1])))
    assert digits_seen.shape == (2, 1, 24, 24)
    assert (digits_seen[0] - digits_seen[1]).abs().max() < 0.15
    rows, columns = (digits_seen[0, 0] > 0.3).nonzero(as_tuple=True)
    assert max(int(rows.max() - rows.min()), int(columns.max() - columns.min())) + 1 in (19, 20)


@pytest.mark.long
def test_a_judge_learns_to_read_digits_it_has_not_seen(digits: DigitImages, tmp_path: Path) -> None:
    style = STYLES["row"]
    one, other = halves(digits)
    assert len(one.labels) + len(other.labels) == len(digits.labels)
    judge = train_digit_classifier(style, one, seed=1, steps=120)
    values = style.values(torch.arange(0, 1000, 5))
    images = Painter(style, DigitImages.scans("held_out"), seed=2).paint(values, torch.arange(200))
    assert (judge.read(images) == values).float().mean() > 0.85
    assert judge.score(images, values).mean() > judge.score(images, values.roll(1, 0)).mean() + 2
    empty = images[:1].clone()
    empty[..., : style.width // 3] = 0  # a digit that is not there is worse than any that is
    assert judge.score(empty, values[:1]) < judge.score(images, values.roll(1, 0)).min() - 100
    (tmp_path / "judge.safetensors").write_bytes(judge.to_bytes())
    read = DigitClassifier.from_file(style, tmp_path / "judge.safetensors")
    assert torch.equal(read.read(images), judge.read(images))


@pytest.mark.parametrize("name", STYLES)
def test_what_is_not_there_is_never_right(name: str, digits: DigitImages) -> None:
    """Nor is it where a judge, asked for a digit all the same, happens to say the one that should be there."""
    style = STYLES[name]
    values = style.values(torch.arange(0, style.combinations, 7))
    images = Painter(style, digits, seed=1).paint(values, torch.arange(len(values)))
    read = values[:, list(style.digits)]
    assert matches_caption(style, values, images, read)["digit"].min() == 1
    count = len(style.digits)
    side = style.width // count
    for place in range(count):
        images[:, :, :, place * side : (place + 1) * side] = 0
        images[:, :, 3, place * side : place * side + 5] = 255  # next to nothing
        right = matches_caption(style, values, images, read)
        assert right["exact_match"].max() == 0
        assert torch.allclose(right["digit"], torch.tensor((count - place - 1) / count))
        assert glyphs(style, images)[:, place].abs().sum() == 0
        expected = [style.caption(v) for v in values]
        words = [" ".join(["-"] * (place + 1) + caption.split()[place + 1 :]) for caption in expected]
        assert describe_images(style, images, read) == (words if place + 1 < count else [None] * len(values))


@pytest.mark.parametrize("steps", [1, 2, 9, 10, 11, 20])
def test_any_number_of_steps_trains(steps: int, digits: DigitImages) -> None:
    style = STYLES["row"]
    assert train_digit_classifier(style, digits, seed=1, steps=steps, batch_size=3).to_bytes()
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    trained = train_image_tokenizer(lambda numbers: images[numbers], 4, {"width": 8}, steps=steps, batch_size=2)
    assert trained.measured["psnr"] > 0


# Data -------------------------------------------------------------------------------------------------------------


def test_unseen_combinations_are_held_out_without_replacement() -> None:
    source = SceneSource(STYLES["attributes"], "", 4000, 0.7)
    assert len(source.seen) == 96
    assert len(source.to_measure) == 224
    assert not set(source.seen.tolist()) & set(source.to_measure.tolist())
    measured = source.held_out(torch.arange(224))
    assert len(set(measured.captions)) == 224
    assert not set(measured.captions) & set(source.captions)
    assert len(set(source.captions)) == 96
    with pytest.raises(UserError, match=r"unseen=0.999 leaves none of 320 combinations"):
        SceneSource(STYLES["attributes"], "", 10, 0.999)


@pytest.mark.parametrize(("style", "unseen"), [("attributes", 0.0), ("attributes", 0.3), ("row", 0.0)])
def test_what_is_measured_at_even_distances_is_not_the_same_again_and_again(style: str, unseen: float) -> None:
    source = SceneSource(STYLES[style], "", 10, unseen)
    count = len(source.to_measure)
    once = source._of_held_out(torch.arange(7 * count))
    assert torch.equal(once.bincount(minlength=STYLES[style].combinations)[source.to_measure], torch.full((count,), 7))
    for examples in (64, 128, 160, 320):
        numbers = evenly(source.held_out_size, examples)
        chosen = source._of_held_out(numbers)
        assert torch.equal(chosen, once[numbers])
        likely = count * (1 - (1 - 1 / count) ** examples)  # of so many drawn at random
        assert len(set(chosen.tolist())) > 0.9 * likely


def test_few_held_out_images_of_a_folder_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FolderSource(str(folder_of(tmp_path / "data", 120)), 8)
    held = source.held_out_size
    assert source.notices == [
        f"only {held} of 120 images are held out, so that one alone counts for {100 / held:.1f} % of the score; "
        "give more images"
    ]
    monkeypatch.setattr(sources, "SHARE", 0.6)
    many = FolderSource(str(tmp_path / "data"), 8)
    assert many.held_out_size >= 30
    assert many.notices == []


def test_images_to_measure_on_are_of_other_digits() -> None:
    source = SceneSource(STYLES["row"], "", 10, 0.0)
    trained, held = source.digits("training").pixels, source.digits("held_out").pixels
    assert len(trained) + len(held) == 1797
    assert not (trained[:, None] == held[None, :5]).flatten(2).all(-1).any()


def folder_of(path: Path, count: int = 60) -> Path:
    path.mkdir()
    for i in range(count):
        colour = ("red", "green", "blue")[i % 3]
        Image.new("RGB", (20 + i % 3, 24), colour).save(path / f"p{i}.png")
        (path / f"p{i}.txt").write_text(f"a {colour} thing\n")
    return path


def test_a_folder_of_images_and_texts(tmp_path: Path) -> None:
    captioned = read_captioned(folder_of(tmp_path / "data"), 16)
    assert captioned.images.shape == (60, 3, 16, 16)
    assert captioned.captions[:3] == ["a red thing", "a green thing", "a blue thing"]
    assert captioned.images[0, :, 8, 8].tolist() == [255, 0, 0]
    assert captioned.notices == []
    train, held = captioned.split(0.2)
    assert sorted(train + held) == list(range(60))
    assert held


def test_what_has_no_partner_is_counted_and_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data", 12)
    Image.new("RGB", (8, 8)).save(folder / "lonely.png")
    (folder / "mute.txt").write_text("no image")
    Image.new("RGB", (8, 8)).save(folder / "p1.jpg")
    (folder / "p2.txt").write_bytes(b"\xff\xfe broken \xc3")
    (folder / "p3.txt").write_text(" \n")
    (folder / "p4.png").write_bytes(b"no image at all")
    (folder / "p5.txt").write_text("x" * 20_000)
    captioned = read_captioned(folder, 16)
    notices = "\n".join(captioned.notices)
    assert len(captioned.captions) == len(captioned.images) == 8
    assert "images without a caption, left out: 1 (lonely.png)" in notices
    assert "captions without an image, left out: 1 (mute.txt)" in notices
    assert "second images of one caption, left out: 1" in notices
    assert "empty, too long or no UTF-8, left out with their images: 3 (p2.txt, p3.txt, p5.txt)" in notices
    assert "p4.png" in notices


def test_folders_without_anything_to_learn_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        read_captioned(tmp_path / "nowhere", 16)
    (tmp_path / "only.txt").write_text("no image")
    with pytest.raises(UserError, match=r"got none: captions without an image, left out: 1 \(only.txt\)"):
        read_captioned(tmp_path, 16)
    with pytest.raises(UserError, match="too few to hold some out"):
        _ = FolderSource(str(folder_of(tmp_path / "few", 2)), 16).captions


# The task ---------------------------------------------------------------------------------------------------------


def test_batches_hold_captions_codes_and_what_is_left_out(ready: Captions) -> None:
    batch = ready.training_batch(torch.arange(60), generator_for(1, "batch"))
    rows, codes, without = batch.inputs
    assert rows.shape == (60, 7)
    assert codes.shape == (60, 64)
    assert 0 < int(without.sum()) < 20
    assert batch.labels.shape == (60, 71)
    first = int((~without).nonzero()[0])
    assert batch.labels[first, :7].tolist() == [*rows[first, 1:].tolist(), 0]
    assert int(batch.labels[without, :7].abs().sum()) == 0
    assert torch.equal(batch.labels[:, 7:], codes)
    assert ready.words.decode(rows[0, 1:].tolist()) in set(ready._source.captions)


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_the_losses_of_parts_of_a_batch_are_that_of_the_batch(ready: Captions, parts: int) -> None:
    """Words and codes each by their own number: some captions are left out."""
    batch = ready.training_batch(torch.arange(11), generator_for(1, "batch"))
    text = torch.randn(11, 7, len(ready.words))
    image = torch.randn(11, 64, 200)
    scores = SimpleNamespace(text=text, image=image)
    batch_counts = ready.loss_counts(batch, scores)
    total = 0.0
    for rows in even_parts(11, parts):
        piece, part_scores = rows_of(batch, rows), SimpleNamespace(text=text[rows], image=image[rows])
        terms, counts = ready.loss_terms(part_scores, piece, 0.1), ready.loss_counts(piece, part_scores)
        total += sum(term.item() * n / count for term, n, count in zip(terms, counts, batch_counts, strict=True))
    assert total == pytest.approx(ready.loss(scores, batch, 0.1).item(), rel=1e-6)


def test_the_loss_weighs_codes_seven_to_one(ready: Captions) -> None:
    class Scores:
        text = torch.zeros(4, 7, len(ready.words))
        image = torch.zeros(4, 64, 200)

    batch = ready.training_batch(torch.arange(4), generator_for(1, "batch"))
    words, codes = torch.tensor(len(ready.words)).log(), torch.tensor(200.0).log()
    assert ready.loss(Scores, batch).item() == pytest.approx((words + 7 * codes).item() / 8, rel=1e-5)


def test_the_ceiling_of_the_judge_is_stated(ready: Captions) -> None:
    named = {f"{what}_{of}" for what in ("digit", "exact_match") for of in ("real", "reconstructed")}
    assert set(ready._facts["ceiling"]) == named
    assert "of 200 codes used, perplexity" in ready.notices()[-1]
    assert "image tokenizer sha256 " + ready.codes.fingerprint in ready.fingerprint()


def test_a_caption_is_what_its_image_should_show(ready: Captions) -> None:
    assert ready.expected(" a Small  red 3 top left\n") == "a small red 3 top left"
    assert ready.expected("red small a") is None
    held_out = ready._source.held_out(torch.arange(40))
    captions = [ready.judged(image) for image in held_out.images]
    indices = attributes(STYLES["attributes"], held_out.images)
    colours = [dict(STYLES["attributes"].parts)["colour"][int(c)] for c in indices["colour"]]
    assert [caption.split()[2] for caption in captions] == colours  # type: ignore[union-attr]
    assert ready.judged(torch.zeros(3, 32, 32, dtype=torch.uint8)) == "an empty image"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("height", 9, "8 or less, got 9"),
        ("width", -8, "8 or more, got -8"),
        ("height", 10**9, "got 1000000000"),
        ("longest", 10**9, "10001 or less, got 1000000000"),
        ("longest", 1, "2 or more, got 1"),
        ("empty", -1, "0 or more, got -1"),
        ("empty", 200, "less than 200, got 200"),
        ("empty", 1.0, "got 1.0"),
    ],
)
def test_facts_that_cannot_be_are_refused(ready: Captions, tmp_path: Path, name: str, value: Any, message: str) -> None:
    for file, data in ready.artifacts().items():
        (tmp_path / file).write_bytes(data)
    Captions(captions="attributes").restore(tmp_path)
    facts = json.loads((tmp_path / "captions.json").read_bytes())
    (tmp_path / "captions.json").write_text(json.dumps(facts | {name: value}))
    with pytest.raises(UserError) as error:
        Captions(captions="attributes").restore(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'captions.json'}: {name}: ")
    assert message in str(error.value)


def test_captions_that_cannot_be_drawn(ready: Captions) -> None:
    with pytest.raises(UserError, match=r"expected words of the training captions, got purple; known: .*red"):
        ready.read("a small purple 3 top left")
    with pytest.raises(UserError, match="expected a caption of 1 to 6 words, got 0"):
        ready.read("")
    with pytest.raises(UserError, match="expected a caption of 1 to 6 words, got 7"):
        ready.read("a small small red 3 top left")
    with pytest.raises(UserError, match="expected a multiple of 4, got 30"):
        Captions(size=30)


@pytest.mark.slow
def test_a_run_trains_is_measured_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sources, "HELD_OUT", 12)
    monkeypatch.setattr(judges, "REAL_IMAGES", 40)
    experiment = Experiment.of("captions", settings={"task.captions": "attributes", **TINY}, precision="float32")
    result = train(experiment, tmp_path / "run")
    measured = {"exact_match", "digit", "colour", "size", "place", "loss", "loss_of_ink", "digit_real"}
    assert measured <= result.keys()
    assert result["examples"] == 12
    task = experiment.resolved.build_task(tmp_path / "run")
    assert isinstance(task, Captions)
    loaded = jarilab.load(tmp_path / "run")
    predictor = loaded.predictor
    assert isinstance(predictor, PaintingPredictor)
    caption = "a small red 3 top left"
    shown = list(predictor.steps(caption, PaintingOptions(count=3)))
    assert len(shown) == 8
    assert shown[-1].shape == (3, 3, 32, 32)
    assert shown[-1].dtype is torch.uint8
    # What is not drawn yet is empty, and so alike in all.
    assert torch.equal(shown[0][0, :, 20:], shown[0][1, :, 20:])
    assert torch.equal(painted(loaded, caption, count=3), shown[-1])
    chosen = painted(loaded, caption, count=2, rerank=4)
    assert chosen.shape == (2, 3, 32, 32)
    assert torch.equal(painted(loaded, "A small RED 3 top left", count=2, rerank=4), chosen)
    first = painted(loaded, caption, count=1)[0]
    assert torch.equal(first, shown[-1][0])
    traced = predictor.trace(caption, 100).sequences["target"].image
    assert traced is not None
    assert torch.equal(first, traced.pixels)
    unread, read = jarilab.predict(loaded, ["a small purple 3 top left", caption], count=1, rerank=2)
    assert unread.error is not None
    assert unread.error.startswith("expected words of the training captions, got purple; known: ")
    assert unread.record() == {"prompt": "a small purple 3 top left", "out": None, "error": unread.error}
    assert read.error is None, "a caption that cannot be read stops nothing"
    _refuses_what_cannot_be_painted(loaded, caption, tmp_path)
    _reconstructs(loaded, tmp_path, capsys)
    _reads_a_caption(tmp_path, monkeypatch, capsys)


def painted(run: OpenRun, caption: str, **options: Any) -> torch.Tensor:
    (painting,) = jarilab.predict(run, [caption], **options)
    assert isinstance(painting, Painting)
    assert painting.images is not None
    return painting.images


def _refuses_what_cannot_be_painted(loaded: OpenRun, caption: str, folder: Path) -> None:
    """A mistake in the options is raised; it is no fault of a caption."""
    rule = "count and rerank are 1 or more, and 10,000 at most when multiplied"
    for options, message in [
        ({"count": 0}, "count: expected 1 or more, got 0"),
        ({"count": 6000, "rerank": 2}, f"{rule}; got count 6,000 and rerank 2"),
        ({"top_k": 0}, "top_k: expected 1 token or more, got 0"),
    ]:
        with pytest.raises(UserError, match=message):
            list(jarilab.predict(loaded, [caption], **options))
    for several, got in [([caption] * 2, "2 captions"), ([], "nothing")]:
        with pytest.raises(UserError, match=f"expected one caption for the file, got {got}; give one"):
            list(jarilab.predict(loaded, several, out=str(folder / "o.png")))
    for name in ("o.jpg", "o", "png", "o.png.gif", ""):
        for source in (caption, "#1"):
            with pytest.raises(UserError, match=r"expected a name that ends in \.png, since PNG is what is written"):
                list(jarilab.predict(loaded, [source], out=str(folder / name)))
    with pytest.raises(UserError, match="expected a caption or images, got both; give one or the other"):
        list(jarilab.predict(loaded, [caption, "#1"]))
    (long,) = jarilab.predict(loaded, ["a" * 5000])
    assert "expected words of the training captions, got" in str(long.error), "no name of a file is as long"


def _reconstructs(loaded: OpenRun, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Held-out images and files beside what their codes stand for, by function and by command."""
    task: Any = loaded.task
    drawing, out = folder / "some name.png", folder / "again.png"
    Image.fromarray(task.image("#3").permute(1, 2, 0).numpy()).resize((64, 32)).save(drawing)
    held_out, file, wrong = jarilab.predict(loaded, [" #3", drawing, "#12"])
    assert held_out.images is not None
    assert torch.equal(held_out.images[0], task.image("#3"))
    assert torch.equal(held_out.images[1], task.codes.decode(task.codes.encode(held_out.images[:1]))[0])
    assert held_out.decibels == decibels(held_out.images[0], held_out.images[1])
    assert file.images is not None
    assert file.images.shape == (2, 3, 32, 32)  # the middle of it
    assert "#0 to #11" in str(wrong.error)
    assert "#0 to #11" in str(next(jarilab.predict(loaded, ["#" + "9" * 5000])).error)
    command = ["predict", str(folder / "run"), "#3", "none.png", str(drawing), "--threads", "1", "--out"]
    capsys.readouterr()
    assert main([*command, str(out), "--json"]) == 2
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["psnr"] for line in records] == [held_out.decibels, None, file.decibels]
    with Image.open(out) as sheet:
        assert sheet.width > 4 * 72 > sheet.height
    before = drawing.read_bytes()
    assert main([*command, str(drawing)]) == 2
    assert drawing.read_bytes() == before
    with pytest.raises(UserError, match="expected at most 100 images in a grid, got 101; name fewer"):
        list(jarilab.predict(loaded, ["#1"] * 101, out=str(out)))


def _reads_a_caption(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """From standard input, one alone."""
    command = ["predict", str(folder / "run"), "--count", "2", "--threads", "1", "--out", str(folder / "said.png")]
    assert main([*command, "#1", "--prompt", "a small red 3 top left"]) == 2
    assert "got both" in capsys.readouterr().err
    for lines, code, output in (
        ("a small red 3 top left\n", 0, "said.png"),
        ("", 2, "got nothing"),
        ("a\nb\n", 2, "got 2 captions"),
    ):
        (folder / "lines").write_text(lines)
        with (folder / "lines").open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            assert main(command) == code
        assert output in "".join(capsys.readouterr())


def test_the_scorer_chooses_the_likeliest_images(ready: Captions, digits: DigitImages) -> None:
    style = STYLES["attributes"]
    values = style.values(torch.tensor([17, 200]))
    images = Painter(style, digits, seed=1).paint(values.repeat_interleave(4, 0), torch.arange(8))
    scores = ready.judges.scorer.score(images, values.repeat_interleave(4, 0)).view(2, 4)
    best = ready.judges.best(images, values, 1)
    assert torch.equal(best[0], images[int(scores[0].argmax())])
    assert torch.equal(best[1], images[4 + int(scores[1].argmax())])


def test_judge_and_scorer_are_two(ready: Captions) -> None:
    judge, scorer = ready.judges.judge, ready.judges.scorer
    assert judge.to_bytes() != scorer.to_bytes()


def test_a_folder_trains_and_its_image_tokenizer_serves_another_run(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data", 60)
    settings = {**TINY, "task.train": str(folder), "task.size": 16}
    result = train(Experiment.of("captions", settings=settings, precision="float32"), tmp_path / "one")
    assert result["metric"] == "loss"
    assert 0 < result["examples"] < 30
    other = Captions(train=str(folder), size=16, codes=str(tmp_path / "one"))
    other.prepare()
    expected = (tmp_path / "one" / "codes.safetensors").read_bytes()
    assert other.artifacts()["codes.safetensors"] == expected
    with pytest.raises(UserError, match="images of a folder; omit rerank"):
        _ = other.judges


def held_out_alone(path: Path) -> Path:
    """A folder whose first held-out caption has a word, and whose second a length, that no training caption has."""
    folder = folder_of(path, 120)
    named = [f"p{i}.png" for i in range(120)]
    held = [Path(name).stem for name in named if zlib.crc32(name.encode()) < sources.SHARE * 2**32]
    (folder / f"{held[0]}.txt").write_text("a crimson thing")
    (folder / f"{held[1]}.txt").write_text("a red red red thing")
    return folder


def test_held_out_captions_may_have_words_and_lengths_that_training_captions_lack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = held_out_alone(tmp_path / "data")
    settings = {**TINY, "task.train": str(folder), "task.size": 16, "task.code_steps": 1}
    result = train(Experiment.of("captions", settings=settings, precision="float32"), tmp_path / "run")
    opened = jarilab.load(tmp_path / "run")
    task = opened.task
    assert isinstance(task, Captions)
    size = task._source.held_out_size
    assert result["examples"] == size
    unknown, cut = task._held_out_words(["a crimson thing", "a red red red thing"])
    assert [task.words.has_unknown(ids) for ids in (unknown, cut)] == [True, False]
    assert task.words.decode(cut) == "a red red"
    lines = [
        f"held-out captions: {1 / (3 * size + 2):.2%} of the words are not in the vocabulary of the training captions, "
        "and are read as one unknown word; give more captions",
        "1 held-out caption is cut to 3 words, as many as the longest training caption has",
    ]
    assert task.held_out_notices() == lines
    assert set(lines) <= {finding.text for finding in Captions(train=str(folder), size=16).check()}
    assert {f"jarilab: {line}" for line in lines} <= set(capsys.readouterr().err.splitlines())
    (refused,) = jarilab.predict(opened, ["a crimson thing"])
    assert "expected words of the training captions, got crimson" in str(refused.error)
    assert opened.example() in {"a red thing", "a green thing", "a blue thing"}


@pytest.mark.skipif("JARILAB_DATA" not in os.environ, reason="JARILAB_DATA names no folder with mnist/")
def test_mnist_makes_scenes() -> None:
    source = SceneSource(STYLES["row"], str(Path(os.environ["JARILAB_DATA"]) / "mnist"), 10, 0.0)
    assert source.images(torch.arange(4)).shape == (4, 3, 16, 48)


def test_help_of_captions_names_both_styles():
    """`scenes: ` within the sentence would end it, since that is an option."""
    assert all(word in options_of(Captions)["captions"].meaning for word in ("row", "attributes"))
