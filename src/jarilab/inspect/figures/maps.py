"""One attention map with its tokens, and a grid of the maps of many heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jarilab.core.errors import UserError
from jarilab.inspect.figures.figure import GAP, INK, POINT, Figure
from jarilab.inspect.figures.scale import MASKED, NAME, Scale
from jarilab.inspect.figures.style import FigureStyle, label

MAX_CELL = 0.9
"""Centimetres of a cell of a small map."""
SPACE = 0.08
"""The share of a cell of a grid that is between its maps."""
GRID_WORDS = ("head", "layer", "in each map: queries down, keys across")
PAD = 0.08
"""Centimetres between a map and its labels."""


def draw_map(
    weights: Any,
    queries: Sequence[str],
    keys: Sequence[str],
    allowed: Any = None,
    *,
    high: int | float | None = None,
    name: str = NAME,
    titles: tuple[str, str] = ("query", "key"),
    blank: str = MASKED,
    **options: Any,
) -> Figure:
    """One map: queries down, keys across, with a named colour scale. Masked keys are hatched.

    weights: `(Q, K)`. queries, keys: names of the tokens. allowed: `(Q, K)`, False where a key is masked. high: end of
    the colour scale; 1 by default, or the largest weight of a map of more than 24 tokens. name: of the numbers.
    titles: of rows and columns. blank: what hatched cells mean. options: see `FigureStyle`.
    Raises UserError for shapes that do not fit and for unknown options.
    """
    weights_QK = masked(weights, allowed)
    rows, columns = token_labels(weights_QK, queries, keys)
    scale = Scale.of([weights_QK], high, name, blank)
    figure = Figure(FigureStyle.of(options), [*rows, *columns, *titles, name, blank])
    with figure.context():
        layout = _Layout.of(figure, rows, columns, titles[0], scale)
        x, y, wide, tall = layout.area(figure)
        if scale.blank:
            figure.hatch(x, y, wide, tall)
        figure.picture(scale.colours(weights_QK), x, y, wide, tall)
        layout.label(figure.axes(x, y, wide, tall), figure, rows, columns)
        figure.text(x - layout.left, y + tall / 2, titles[0], rotation=90, va="center")
        figure.text(x + wide / 2, y + tall + layout.below - figure.line(), titles[1], ha="center")
        scale.draw_bar(figure, y + tall + layout.below + GAP)
    return figure


def token_labels(
    weights_QK: np.ndarray, queries: Sequence[str], keys: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Names of queries and keys as they are drawn. Raises UserError if they do not fit the map."""
    sides = zip(("queries", "keys"), (queries, keys), weights_QK.shape, strict=True)
    for side, names, count in sides:
        if len(names) != count:
            raise UserError(
                f"expected a name for each of the {count} {side} of the map, got {len(names)}; name every token"
            )
    return list(map(label, queries)), list(map(label, keys))


def masked(weights: Any, allowed: Any = None) -> np.ndarray:
    """A map as an array with NaN where a key is masked. Raises UserError for other shapes and for infinity."""
    map = np.asarray(weights).astype(np.float64)
    if map.ndim != 2 or not map.size or np.isinf(map).any():
        raise UserError(
            f"expected finite weights (queries, keys) of one head, got the shape {map.shape}; choose an input and a "
            "head first, such as tape.weights(site)[0, head]"
        )
    if allowed is not None:
        may = np.asarray(allowed, dtype=bool)
        if may.shape != map.shape:
            raise UserError(
                f"expected a mask of the shape {map.shape} of the weights, got {may.shape}; give the mask of this head"
            )
        map[~may] = np.nan
    return map


@dataclass(frozen=True)
class _Layout:
    """Sizes of a map and of what surrounds it, in centimetres.

    cells: height and width. size: of the labels' font, in points. flat: key labels are horizontal.
    """

    cells: tuple[float, float]
    shape: tuple[int, int]
    left: float
    below: float
    bar: float
    size: int | float
    flat: bool

    @staticmethod
    def of(
        figure: Figure, rows: Sequence[str], columns: Sequence[str], title: str, scale: Scale
    ) -> _Layout:
        """The largest square cells with which all fits. Raises UserError if there is no room for any.

        title: of the rows. A map of few rows has cells that are higher, so that the title fits beside it.
        """
        line = figure.line()
        bar = GAP + scale.height(figure)
        least = figure.width_of([title]) / len(rows)
        cell, size = MAX_CELL, figure.style.font_size
        left, below, flat = 0.0, 0.0, False
        # The size of a cell depends on that of the labels, which depends on the cell.
        for _ in range(4):
            size, _ = figure.label_size(cell)
            left = line + 2 * PAD + figure.width_of(rows, size)
            widest = figure.width_of(columns, size)
            flat = widest < 0.9 * cell
            below = line + 2 * PAD + (figure.line(size) if flat else widest)
            wide = figure.style.width - left - GAP
            tall = figure.space - GAP / 2 - below - bar
            cell = min(MAX_CELL, wide / len(columns), tall / len(rows))
            fitting = cell if least * len(rows) <= tall else 0.0
            figure.check_fits(fitting, f"a map of {len(rows)} queries and {len(columns)} keys")
        cells = max(cell, least), cell
        return _Layout(cells, (len(rows), len(columns)), left, below, bar, size, flat)

    def area(self, figure: Figure) -> tuple[float, float, float, float]:
        """Begin the figure; left, top, width and height of the map, centred with its labels."""
        tall, wide = (cell * count for cell, count in zip(self.cells, self.shape, strict=True))
        x = (figure.style.width - self.left - wide) / 2 + self.left
        y = GAP / 2 + figure.begin(GAP / 2 + tall + self.below + self.bar)
        return x, y, wide, tall

    def label(self, axes: Any, figure: Figure, rows: Sequence[str], columns: Sequence[str]) -> None:
        """Print the tokens. Where only some are printed, ticks show which."""
        axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        every, every_column = (figure.label_size(cell)[1] for cell in self.cells)
        axes.set_yticks(range(0, len(rows), every), rows[::every])
        axes.set_xticks(range(0, len(columns), every_column), columns[::every_column])
        for axis, step in (("y", every), ("x", every_column)):
            tick = 1.5 if step > 1 else 0
            look = {"length": tick, "pad": PAD / POINT - tick, "width": 0.5, "color": INK}
            axes.tick_params(axis, labelsize=self.size, labelcolor=INK, **look)
        if not self.flat:
            axes.tick_params("x", labelrotation=90)


def draw_grid(
    rows: Sequence[Sequence[Any]],
    names: Sequence[str],
    *,
    high: int | float | None = None,
    name: str = NAME,
    blank: str = MASKED,
    **options: Any,
) -> Figure:
    """Maps of many heads with one colour scale: a row a layer, a column a head.

    rows: the maps `(Q, K)` of each layer's heads, NaN where a key is masked. names: of the layers. The rest as in
    `draw_map`.
    """
    maps = [list(map(masked, row)) for row in rows]
    if not maps or not all(maps) or len(names) != len(maps):
        counts = [len(row) for row in maps]
        raise UserError(
            f"expected a name and at least one head for each layer, got {len(names)} names and {counts} heads; "
            "leave out layers without heads"
        )
    scale = Scale.of([map for row in maps for map in row], high, name, blank)
    names = [label(layer) for layer in names]
    figure = Figure(FigureStyle.of(options), [*names, *GRID_WORDS, name, blank])
    with figure.context():
        below = 3 * GAP + figure.line() + scale.height(figure)
        x, y, step = label_grid(figure, names, max(map(len, maps)), below)
        for row, layer in enumerate(maps):
            for column, map_QK in enumerate(layer):
                _small_map(figure, scale, map_QK, (x + column * step, y + row * step), step)
        y += step * len(maps)
        figure.text(figure.style.width / 2, y + GAP / 2, GRID_WORDS[-1], ha="center")
        scale.draw_bar(figure, y + 2 * GAP + figure.line())
    return figure


def label_grid(
    figure: Figure, names: Sequence[str], columns: int, below: float, largest: float = 4 * MAX_CELL
) -> tuple[float, float, float]:
    """Begin a grid of layers and heads: its left, its top, and the distance of cells, in centimetres.

    below: height of what follows the grid. largest: distance of cells at most.
    """
    line, width = figure.line(), figure.style.width
    left = line + 2 * PAD + figure.width_of(names)
    above = 2 * line + GAP
    space = figure.space - above - below
    step = min((width - left - GAP) / columns, space / len(names), largest)
    figure.check_fits(step, f"a grid of {len(names)} layers and {columns} heads")
    y = figure.begin(above + step * len(names) + below) + above
    x = (width - left - step * columns) / 2 + left
    figure.text(x + step * columns / 2, y - 2 * line - PAD, GRID_WORDS[0], ha="center")
    figure.text(x - left, y + step * len(names) / 2, GRID_WORDS[1], rotation=90, va="center")
    size, every = figure.label_size(step)
    for column in range(0, columns, every):
        middle = x + (column + 0.5) * step
        figure.text(middle, y - PAD, str(column), ha="center", va="bottom", size=size)
    for row in range(0, len(names), every):
        middle = y + (row + 0.5) * step
        figure.text(x - PAD, middle, names[row], ha="right", va="center_baseline", size=size)
    return x, y, step


def _small_map(
    figure: Figure, scale: Scale, map_QK: np.ndarray, corner: tuple[float, float], step: float
) -> None:
    """A map without labels, as large as a cell of the grid permits."""
    x, y = corner
    size = step * (1 - SPACE)
    tall, wide = (size * count / max(map_QK.shape) for count in map_QK.shape)
    area = x + (step - wide) / 2, y + (step - tall) / 2, wide, tall
    if np.isnan(map_QK).any():
        figure.hatch(*area)
    figure.picture(scale.colours(map_QK), *area, frame=0.25)
