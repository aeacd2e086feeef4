"""Cropped training images: what is in the window, which things stay, and the same for a seed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from helpers.runs import PowerCutError, at, cut, outcome, train
from jarilab.core.errors import UserError
from jarilab.data.images.augment import CropWindows
from jarilab.nn.init import generator_for
from jarilab.positions.boxes import Detected, to_xyxy
from jarilab.positions.patches import Images
from jarilab.runs.experiment import Experiment
from jarilab.tasks import detection_loss
from jarilab.tasks.detection import Detection
from jarilab.tasks.detection_data import cropped
from jarilab.tasks.detection_loss import Objects

pytest.importorskip("sklearn")
pytest.importorskip("pycocotools")


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def padded(sizes: list[tuple[int, int]]) -> Images:
    """Random images of these heights and widths, with 7 where there is none."""
    height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
    keep = torch.zeros(len(sizes), height, width, dtype=torch.bool)
    for row, (high, wide) in enumerate(sizes):
        keep[row, :high, :wide] = True
    return Images(torch.randn(len(sizes), 3, height, width).where(keep.unsqueeze(1), torch.tensor(7.0)), keep)


def window(monkeypatch: pytest.MonkeyPatch, left: float, top: float, side: float) -> None:
    """Every image is cut to this one."""

    def drawn(count: int, most: float, generator: torch.Generator) -> CropWindows:
        return CropWindows(torch.tensor([[left, top]] * count), torch.tensor([side] * count))

    monkeypatch.setattr(CropWindows, "draw", staticmethod(drawn))


def one_image(*things: tuple[int, list[float]], padding: int = 0) -> Objects:
    """Things with left, top, right and bottom."""
    boxes = torch.zeros(1, len(things) + padding, 4)
    labels, real = torch.zeros(boxes.shape[:2], dtype=torch.long), torch.zeros(boxes.shape[:2], dtype=torch.bool)
    for i, (label, (left, top, right, bottom)) in enumerate(things):
        boxes[0, i] = torch.tensor([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top])
        labels[0, i], real[0, i] = label, True
    return Objects(labels, boxes, real)


# Windows ----------------------------------------------------------------------------------------------------------


def test_half_of_the_images_stay_whole_and_the_windows_of_the_others_are_anywhere() -> None:
    windows = CropWindows.draw(4000, 0.4, seeded())
    uncropped = windows.side == 1
    assert 1850 < int(uncropped.sum()) < 2150
    assert (windows.corner[uncropped] == 0).all()
    side, corner = windows.side[~uncropped], windows.corner[~uncropped]
    assert 0.6 <= side.min() < 0.61
    assert 0.99 < side.max() < 1
    assert float(side.mean()) == pytest.approx(0.8, abs=0.01)
    free = corner / (1 - side).unsqueeze(1)  # of the way from one rim to the other
    assert (free >= 0).all()
    assert (corner + side.unsqueeze(1) <= 1 + 1e-6).all()
    assert free.mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.03)
    assert float(torch.corrcoef(free.T)[0, 1]) == pytest.approx(0, abs=0.06)
    assert (CropWindows.draw(100, 0.0, seeded()).side == 1).all()


def test_the_same_windows_for_a_seed_and_others_for_another() -> None:
    first, again, other = (CropWindows.draw(50, 0.4, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.corner, again.corner)
    assert torch.equal(first.side, again.side)
    assert not torch.equal(first.side, other.side)


@pytest.mark.parametrize("most", [-0.1, 1.0, float("nan")])
def test_windows_without_a_image_are_refused(most: float) -> None:
    with pytest.raises(UserError, match=r"images lose from 0 to less than 1 of each side; got"):
        CropWindows.draw(3, most, seeded())


# Pixels -----------------------------------------------------------------------------------------------------------


def test_pixels_are_those_that_a_grid_over_the_window_samples() -> None:
    """Against torch's own sampling, for each image without its padding."""
    sizes = [(20, 31), (24, 17), (9, 31), (1, 1)] * 6
    before, windows = padded(sizes), CropWindows.draw(len(sizes), 0.5, seeded())
    after = windows.pixels(before)
    for row, (high, wide) in enumerate(sizes):
        side, (left, top) = float(windows.side[row]), windows.corner[row].tolist()
        unpadded = before.pixels[row : row + 1, :, :high, :wide]
        theta = torch.tensor([[[side, 0, 2 * left + side - 1], [0, side, 2 * top + side - 1]]])
        grid = functional.affine_grid(theta, [1, 3, high, wide], align_corners=False)
        there = functional.grid_sample(unpadded, grid, padding_mode="border", align_corners=False)
        torch.testing.assert_close(after.pixels[row : row + 1, :, :high, :wide], there, atol=2e-5, rtol=0)


def test_whole_images_and_padding_stay_to_the_bit() -> None:
    before = padded([(20, 31), (24, 17)] * 20)
    windows = CropWindows.draw(40, 0.5, seeded())
    after = windows.pixels(before)
    assert before.keep is not None
    assert torch.equal(after.keep, before.keep)  # type: ignore[arg-type]
    assert (after.pixels.where(~before.keep.unsqueeze(1), torch.tensor(7.0)) == 7).all()
    same = (after.pixels == before.pixels).flatten(1).all(1)
    assert torch.equal(same, windows.side == 1)
    without = windows.pixels(Images(before.pixels))
    assert without.keep is None
    assert torch.equal((without.pixels == before.pixels).flatten(1).all(1), windows.side == 1)


# Boxes ------------------------------------------------------------------------------------------------------------


def test_boxes_stay_around_their_things() -> None:
    """One bright rectangle in each image: its box is where the brightness is."""
    count, height, width = 60, 80, 120
    pixels, boxes = torch.zeros(count, 1, height, width), torch.zeros(count, 1, 4)
    for row in range(count):
        left, top = row, row % 30
        pixels[row, :, top : top + 40, left : left + 50] = 1
        boxes[row, 0] = torch.tensor([(left + 25) / width, (top + 20) / height, 50 / width, 40 / height])
    windows = CropWindows.draw(count, 0.4, seeded())
    cut_boxes, left_over = windows.boxes(boxes)
    bright = windows.pixels(Images(pixels)).pixels[:, 0] > 0.5
    for row in range(count):
        if left_over[row, 0] == 0:
            assert not bright[row].any()
            continue
        rows, columns = bright[row].any(1).nonzero()[:, 0], bright[row].any(0).nonzero()[:, 0]
        there = torch.tensor([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
        box = to_xyxy(cut_boxes[row, 0]) * torch.tensor([width, height] * 2)
        assert (box - there).abs().max() <= 0.51
    cropped = windows.side < 1
    assert torch.equal(cut_boxes[~cropped], boxes[~cropped])
    assert (cut_boxes[cropped] != boxes[cropped]).any(-1).all()


def test_how_much_of_a_box_is_left_is_a_share_of_its_area() -> None:
    windows = CropWindows(torch.tensor([[0.2, 0.4]]), torch.tensor([0.5]))
    things = one_image((0, [0.3, 0.5, 0.4, 0.6]), (0, [0.0, 0.4, 0.4, 0.9]), (0, [0.6, 0.8, 1.0, 1.0]),
                         (0, [0.1, 0.4, 0.2, 0.9]), (0, [0.0, 0.0, 1.0, 1.0]))  # fmt: skip
    boxes, left = windows.boxes(things.boxes)
    assert left[0].tolist() == pytest.approx([1, 0.5, 0.125, 0, 0.25], abs=1e-6)
    corners = to_xyxy(boxes[0])
    assert corners[0].tolist() == pytest.approx([0.2, 0.2, 0.4, 0.4], abs=1e-6)
    assert corners[1].tolist() == pytest.approx([0, 0, 0.4, 1], abs=1e-6)
    assert corners[4].tolist() == pytest.approx([0, 0, 1, 1], abs=1e-6)


def test_the_narrowest_boxes_are_left_or_gone_and_nothing_else() -> None:
    windows = CropWindows(torch.tensor([[0.2, 0.2]]), torch.tensor([0.6]))
    tiny = torch.tensor([[[0.5, 0.5, 1e-9, 1e-9], [0.9, 0.9, 1e-9, 1e-9]]])
    boxes, left = windows.boxes(tiny)
    assert boxes.isfinite().all()
    assert left[0].tolist() == pytest.approx([1, 0], abs=0.2)


# Things that stay -------------------------------------------------------------------------------------------------


def test_things_of_which_less_than_a_quarter_is_left_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    window(monkeypatch, 0.5, 0.0, 0.5)  # the right half, upper part
    things = one_image(
        (3, [0.4, 0.1, 0.52, 0.2]),  # a sixth is left
        (5, [0.6, 0.1, 0.7, 0.2]),  # all
        (7, [0.1, 0.1, 0.3, 0.2]),  # nothing
        (8, [0.42, 0.1, 0.55, 0.2]),  # more than a third
        padding=2,
    )
    _, remaining = cropped(Images(torch.zeros(1, 1, 8, 8)), things, 0.5, seeded())
    assert remaining.labels.tolist() == [[0, 5, 0, 8, 0, 0]]
    assert remaining.real.tolist() == [[False, True, False, True, False, False]]
    assert to_xyxy(remaining.boxes[0, 1]).tolist() == pytest.approx([0.2, 0.2, 0.4, 0.4], abs=1e-6)
    assert to_xyxy(remaining.boxes[0, 3]).tolist() == pytest.approx([0.0, 0.2, 0.1, 0.4], abs=1e-6)
    assert (remaining.boxes[0, [0, 2, 4, 5]] == 0).all()


def test_a_image_that_loses_everything_teaches_that_nothing_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    window(monkeypatch, 0.5, 0.5, 0.5)
    _, remaining = cropped(Images(torch.zeros(1, 1, 8, 8)), one_image((3, [0.1, 0.1, 0.4, 0.4])), 0.5, seeded())
    assert remaining.labels.shape == (1, 1)
    assert not remaining.real.any()
    scores = torch.randn(1, 1, 4, 11, requires_grad=True)
    parts = detection_loss.loss(Detected(scores, torch.rand(1, 1, 4, 4)), remaining, 0.1)
    assert parts["l1"] == parts["giou"] == 0
    parts["classes"].backward()
    assert scores.grad is not None
    assert (scores.grad[..., -1] < 0).all()


# The task ---------------------------------------------------------------------------------------------------------


def task(**options: Any) -> Detection:
    made = Detection(scenes=32, **options)
    made.prepare()
    return made


def same(one: Any, other: Any) -> bool:
    (images,), (others,) = one.inputs, other.inputs
    pairs = [(images.pixels, others.pixels)]
    pairs += [(getattr(one.labels, name), getattr(other.labels, name)) for name in ("labels", "boxes", "real")]
    return all(torch.equal(*pair) for pair in pairs)


def test_a_batch_is_cropped_by_its_generator_alone() -> None:
    numbers, cropping = torch.arange(32), task(crop=0.4)
    first, again, other = (cropping.training_batch(numbers, generator_for(1, name)) for name in ("x", "x", "y"))
    assert same(first, again)
    assert not same(first, other)
    plain = task().training_batch(numbers, generator_for(1, "x"))
    uncropped = (plain.inputs[0].pixels == first.inputs[0].pixels).flatten(1).all(1)
    assert 6 < int(uncropped.sum()) < 26
    real = plain.labels.real[uncropped]
    assert torch.equal(real, first.labels.real[uncropped])
    assert torch.equal(plain.labels.boxes[uncropped][real], first.labels.boxes[uncropped][real])
    assert int(first.labels.real.sum()) <= int(plain.labels.real.sum())
    assert same(plain, task(crop=0.0).training_batch(numbers, generator_for(1, "x")))


def test_images_are_flipped_as_they_are_without_cropping() -> None:
    numbers = torch.arange(32)
    flipped, both = (task(flip=True, crop=c).training_batch(numbers, generator_for(1, "x")) for c in (0.0, 0.4))
    uncropped = (flipped.inputs[0].pixels == both.inputs[0].pixels).flatten(1).all(1)
    assert 6 < int(uncropped.sum()) < 26


class Looking:
    """A learner that keeps what it is shown."""

    model = judge = None

    def __init__(self) -> None:
        self.shown: list[torch.Tensor] = []

    def write(self, sources: Any) -> list[list[int]]:
        raise NotImplementedError

    def most_attended(self, source: Any, written: Any) -> list[int]:
        raise NotImplementedError

    def scores(self, batch: Any) -> Detected:
        self.shown.append(batch.inputs[0].pixels)
        return Detected(torch.zeros(1, len(batch.labels), 4, 11), torch.full((1, len(batch.labels), 4, 4), 0.5))


def test_held_out_images_are_measured_whole() -> None:
    plain, cropping = Looking(), Looking()
    task().evaluate(plain, 20)
    task(crop=0.9).evaluate(cropping, 20)
    assert torch.equal(plain.shown[0], cropping.shown[0])


def test_what_it_may_be_is_said() -> None:
    with pytest.raises(UserError) as error:
        Experiment.of("detection", settings={"task.crop": 1.0})
    assert str(error.value) == "detection: crop: expected 0.9 or less, got 1.0 (default 0.0)"


@pytest.mark.slow
def test_a_run_that_crops_and_is_cut_off_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    settings = {"model.d_model": 16, "model.n_heads": 2, "model.n_encoder_layers": 1, "model.n_decoder_layers": 1,
                "model.d_ff": 16, "training.batch_size": 4, "training.examples": 24, "training.evaluations": 2,
                "training.evaluation_examples": 8, "task.scenes": 8, "task.crop": 0.4, "task.flip": True}  # fmt: skip
    experiment = Experiment.of("detection", settings=settings, precision="float32")
    train(tmp_path / "whole", experiment)
    with pytest.raises(PowerCutError):
        train(tmp_path / "run", experiment, report=at(4, cut))
    train(tmp_path / "run", experiment)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("sizes", [[(20, 31)] * 3, [(20, 31), (5, 9), (31, 20)]])
def test_what_a_model_reads_has_the_sizes_it_had(sizes: list[tuple[int, int]]) -> None:
    before = padded(sizes)
    things = one_image((1, [0.2, 0.2, 0.8, 0.8]))
    many = Objects(*(part.expand(len(sizes), *part.shape[1:]) for part in (things.labels, things.boxes, things.real)))
    after, cut_objects = cropped(before, many, 0.4, seeded())
    assert after.pixels.shape == before.pixels.shape
    assert torch.equal(after.keep, before.keep)  # type: ignore[arg-type]
    assert (cut_objects.boxes >= 0).all()
    assert (to_xyxy(cut_objects.boxes) <= 1 + 1e-6).all()
