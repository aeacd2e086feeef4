"""One attention map with its tokens, a grid of the maps of many heads, and their colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jarilab.core.errors import UserError, import_optional
from jarilab.inspect.figures.figure import Figure
from jarilab.inspect.figures.style import label

NAME, MASKED = "attention weight", "masked"
MAX_CELL = 0.9
"""Centimetres of a cell of a small map."""
SPACE = 0.08
"""The share of a cell of a grid that is between its maps."""
GRID_TITLES = ("layer", "head")
GRID_NOTE = "in each map: queries down, keys across"
OPAQUE = 0.85
"""Opacity of the largest weight over an image."""
FULL_SCALE = 24
"""Tokens up to which the scale ends at 1; for more, at the largest weight, as on the pages."""
SIGNED = "08306b1f66ac5a9bcea9cce4f5f5f2f6c99aeb9449c75f0f7a3203"
"""Colours of numbers from below to above 0, as in `pages/kit/static/draw.js`."""


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
    colours = colours_of([weights_QK], high)
    figure = Figure(options, [*rows, *columns, *titles, name, blank])
    with figure.context():
        axes = figure.cells(rows, columns, titles, on_top=False)
        has_blank = bool(np.isnan(weights_QK).any())
        if has_blank:
            figure.hatch(axes, (-0.5, len(columns) - 0.5, len(rows) - 0.5, -0.5))
        image = axes.imshow(weights_QK, **colours)
        figure.add_bar(image, name, blank if has_blank else "")
        figure.fit(MAX_CELL)
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
    colours = colours_of([map for row in maps for map in row], high)
    layers, heads = list(map(label, names)), list(map(str, range(max(map(len, maps)))))
    figure = Figure(options, [*layers, *heads, *GRID_TITLES, GRID_NOTE, name, blank])
    with figure.context():
        axes = figure.cells(layers, heads, GRID_TITLES, on_top=True)
        limits, image, has_blank = axes.axis(), None, False
        for row, layer in enumerate(maps):
            for column, map_QK in enumerate(layer):
                tall, wide = (np.array(map_QK.shape) / max(map_QK.shape) * (1 - SPACE) / 2).tolist()
                extent = column - wide, column + wide, row + tall, row - tall
                if np.isnan(map_QK).any():
                    figure.hatch(axes, extent)
                    has_blank = True
                image = axes.imshow(map_QK, extent=extent, **colours)
        axes.axis(limits)
        below = {"xytext": (0, -4), "textcoords": "offset points", "va": "top", "ha": "center"}
        axes.annotate(GRID_NOTE, (0.5, 0), xycoords="axes fraction", **below)
        figure.add_bar(image, name, blank if has_blank else "")
        figure.fit(4 * MAX_CELL)
    return figure


def colours_of(
    maps: Sequence[np.ndarray], high: int | float | None, *, seen_through: bool = False
) -> dict[str, Any]:
    """How matplotlib draws maps, NaN where masked, in the colours of the pages: from 0, or -high, to `high`.

    seen_through: the lower a weight, the more of what lies behind is seen. Raises UserError for a `high` that is not
    above 0.
    """
    numbers = np.concatenate([map[np.isfinite(map)] for map in maps])
    if high is None:
        largest = float(np.abs(numbers).max(initial=0.0))
        is_small = max(max(map.shape) for map in maps) <= FULL_SCALE
        high = 1.0 if is_small and largest <= 1 else largest or 1.0
    if not 0 < high < float("inf"):
        raise UserError(
            f"expected high, the end of the colour scale, above 0, got {high}; such as high=1"
        )
    library = import_optional("matplotlib.colors", "figures")
    table = import_optional("matplotlib", "figures").colormaps["viridis"]
    is_signed = numbers.min(initial=0.0) < 0
    if is_signed:
        stops = [f"#{SIGNED[start : start + 6]}" for start in range(0, len(SIGNED), 6)]
        table = library.LinearSegmentedColormap.from_list("signed", stops)
    if seen_through:
        colours = table(np.arange(256))
        colours[:, 3] = np.linspace(0, OPAQUE, 256)
        table = library.ListedColormap(colours)
    return {"cmap": table, "vmin": -float(high) if is_signed else 0.0, "vmax": float(high)}
