import gzip
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.data.captions.digit_images import DigitImages
from jarilab.data.captions.scenes import COLOURS, Scenes, SceneWorld
from jarilab.positions.boxes import iou_and_giou

pytest.importorskip("sklearn")
NUMBERS = torch.arange(200)
PINNED = [[611, 241, 543], [191, 531, 645], [823, 211, 308]]


def scenes(seed: int = 1, **world: Any) -> Scenes:
    return Scenes(SceneWorld(**world), DigitImages.scans("training"), seed=seed)


def test_a_scene_follows_from_seed_and_number_alone() -> None:
    first, again, other = scenes(), scenes(), scenes(seed=2)
    plan = first.plan(NUMBERS)
    some = again.plan(NUMBERS.flip(0)[:7])
    assert torch.equal(first.draw(plan).flip(0)[:7], again.draw(some))
    assert torch.equal(plan.boxes.flip(0)[:7], some.boxes)
    assert not torch.equal(first.draw(plan), other.draw(other.plan(NUMBERS)))


def test_what_is_drawn_stays_the_same_for_good() -> None:
    """Numbers drawn are pinned: runs are continued, and compared, on the same scenes."""
    plan = scenes().plan(torch.tensor([0, 1, 10**12]))
    assert plan.sources.tolist() == PINNED


def test_training_and_held_out_digits_are_different_scans() -> None:
    training, held_out = DigitImages.scans("training"), DigitImages.scans("held_out")
    assert len(training.labels) + len(held_out.labels) == 1797
    assert set(held_out.labels.tolist()) == set(range(10))
    trained_on = {one.numpy().tobytes() for one in training.pixels}
    assert not any(one.numpy().tobytes() in trained_on for one in held_out.pixels)


def test_ink_fills_its_box_and_nothing_else() -> None:
    made = scenes()
    plan = made.plan(NUMBERS)
    pixels = made.draw(plan)[:, 0] > 0
    inside = torch.zeros_like(pixels)
    for b, n in plan.real.nonzero().tolist():
        left, top, right, bottom = plan.boxes[b, n].long().tolist()
        assert 0 <= left < right <= 48
        assert 0 <= top < bottom <= 48
        inside[b, top:bottom, left:right] = True
        patch = pixels[b, top:bottom, left:right]
        # Ink reaches all four sides, but for a pixel where it is faint.
        reached = [patch[:2].any(), patch[-2:].any(), patch[:, :2].any(), patch[:, -2:].any()]
        assert all(reached)
    assert not (pixels & ~inside).any()


def test_digits_are_as_many_as_large_and_as_far_apart_as_asked() -> None:
    made = scenes(fewest=0, most=4, smallest=10, largest=20, overlap=0.05, canvas=64)
    plan = made.plan(torch.arange(500))
    counts = plan.real.sum(1)
    assert counts.min() == 0
    assert counts.max() == 4
    longest = (plan.boxes[..., 2:] - plan.boxes[..., :2]).amax(-1)[plan.real]
    assert longest.min() == 10
    assert longest.max() == 20
    iou = iou_and_giou(plan.boxes.unsqueeze(2), plan.boxes.unsqueeze(1))[0]
    both = plan.real.unsqueeze(2) & plan.real.unsqueeze(1) & ~torch.eye(4, dtype=torch.bool)
    assert iou[both].max() <= 0.05
    assert iou[both].max() > 0


def test_a_digit_without_a_place_is_left_out() -> None:
    made = scenes(fewest=4, most=4, smallest=30, largest=40, overlap=0.0)
    plan = made.plan(torch.arange(50))
    assert 1 <= plan.real.sum(1).min() < 4


def test_empty_scenes_are_black() -> None:
    made = scenes(fewest=0, most=1)
    plan = made.plan(torch.arange(40))
    pixels = made.draw(plan)
    empty = plan.real.sum(1) == 0
    assert 5 < int(empty.sum()) < 35
    assert not pixels[empty].any()
    assert all(image.any() for image in pixels[~empty])


def test_digits_have_the_colours_that_are_said() -> None:
    colours = ("red", "green", "blue", "yellow")
    made = scenes(fewest=1, most=1, colours=colours)
    plan = made.plan(NUMBERS)
    for pixels, box, colour in zip(made.draw(plan), plan.boxes[:, 0].long(), plan.colours[:, 0], strict=True):
        left, top, right, bottom = box.tolist()
        patch = pixels[:, top:bottom, left:right].float().flatten(1)
        brightest = patch[:, patch.sum(0).argmax()]
        wanted = torch.tensor(COLOURS[colours[int(colour)]]).float()
        assert torch.nn.functional.cosine_similarity(brightest, wanted, dim=0) > 0.99
    assert set(plan.colours[:, 0].tolist()) == set(range(len(colours)))


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"colours": ("pink",)}, "scenes know no colour 'pink'"),
        ({"fewest": 3, "most": 2}, r"got 3 \.\.\. 2"),
        ({"smallest": 12, "largest": 60}, r"4 <= smallest <= largest <= 48"),
    ],
)
def test_worlds_that_cannot_be_are_refused(world: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        scenes(**world)


def test_a_blank_digit_is_left_out() -> None:
    pixels = torch.zeros(2, 8, 8)
    pixels[1, 2:5, 3:7] = 1.0
    digits = DigitImages.of(pixels, torch.tensor([4, 5]))
    assert digits.labels.tolist() == [5]
    assert digits.ink.tolist() == [[3.0, 2.0, 7.0, 5.0]]


def test_a_batch_is_drawn_fast() -> None:
    """A step of training takes some hundred milliseconds; the bound is loose, for busy machines."""
    made = scenes()
    made.draw(made.plan(torch.arange(32)))
    times = []
    for start in range(32, 32 * 12, 32):
        begun = time.process_time()
        made.draw(made.plan(torch.arange(start, start + 32)))
        times.append(time.process_time() - begun)
    assert min(times) < 0.02


def idx(folder: Path, name: str, axes: tuple[int, ...], data: bytes) -> None:
    head = bytes((0, 0, 8, len(axes))) + b"".join(side.to_bytes(4, "big") for side in axes)
    (folder / name).write_bytes(gzip.compress(head + data))


def test_mnist_is_split_as_its_files_are(tmp_path: Path) -> None:
    for name, label in (("train", 3), ("t10k", 8)):
        idx(tmp_path, f"{name}-images-idx3-ubyte.gz", (2, 4, 4), bytes([0] * 5 + [255] * 2 + [0] * 9) * 2)
        idx(tmp_path, f"{name}-labels-idx1-ubyte.gz", (2,), bytes([label, label]))
    assert DigitImages.mnist(tmp_path, "training").labels.tolist() == [3, 3]
    assert DigitImages.mnist(tmp_path, "held_out").labels.tolist() == [8, 8]
    assert DigitImages.mnist(tmp_path, "held_out").ink[0].tolist() == [1.0, 1.0, 3.0, 2.0]


def test_a_folder_without_mnist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="MNIST's four idx files"):
        DigitImages.mnist(tmp_path, "training")
    with pytest.raises(UserError, match="MNIST's four idx files"):
        DigitImages.mnist(tmp_path / "nowhere", "training")
    idx(tmp_path, "train-images-idx3-ubyte.gz", (1, 2, 2), bytes(4))
    with pytest.raises(UserError, match="MNIST's four idx files"):
        DigitImages.mnist(tmp_path, "held_out")


def test_large_scenes_are_drawn_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    made = scenes(most=5)
    plan = made.plan(torch.arange(7))
    at_once = made.draw(plan)
    monkeypatch.setattr("jarilab.data.captions.scenes.PIXELS", 2 * made.world.canvas**2)
    assert torch.equal(made.draw(plan), at_once)
