"""Windows put back into an image, held against transformers' own partition and reversal of windows."""

import importlib.util

import pytest
import torch

from jarilab.core.errors import UserError
from jarilab.inspect.fields.windows import patches_of_windows, windows_to_image

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None,
        reason="NO transformers: windows were NOT compared with those of Swin (pip install 'jarilab[huggingface]')",
    ),
    pytest.mark.filterwarnings("ignore"),
]
CASES = [((8, 8), 4, 0), ((8, 12), 4, 2), ((7, 10), 4, 2), ((3, 5), 4, 1)]


def attended(weights, values, size, shift):
    """Values `(rows, columns, C)` after the attention of each window, in the steps of Swin's layer; one head."""
    from transformers.models.swin.modeling_swin import window_partition, window_reverse

    rows, columns, _ = values.shape
    padded = torch.nn.functional.pad(values, (0, 0, 0, -columns % size, 0, -rows % size))
    windows = window_partition(padded.roll((-shift, -shift), (0, 1))[None], size).flatten(1, 2)
    moved = (weights @ windows).unflatten(1, (size, size))
    return window_reverse(moved, size, *padded.shape[:2])[0].roll((shift, shift), (0, 1))[:rows, :columns]


@pytest.mark.parametrize(("grid", "size", "shift"), CASES)
def test_the_map_moves_values_as_the_windows_do(grid, size, shift):
    generator = torch.Generator().manual_seed(1)
    patches = patches_of_windows(grid, (size, size), (shift, shift))
    weights = torch.rand(len(patches), 3, size**2, size**2, generator=generator).softmax(-1)
    values = torch.randn(*grid, 5, generator=generator)
    maps = windows_to_image(weights, patches)
    assert maps.shape == (3, grid[0] * grid[1], grid[0] * grid[1])
    for head in range(3):
        expected = attended(weights[:, head], values, size, shift)
        assert torch.allclose((maps[head] @ values.flatten(0, 1)).view(values.shape), expected, atol=1e-6)


def test_windows_that_are_no_squares():
    assert patches_of_windows((2, 6), (1, 3), (0, 0)).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert patches_of_windows((2, 3), (2, 2), (1, 0)).tolist() == [[3, 4, 0, 1], [5, -1, 2, -1]]


def test_windows_of_another_grid_are_refused():
    patches = patches_of_windows((8, 8), (4, 4), (0, 0))
    with pytest.raises(UserError, match="expected 4 windows of 16 patches, got 8 of 16"):
        windows_to_image(torch.rand(8, 2, 16, 16), patches)
