"""Attention weights over the image whose patches are the keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jarilab.core.errors import UserError
from jarilab.inspect.figures.figure import Figure
from jarilab.inspect.figures.maps import NAME, colours_of
from jarilab.inspect.figures.style import MIN_FONT_SIZE, FigureStyle, label

GAP = 0.2
MAX_COLUMNS = 4
"""Images side by side; fewer where their titles are wide."""
MAX_FIRST = 16
"""Keys before the patches, such as a class token and registers, where the grid is not given."""


def draw_over_image(
    pixels: Any,
    weights: Any,
    names: Sequence[str],
    *,
    high: int | float | None = None,
    name: str = NAME,
    **options: Any,
) -> Figure:
    """An image, and beside it for each query the weights over it: the lower a weight, the more of the image is seen.

    pixels: `(height, width, 3)`, bytes or from 0 to 1. weights: `(N, rows, columns)` of the patches. names: of the N
    queries. high: end of the colour scale (default: the largest weight). Raises UserError for other shapes.
    """
    pixels = _image(pixels)
    weights_NRC = np.asarray(weights).astype(np.float64)
    if weights_NRC.ndim != 3 or not weights_NRC.size or len(names) != len(weights_NRC):
        raise UserError(
            f"expected weights (N, rows, columns) and N names, got {weights_NRC.shape} and {len(names)}; give one map "
            "of patches a query"
        )
    high = float(np.nanmax(weights_NRC)) or 1.0 if high is None else high
    colours = colours_of(list(weights_NRC), high, seen_through=True)
    titles = ["image", *map(label, names)]
    widest = Figure(options, titles).width_of(titles, MIN_FONT_SIZE)
    style = FigureStyle.of(options)
    columns = max(1, min(len(titles), MAX_COLUMNS, int(style.width / (widest + GAP))))
    rows, column = -(-len(titles) // columns), style.width / columns - GAP
    size = min(style.font_size, MIN_FONT_SIZE * column / widest)
    figure = Figure(options, [*titles, name])
    with figure.context():
        grid = figure.canvas.subplots(rows, columns, squeeze=False)
        shown = zip(grid.flat, titles, [None, *weights_NRC], strict=False)
        image = None
        for axes, title, map_RC in shown:
            axes.set_title(title, fontsize=size)
            extent = axes.imshow(pixels).get_extent()
            if map_RC is not None:
                image = axes.imshow(map_RC, extent=extent, **colours)
        for number, axes in enumerate(grid.flat):
            axes.set(xticks=[], yticks=[], visible=number < len(titles))
        figure.add_bar(image, name)
        figure.fit(1)
    return figure


def _image(pixels: Any) -> np.ndarray:
    """Pixels as bytes `(height, width, 3)`."""
    image = np.asarray(pixels)
    if image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise UserError(
            f"expected an image (height, width, 3), got the shape {image.shape}; of a tensor (3, height, width), give "
            "image.permute(1, 2, 0)"
        )
    if image.dtype != np.uint8:
        low, high = image.min(), image.max()
        if not -1e-3 <= low <= high <= 1 + 1e-3:
            raise UserError(
                f"expected an image of bytes, or of numbers from 0 to 1, got numbers from {low:.3g} to {high:.3g}; "
                "divide by 255, or undo the normalization of the model"
            )
        image = np.round(255 * np.clip(image, 0, 1)).astype(np.uint8)
    return image


def patch_grid(keys: int, pixels: Any, grid: tuple[int, int] | None) -> tuple[int, int]:
    """Rows and columns of the patches, which are the last of the keys.

    grid: as the user gives it; if None, the largest grid of square patches. Raises UserError if none fits.
    """
    height, width = _image(pixels).shape[:2]
    if grid is None:
        square = [rows for rows in range(1, keys + 1) if rows * width % height == 0]
        grids = [(rows, rows * width // height) for rows in square]
        fitting = [each for each in grids if 0 <= keys - math.prod(each) <= MAX_FIRST]
        grid = fitting[-1] if fitting else (0, 0)
    rows, columns = grid
    if rows < 1 or columns < 1 or rows * columns > keys:
        raise UserError(
            f"expected a grid of patches among the {keys} keys for an image of {height} x {width} pixels, got "
            f"{rows} x {columns}; give grid=(rows, columns), and the image as the model reads it"
        )
    return rows, columns
