"""Changes of images: what moves, what stays, and the same for a seed."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.data.images.augment import CropWindows, background, cutmix, flip, mixup, shift


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(batch: int = 64) -> torch.Tensor:
    """Random insides on a background of their own, -2 to 2."""
    around = torch.linspace(-2, 2, batch).view(-1, 1, 1, 1)
    inside = torch.randn(batch, 3, 5, 7)
    return functional.pad(inside - around, (3, 3, 3, 3)) + around


def targets(batch: int = 64) -> torch.Tensor:
    return functional.one_hot(torch.arange(batch) % 10, 10).float()


def test_shifts_move_by_whole_pixels_and_leave_background() -> None:
    before = images()
    after = shift(before, 2, seeded())
    moves = set()
    for one, other, around in zip(before, after, background(before), strict=True):
        padded = functional.pad(one - around, (2, 2, 2, 2)) + around
        matches = [
            (down, right)
            for down in range(-2, 3)
            for right in range(-2, 3)
            if torch.allclose(padded[:, 2 - down : 13 - down, 2 - right : 15 - right], other, atol=1e-6)
        ]
        assert len(matches) == 1
        moves |= set(matches)
    assert len(moves) > 15  # of 25: both axes, both ways
    assert torch.equal(shift(before, 0, seeded()), before)
    assert shift(before, 30, seeded()).isfinite().all()  # out of sight altogether


def test_a_thing_at_the_border_is_not_smeared() -> None:
    image = torch.zeros(200, 1, 8, 8)
    image[:, :, 0, 4] = 1.0
    assert shift(image, 3, seeded()).sum((1, 2, 3)).max() == 1


def test_flips_mirror_about_half() -> None:
    before = images(400)
    after = flip(before, seeded())
    mirrored = (after == before.flip(-1)).all(3).all(2).all(1)
    assert ((after == before).all(3).all(2).all(1) ^ mirrored).all()
    assert 150 < mirrored.sum() < 250


def test_mixup_mixes_images_and_targets_alike() -> None:
    before = torch.eye(64).view(64, 1, 8, 8)  # each pixel tells which image it is of
    mixed, soft = mixup(before, torch.eye(64), 0.4, seeded())
    torch.testing.assert_close(mixed.flatten(1), soft)
    assert (soft > 0).sum(1).max() == 2
    share = torch.stack([mixup(before, torch.eye(64), 0.4, seeded(seed))[1].diagonal() for seed in range(40)]).flatten()
    share = share[share < 1]
    assert share.mean().item() == pytest.approx(0.5, abs=0.03)
    assert share.var().item() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.02)  # of Beta(0.4, 0.4)


def test_cutmix_counts_pixels() -> None:
    height, width = 16, 24
    before = torch.arange(32.0).view(-1, 1, 1, 1).expand(-1, 2, height, width)
    mixed, soft = cutmix(before, torch.eye(32), 1.0, seeded())
    sizes = set()
    for row in range(32):
        other = mixed[row, 0] != row
        sizes.add(int(other.sum()))
        assert soft[row, row].item() == pytest.approx(1 - other.float().mean().item(), abs=1e-6)
        rows, columns = other.any(1).nonzero()[:, 0], other.any(0).nonzero()[:, 0]
        assert int(other.sum()) == len(rows) * len(columns)  # a rectangle
        assert len(mixed[row][:, other].unique()) <= 1
        assert torch.equal(mixed[row, 0], mixed[row, 1])
    assert len(sizes) > 10


@pytest.mark.parametrize("mix", [mixup, cutmix])
@pytest.mark.parametrize("alpha", [0.05, 0.8, 5.0])
def test_targets_add_up_to_one(mix: Callable, alpha: float) -> None:
    for batch in (1, 2, 64):
        mixed, soft = mix(images(batch), targets(batch), alpha, seeded())
        torch.testing.assert_close(soft.sum(1), torch.ones(batch), atol=1e-6, rtol=0)
        assert soft.min() >= 0
        assert mixed.shape == images(batch).shape
    with pytest.raises(UserError, match=r"expected alpha above 0; got 0"):
        mix(images(2), targets(2), 0.0, seeded())


def test_the_same_for_a_seed_and_another_for_another() -> None:
    before = images()
    changes = [
        lambda g: shift(before, 3, g),
        lambda g: flip(before, g),
        lambda g: torch.cat([x.flatten() for x in mixup(before, targets(), 0.3, g)]),
        lambda g: torch.cat([x.flatten() for x in cutmix(before, targets(), 0.3, g)]),
    ]
    for change in changes:
        first = change(seeded())
        torch.rand(3)  # other random numbers do not matter
        assert torch.equal(first, change(seeded()))
        assert not torch.equal(first, change(seeded(4)))


def test_moving_backwards_is_refused() -> None:
    with pytest.raises(UserError, match=r"moved by 0 pixels or more; got -1"):
        shift(images(), -1, seeded())


def test_the_rectangle_has_the_share_of_the_pixels_and_the_proportions_of_the_image() -> None:
    """At a large alpha every share is a half: sides of sqrt(1/2), where the border does not cut them."""
    before = torch.arange(200.0).view(-1, 1, 1, 1).expand(-1, 1, 20, 40)
    other = cutmix(before, torch.eye(200), 1e8, seeded())[0][:, 0] != torch.arange(200).view(-1, 1, 1)
    assert other.any(2).sum(1).max() == pytest.approx(20 * 0.5**0.5, abs=1)
    assert other.any(1).sum(1).max() == pytest.approx(40 * 0.5**0.5, abs=1)


def test_the_background_is_what_most_of_the_border_is() -> None:
    image = torch.full((1, 2, 6, 6), 0.25)
    image[:, :, 2:4, 2:4] = 9.0
    image[:, 1] += 1
    image[:, :, 0, 0] = image[:, :, -1, -1] = image[:, :, 0, -1] = 7.0
    assert background(image).flatten().tolist() == [0.25, 1.25]
    assert (shift(image, 1, seeded(1))[0, 0] == 0.25).sum() >= 36 - 4 - 3


def test_boxes_become_shares_of_the_window_that_is_cut_out() -> None:
    windows = CropWindows(corner=torch.tensor([[0.5, 0.0]]), side=torch.tensor([0.5]))
    boxes = torch.tensor([[[0.75, 0.25, 0.5, 0.5], [0.5, 0.25, 0.4, 0.2]]])  # one inside, one half outside
    cut, left = windows.boxes(boxes)
    torch.testing.assert_close(cut, torch.tensor([[[0.5, 0.5, 1.0, 1.0], [0.2, 0.5, 0.4, 0.4]]]))
    torch.testing.assert_close(left, torch.tensor([[1.0, 0.5]]))
