"""What heads do, as a dot for each head; and one head as lines between tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jarilab.core.errors import UserError, import_optional
from jarilab.inspect.figures.figure import GAP, POINT, Figure
from jarilab.inspect.figures.maps import GRID_WORDS, PAD, label_grid, masked, token_labels
from jarilab.inspect.figures.scale import NAME
from jarilab.inspect.figures.style import FigureStyle, label

LINE_COLOUR = "#0b78c4"
LIGHTEST = 0.01
"""Weight below which a line would not be seen, and is left out."""
SAMPLES = (0.1, 0.5, 1.0)
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c00"),
    *("#5d3a9b", "#b22222", "#1a7f7f", "#444444"),
)
"""They differ for the colour-blind too (Okabe & Ito 2008, extended). A shape of its own distinguishes roles in grey."""
SHAPES = "os^DvPXh<>"
ROLES = ("previous", "next", "same token", "induction", "first token", "delimiter", "uniform")
"""Roles whose colours are the same in all figures; others follow in alphabetical order."""
UNNAMED = {"no simple pattern": ("#a9a69c", "."), "not testable here": ("#a9a69c", "x")}
MAX_STEP = 0.6


def draw_lines(
    weights: Any,
    queries: Sequence[str],
    keys: Sequence[str],
    allowed: Any = None,
    *,
    name: str = NAME,
    **options: Any,
) -> Figure:
    """One head as lines from each query, on the left, to its keys: the larger the weight, the darker and wider.

    Weights below LIGHTEST have no line. Arguments as in `draw_map`.
    """
    weights_QK = masked(weights, allowed)
    left, right = token_labels(weights_QK, queries, keys)
    figure = Figure(FigureStyle.of(options), [*left, *right, name, "query", "key"])
    line, count = figure.line(), max(weights_QK.shape)
    with figure.context():
        step = min(1.15 * line, (figure.space - 4 * line - 2 * GAP) / count)
        figure.check_fits(step, f"a drawing of {count} tokens")
        size, every = figure.label_size(step)
        start = GAP + figure.width_of(left, size)
        end = figure.style.width - GAP - figure.width_of(right, size)
        figure.check_fits((end - start) / 100, "a drawing of lines between names")
        y = figure.begin(step * count + 3 * line + GAP) + 1.5 * line
        sides = (start - PAD, "right", "query", left), (end + PAD, "left", "key", right)
        for x, align, title, names in sides:
            figure.text(x, y - line / 2, title, ha=align, va="bottom")
            for place in range(0, len(names), every):
                middle = y + (place + 0.5) * step
                figure.text(x, middle, names[place], ha=align, va="center_baseline", size=size)
        pairs = np.argwhere(np.nan_to_num(weights_QK) >= LIGHTEST)
        heights = (y + (pairs + 0.5) * step).tolist()
        segments = [((start, at_query), (end, at_key)) for at_query, at_key in heights]
        _draw_lines(figure, segments, weights_QK[tuple(pairs.T)])
        _draw_samples(figure, y + step * count + line, name)
    return figure


def _draw_lines(figure: Figure, segments: Sequence[Any], weights: np.ndarray) -> None:
    collections = import_optional("matplotlib.collections", "figures")
    rgb = import_optional("matplotlib.colors", "figures").to_rgb(LINE_COLOUR)
    strengths = np.clip(weights, 0, 1)
    colours = [(*rgb, strength) for strength in strengths]
    figure.sheet.add_collection(
        collections.LineCollection(segments, colors=colours, linewidths=0.3 + 1.7 * strengths),
        autolim=False,
    )


def _draw_samples(figure: Figure, y: float, name: str) -> None:
    """A line for each of `SAMPLES`, with its weight, and the name of the weights."""
    texts = [f"{sample:g}" for sample in SAMPLES]
    widths = [0.8 + 2 * GAP + figure.width_of([text]) for text in texts]
    x = (figure.style.width - sum(widths) - figure.width_of([name]) - GAP) / 2
    figure.text(x, y, name, va="center_baseline")
    x += figure.width_of([name]) + GAP
    for sample, text, width in zip(SAMPLES, texts, widths, strict=True):
        _draw_lines(figure, [((x, y), (x + 0.8, y))], np.array([sample]))
        figure.text(x + 0.8 + GAP / 2, y, text, va="center_baseline")
        x += width


def draw_roles(
    roles: Sequence[Sequence[str]],
    names: Sequence[str],
    sizes: Sequence[Sequence[float]] | None = None,
    size_name: str = "effect size",
    **options: Any,
) -> Figure:
    """A dot for each head, layers down and heads across: its colour and shape show the role.

    roles: of each layer's heads. names: of the layers. sizes: from 0 to 1, the area of the dots.
    size_name: what sizes are.
    Raises UserError if the counts differ.
    """
    counts = list(map(len, roles))
    of_sizes = counts if sizes is None else list(map(len, sizes))
    if not any(counts) or counts != of_sizes or len(names) != len(roles):
        raise UserError(
            f"expected a name and equally many roles and sizes for each layer, got {len(names)} names, {counts} roles "
            f"and {of_sizes} sizes; give one each a head"
        )
    names = [label(name) for name in names]
    markers = _markers_of({role for row in roles for role in row})
    about = [] if sizes is None else [f"area of a dot: {size_name}"]
    figure = Figure(FigureStyle.of(options), [*names, *markers, *about, *GRID_WORDS])
    with figure.context():
        legend = _Legend.of(figure, markers)
        below = 2.5 * GAP + (legend.rows + len(about)) * figure.line()
        x, y, step = label_grid(figure, names, max(counts), below, MAX_STEP)
        most = 0.8 * step / POINT
        for layer, row in enumerate(roles):
            for head, role in enumerate(row):
                size = 1.0
                if sizes is not None and role not in UNNAMED:
                    size = float(np.clip(np.nan_to_num(sizes[layer][head]), 0.1, 1))
                middle = x + (head + 0.5) * step, y + (layer + 0.5) * step
                _draw_marker(figure, middle, markers[role], size * most**2)
        y += step * len(names) + 2 * GAP
        legend.draw(figure, y)
        for text in about:
            middle = y + (legend.rows + 0.5) * figure.line()
            figure.text(figure.style.width / 2, middle, text, ha="center", va="center_baseline")
    return figure


@dataclass(frozen=True)
class _Legend:
    """The dot and the name of each role, in columns. width: of a column, in centimetres."""

    markers: Mapping[str, tuple[str, str]]
    width: float
    columns: int

    @staticmethod
    def of(figure: Figure, markers: Mapping[str, tuple[str, str]]) -> _Legend:
        width = figure.width_of(list(markers)) + 4 * GAP
        fitting = max(1, int((figure.style.width - GAP) / width))
        return _Legend(markers, width, min(fitting, len(markers)))

    @property
    def rows(self) -> int:
        return -(-len(self.markers) // self.columns)

    def draw(self, figure: Figure, y: float) -> None:
        """Draw it centred, from `y` centimetres down."""
        left = (figure.style.width - self.columns * self.width) / 2 + GAP
        for number, (role, marker) in enumerate(self.markers.items()):
            row, column = divmod(number, self.columns)
            x, middle = left + column * self.width, y + (row + 0.5) * figure.line()
            _draw_marker(figure, (x + GAP / 2, middle), marker, 36)
            figure.text(x + 1.5 * GAP, middle, role, va="center_baseline")


def _markers_of(roles: set[str]) -> dict[str, tuple[str, str]]:
    """Colour and shape of each role, in the order of the legend."""
    order = [*ROLES, *sorted(roles - {*ROLES, *UNNAMED})]
    markers = {}
    for number, role in enumerate(order):
        shape = (number + number // len(SHAPES)) % len(SHAPES)
        markers[role] = COLOURS[number % len(COLOURS)], SHAPES[shape]
    return {role: marker for role, marker in (markers | UNNAMED).items() if role in roles}


def _draw_marker(
    figure: Figure, middle: tuple[float, float], marker: tuple[str, str], area: float
) -> None:
    colour, shape = marker
    width = 0.8 if shape == "x" else 0
    figure.sheet.scatter(*middle, s=area, c=colour, marker=shape, linewidths=width)
