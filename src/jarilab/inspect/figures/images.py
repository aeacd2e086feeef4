"""Attention weights over the image whose patches are the keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jarilab.core.errors import UserError
from jarilab.inspect.figures.figure import GAP, Figure
from jarilab.inspect.figures.scale import NAME, Scale
from jarilab.inspect.figures.style import MIN_FONT_SIZE, FigureStyle, label

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
    scale = Scale.of(list(weights_NRC), high, name, seen_through=True)
    titles = ["image", *map(label, names)]
    figure = Figure(FigureStyle.of(options), [*titles, name])
    line = figure.line()
    below = GAP + scale.height(figure)
    with figure.context():
        narrowest = figure.width_of(titles, MIN_FONT_SIZE)
        fitting = int((figure.style.width - GAP) / (narrowest + GAP))
        columns = max(1, min(len(titles), MAX_COLUMNS, fitting))
        rows = -(-len(titles) // columns)
        tall = pixels.shape[0] / pixels.shape[1]
        column_width = (figure.style.width - GAP * (columns + 1)) / columns
        wide = min(column_width, ((figure.space - below) / rows - line - GAP) / tall)
        figure.check_fits(wide / 40 if fitting else 0.0, f"a figure of {len(titles)} images")
        size = min(figure.style.font_size, MIN_FONT_SIZE * column_width / narrowest)
        down = line + GAP + wide * tall
        across = min(column_width, max(wide, figure.width_of(titles, size))) + GAP
        top = figure.begin(down * rows + below)
        left = (figure.style.width - columns * across) / 2
        for number, title in enumerate(titles):
            row, column = divmod(number, columns)
            middle, y = left + (column + 0.5) * across, top + row * down + line
            x = middle - wide / 2
            figure.text(middle, y - line / 2, title, ha="center", va="center_baseline", size=size)
            figure.picture(pixels, x, y, wide, wide * tall, frame=0.25)
            if number:
                figure.picture(scale.colours(weights_NRC[number - 1]), x, y, wide, wide * tall)
        scale.draw_bar(figure, top + rows * down + GAP)
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
