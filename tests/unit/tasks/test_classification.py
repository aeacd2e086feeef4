"""Tasks of classes: digits, and a person's own images; what is predicted, and what is told."""

import hashlib
import json

import numpy
import pytest
import torch

import jarilab
from helpers.command import command
from jarilab import UserError
from jarilab.data.images.labelled import Labelled
from jarilab.runs.experiment import Experiment
from jarilab.tasks.classification import _mean_and_deviation
from jarilab.tasks.images import Digits, ImageClassification

pytest.importorskip("sklearn")
Image = pytest.importorskip("PIL.Image")

SMALL = {"training.epochs": 1, "training.evaluations": 1, "training.evaluation_examples": 50, "model.d_model": 16,
         "model.n_layers": 1, "model.n_heads": 2}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits") / "run"
    jarilab.train("digits", folder, encoding="rotary2d", settings=SMALL, precision="float32", threads=1)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two classes, told apart by where the light is."""
    root = tmp_path_factory.mktemp("images")
    noise = numpy.random.default_rng(1)
    for name in ("left", "right"):
        (root / name).mkdir()
        for number in range(40):
            pixels = noise.integers(0, 60, (8, 8), dtype=numpy.uint8)
            pixels[:, slice(0, 4) if name == "left" else slice(4, 8)] += 150
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def task():
    digits = Digits()
    digits.prepare()
    return digits


def test_digits_hold_out_one_in_five_and_train_on_none_of_them():
    digits = task()
    assert (digits.training_size, len(digits.held_out)) == (1437, 360)
    marks = [hashlib.sha256(p.numpy().tobytes()).hexdigest() for p in digits.held_out.images(torch.arange(360))]
    trained = {hashlib.sha256(p.numpy().tobytes()).hexdigest() for p in digits._training.images(torch.arange(1437))}
    assert not trained & set(marks)
    assert digits.model_options == {"shape": (1, 8, 8), "classes": 10}


def test_images_are_normalised_as_the_training_images_are():
    digits = task()
    pixels = digits._normalised(digits._training.images(torch.arange(1437)))
    assert pixels.mean().abs() < 1e-5
    assert pixels.std() == pytest.approx(1, abs=1e-3)


def test_mean_and_deviation_are_taken_in_batches(monkeypatch):
    sizes, images = [], Labelled.images
    monkeypatch.setattr(Labelled, "images", lambda self, indices: sizes.append(len(indices)) or images(self, indices))
    pixels = torch.randint(0, 256, (700, 3, 5, 4), dtype=torch.uint8)
    pixels[:, 1] = 7
    marks = torch.arange(700)
    found = _mean_and_deviation(Labelled(pixels, marks % 2, ["a", "b"], marks))
    assert (sum(sizes), max(sizes)) == (700, 256)
    of_all = pixels.double() / 255
    expected = torch.stack((of_all.mean((0, 2, 3)), of_all.std((0, 2, 3)).clamp_min(1e-3)))
    assert torch.equal(torch.tensor(found), expected.float())
    assert torch.tensor(found, dtype=torch.float64).allclose(expected, rtol=1e-12)


def test_a_batch_is_the_same_for_a_seed_and_its_targets_add_up_to_1():
    digits = Digits(mixup=0.4, cutmix=1.0)
    digits.prepare()
    first, again, other = (
        digits.training_batch(torch.arange(16), torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert (first.inputs[0].pixels == again.inputs[0].pixels).all()
    assert not (first.inputs[0].pixels == other.inputs[0].pixels).all()
    assert first.labels.sum(1).tolist() == pytest.approx([1] * 16)
    assert len(first.labels) == 16
    assert first.inputs[1] is True, "of a class token's last layer nobody looks at the rest in training"


def test_a_run_answers_without_its_data_and_is_measured_as_it_was(run):
    loaded = jarilab.load(run)
    measured = loaded.predictor.evaluate()
    result = json.loads((run / "result.json").read_text())
    assert measured["accuracy"] == result["accuracy"]
    assert measured["loss"] == pytest.approx(result["loss"], rel=1e-6)
    metadata = json.loads((run / "pictures.json").read_text())
    assert metadata["classes"] == [str(digit) for digit in range(10)]


def test_what_is_predicted_is_ranked_and_adds_up_to_1(run):
    answers = list(jarilab.predict(run, ["#3"], n_best=10))
    assert [answer.rank for answer in answers] == list(range(1, 11))
    probabilities = [answer.tokens[0][1] for answer in answers]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    loaded = jarilab.load(run)
    scores = loaded.model(loaded.task.sources([loaded.task.read("#3")]))
    assert answers[0].answer == str(int(scores.argmax()))
    assert loaded.task.expected("#3") == str(int(loaded.task.held_out.labels[3]))


def test_a_file_is_read_as_the_training_images_were(run, tmp_path):
    loaded = jarilab.load(run)
    pixels = loaded.task.read("#3").pixels
    Image.fromarray(pixels[0].numpy()).save(tmp_path / "three.png")
    assert (loaded.task.read(str(tmp_path / "three.png")).pixels == pixels).all()
    Image.fromarray(pixels[0].repeat_interleave(4, 0).repeat_interleave(4, 1).numpy()).save(tmp_path / "large.png")
    large = loaded.task.read(str(tmp_path / "large.png"))
    assert large.size == (32, 32)
    both = torch.stack((large.pixels.flatten().float(), pixels.flatten().float()))
    assert torch.corrcoef(both)[0, 1] > 0.9


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("#360", r"expected the number of a held-out image, #0 to #359, got '#360'"),
        ("#x", "expected the number of a held-out image"),
        ("nowhere.png", "nowhere.png"),
    ],
)
def test_what_is_no_image_gets_its_error_and_stops_nothing(run, line, why):
    wrong, right = jarilab.predict(run, [line, "#3"])
    assert wrong.answer is None
    assert right.answer is not None
    with pytest.raises(UserError, match=why):
        jarilab.load(run).task.read(line)


def test_a_search_for_tokens_is_refused(run):
    with pytest.raises(UserError, match=r"has no option 'beam_size'; Options: n_best$"):
        jarilab.predict(run, ["#3"], beam_size=2)
    with pytest.raises(UserError, match=r"has no option 'beam_size'; Options: nothing$"):
        jarilab.evaluate(run, threads=1, beam_size=2)


def test_folders_of_images_are_learned(folders, tmp_path):
    settings = {**SMALL, "task.train": str(folders), "task.shift": 0, "task.held_out": 0.3, "training.epochs": 30,
                "training.batch_size": 16}  # fmt: skip
    result = jarilab.train(
        "images", tmp_path / "run", encoding="learned2d", settings=settings, precision="float32", threads=1
    )
    assert result["accuracy"] == 1.0
    loaded = jarilab.load(tmp_path / "run")
    assert list(loaded.task.classes) == ["left", "right"]
    (answer,) = jarilab.predict(loaded, [str(folders / "right" / "3.png")])
    assert answer.answer == "right"
    assert jarilab.evaluate(tmp_path / "run", threads=1)["accuracy"] == 1.0
    assert jarilab.evaluate(tmp_path / "run", data=[str(folders)], threads=1)["examples"] == 80


def test_what_is_left_out_of_held_out_images_is_told(folders, tmp_path, capsys):
    for name in ("left", "other"):
        (tmp_path / "valid" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("L", (8, 8), 9).save(tmp_path / "valid" / name / f"{number}.png")
    settings = {**SMALL, "task.train": str(folders), "task.valid": str(tmp_path / "valid")}
    jarilab.train("images", tmp_path / "run", encoding="none", settings=settings, precision="float32", threads=1)
    expected = "images left out, of classes that the training data does not have: 2 ("
    assert expected in capsys.readouterr().err
    (notice,) = jarilab.evaluate(tmp_path / "run", threads=1)["notices"]
    assert notice.startswith(expected)


def test_held_out_images_of_another_size_are_told(folders, tmp_path, capsys):
    for name in ("left", "right"):
        (tmp_path / "valid" / name).mkdir(parents=True)
        Image.new("L", (9, 8), len(name)).save(tmp_path / "valid" / name / "wide.png")
        Image.new("L", (8, 8), len(name)).save(tmp_path / "valid" / name / "whole.png")
    settings = {**SMALL, "task.train": str(folders), "task.valid": str(tmp_path / "valid")}
    jarilab.train("images", tmp_path / "run", encoding="none", settings=settings, precision="float32", threads=1)
    expected = "2 of 4 images were stretched to 8 x 8 (left/wide.png, "
    assert capsys.readouterr().err.count(expected) == 1
    (notice,) = jarilab.evaluate(tmp_path / "run", threads=1)["notices"]
    assert notice == f"{expected}right/wide.png)"


def test_held_out_images_that_are_trained_on_are_counted(folders, tmp_path, capsys):
    settings = {**SMALL, "task.train": str(folders), "task.valid": str(folders)}
    jarilab.train("images", tmp_path / "run", encoding="none", settings=settings, precision="float32", threads=1)
    count = sum(1 for path in folders.rglob("*") if path.is_file())
    expected = f"{count} of {count} held-out images (100.0 %) equal a training image, which makes the score better"
    assert capsys.readouterr().err.count(expected) == 1
    train = next(folders.rglob("*.png"))
    for name in ("left", "right"):
        (tmp_path / "valid" / name).mkdir(parents=True)
        Image.effect_noise((8, 8), 99).save(tmp_path / "valid" / name / "new.png")
    settings["task.valid"] = str(tmp_path / "valid")
    jarilab.train("images", tmp_path / "new", encoding="none", settings=settings, precision="float32", threads=1)
    assert "a training image" not in capsys.readouterr().err
    with Image.open(train) as image:
        image.save(tmp_path / "valid" / "left" / "known.bmp")  # the same pixels in other bytes
    jarilab.train("images", tmp_path / "one", encoding="none", settings=settings, precision="float32", threads=1)
    assert "1 of 3 held-out images (33.3 %) equals a training image" in capsys.readouterr().err


def test_fewer_answers_than_one_are_refused(run):
    with pytest.raises(UserError, match="n_best: expected 1 or more, got 0"):
        jarilab.predict(run, ["#3"], n_best=0)


def test_without_images_to_train_on_it_says_so():
    with pytest.raises(UserError, match="--train names no images; write --train FOLDER"):
        ImageClassification().prepare()


def test_an_encoding_for_a_line_and_one_for_a_plane_train_alike(tmp_path):
    for encoding in ("learned:positions=16", "none", "alibi2d", "t5"):
        experiment = Experiment.of("digits", encoding, SMALL, 1, "float32")
        assert experiment.resolved.build_model(task())(jarilab.Images(torch.zeros(2, 1, 8, 8))).shape == (2, 10)


# On the command line --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_images_on_the_command_line(run, tmp_path):
    loaded = jarilab.load(run)
    Image.fromarray(loaded.task.read("#3").pixels[0].numpy()).save(tmp_path / "three.png")
    process = command("predict", run, tmp_path / "three.png", "#3")
    first, second = process.stdout.split()
    assert (process.returncode, first) == (0, second)
    process = command("predict", run, tmp_path / "no.png", "#3")
    assert (process.returncode, process.stdout.splitlines()[0]) == (2, "")
    assert "no.png" in process.stderr
    for arguments, why in [
        (("--draw", "x.png", "#3"), "unrecognized arguments: --draw x.png #3; the options of this run are --n-best"),
        (("--count", "2", "#3"), "unrecognized arguments: --count 2 #3; the options of this run are --n-best"),
        (("--prompt", "#3", "#4"), "expected sources as words or as --prompt, got both"),
    ]:
        process = command("predict", run, *arguments)
        assert (process.returncode, process.stdout) == (2, "")
        assert why in process.stderr
