"""Images cut into patches."""

import pytest
import torch
from torch.nn import functional

from jarilab import Images, Positions, UserError
from jarilab.positions.patches import grid_of, patch_keep, patch_names, patchify

PIXELS = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).view(2, 3, 4, 6)


def test_patches_stand_in_row_major_order_with_channels_rows_and_columns_inside():
    patches = patchify(PIXELS, 2)
    assert patches.shape == (2, 6, 12)
    for row in range(2):
        for column in range(3):
            expected = PIXELS[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].flatten(1)
            assert (patches[:, row * 3 + column] == expected).all()


def test_a_transposed_image_has_its_patches_in_the_transposed_places():
    across, down = patchify(PIXELS[:, :, :4, :4], 1), patchify(PIXELS[:, :, :4, :4].transpose(2, 3), 1)
    places = Positions.grid(4, 4).coordinates
    assert (across.unflatten(1, (4, 4)).transpose(1, 2).flatten(1, 2) == down).all()
    assert (places.view(4, 4, 2).transpose(0, 1).flip(-1).reshape(-1, 2) == places).all()
    assert not (across == down).all()


def test_patches_are_those_of_torch():
    assert (patchify(PIXELS, 2) == functional.unfold(PIXELS, 2, stride=2).mT).all()


@pytest.mark.parametrize(("size", "use"), [((5, 6), "4 x 6"), ((1, 6), "2 x 6"), ((4, 7), "4 x 6")])
def test_a_image_that_patches_do_not_fill_is_refused(size, use):
    with pytest.raises(UserError, match=f"patches of 2 x 2 pixels do not fill .* use images of {use}"):
        grid_of(size, 2)


def test_a_image_of_far_too_many_patches_is_refused():
    assert grid_of((1024, 1024), 4) == (256, 256)
    with pytest.raises(
        UserError, match="of 4096 x 4096 pixels has 1,048,576 patches of 4 x 4: expected 65,536 at most"
    ):
        grid_of((4096, 4096), 4)


def test_a_patch_counts_where_any_of_its_pixels_does():
    keep = torch.zeros(1, 4, 6, dtype=torch.bool)
    keep[0, 3, 0] = True
    assert patch_keep(keep, 2).tolist() == [[False, False, False, True, False, False]]
    assert patch_keep(None, 2) is None


def test_names_say_row_and_column_or_that_there_is_no_place():
    grid = Positions.grid(1, 2)
    assert patch_names(Positions.nowhere(2, grid).concat(grid)) == ["[0]", "[1]", "0,0", "0,1"]


@pytest.mark.parametrize("wrong", [torch.zeros(3, 4, 4), torch.zeros(1, 3, 4, 4, dtype=torch.uint8)])
def test_what_is_no_batch_of_images_is_refused(wrong, unchecked):
    with pytest.raises(UserError, match=r"images are \(B, C, H, W\) in a floating-point type, got"):
        Images.of(wrong)
