"""Attention in windows (Liu et al. 2021, Swin), put back into the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor

Grid = tuple[int, int]
"""Rows and columns."""


def windows_of(above: Sequence[nn.Module]) -> tuple[Grid, Grid] | None:
    """Size and shift of the windows of a layer, by the attributes of Swin's layers; None if it has no windows.

    above: the modules that contain the attention, such as `tape.recorded(site).placed.above`.
    """
    for module in reversed(above):
        layer: Any = module
        if hasattr(layer, "window_size") and hasattr(layer, "shift_size"):
            return _pair(layer.window_size), _pair(layer.shift_size)
    return None


def _pair(size: Any) -> Grid:
    rows, columns = size if isinstance(size, tuple | list) else (size, size)
    return int(rows), int(columns)


def patches_of_windows(grid: Grid, size: Grid, shift: Grid) -> Int[Tensor, "W P"]:
    """The patch of each token of each window, counted row by row; -1 for padding.

    grid: of the patches of the layer. size, shift: of its windows, see `windows_of`.
    """
    down, across = (math.ceil(count / side) for count, side in zip(grid, size, strict=True))
    padded = torch.full((down * size[0], across * size[1]), -1)
    padded[: grid[0], : grid[1]] = torch.arange(grid[0] * grid[1]).view(grid)
    shifted = padded.roll((-shift[0], -shift[1]), (0, 1))
    # Window row, row in the window, window column, column in the window.
    split = shifted.unflatten(0, (down, size[0])).unflatten(2, (across, size[1]))
    return split.transpose(1, 2).flatten(2).flatten(0, 1)


def windows_to_image(
    weights: Float[Tensor, "V H Q K"], patches: Int[Tensor, "W P"]
) -> Float[Tensor, "H L L"]:
    """One map between all patches of an image; 0 between patches that share no window.

    weights: of one image, whose windows are the batch. patches: see `patches_of_windows`.
    Raises UserError if they do not fit.
    """
    if weights.shape[::3] != patches.shape:
        raise UserError(
            f"expected {patches.shape[0]} windows of {patches.shape[1]} patches, got {len(weights)} of "
            f"{weights.shape[3]}; pass one image, and the grid of this layer"
        )
    count = int(patches.max()) + 1
    # Padding (-1) goes to an extra row and column.
    image = weights.new_zeros(weights.shape[1], count + 1, count + 1)
    image[:, patches.unsqueeze(2), patches.unsqueeze(1)] = weights.transpose(0, 1)
    return image[:, :-1, :-1]
