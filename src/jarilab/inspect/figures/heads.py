"""What heads do, as a dot for each head; and one head as lines between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jarilab.core.errors import UserError, import_optional
from jarilab.inspect.figures.figure import POINT, Figure
from jarilab.inspect.figures.maps import GRID_TITLES, NAME, masked, token_labels
from jarilab.inspect.figures.style import label

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
    samples = [f"{sample:g}" for sample in SAMPLES]
    texts = [*left, *right, *samples, name, "query", "key"]
    line = 1.15 * Figure(options, texts).line
    figure = Figure(options, texts, height=(max(weights_QK.shape) + 5) * line)
    with figure.context():
        axes = figure.canvas.subplots()
        axes.set(xlim=(0, 1), ylim=(max(weights_QK.shape) - 0.5, -0.5), ylabel="query", xticks=[])
        other = axes.twinx()
        other.set(ylim=axes.get_ylim(), ylabel="key")
        for side in (axes, other):
            side.spines[:].set_visible(False)
        figure.name(axes, "y", left)
        figure.name(other, "y", right)
        pairs = np.argwhere(np.nan_to_num(weights_QK) >= LIGHTEST)
        segments = [((0, query), (1, key)) for query, key in pairs.tolist()]
        lines = import_optional("matplotlib.collections", "figures").LineCollection
        axes.add_collection(lines(segments, **_strokes(weights_QK[tuple(pairs.T)])))
        handles = [lines([], **_strokes(np.array([sample]))) for sample in SAMPLES]
        figure.add_legend(handles, samples, name)
        figure.fit(1)
    return figure


def _strokes(weights: np.ndarray) -> dict[str, Any]:
    rgb = import_optional("matplotlib.colors", "figures").to_rgb(LINE_COLOUR)
    strengths = np.clip(weights, 0, 1)
    return {"colors": [(*rgb, each) for each in strengths], "linewidths": 0.3 + 1.7 * strengths}


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
    layers, heads = list(map(label, names)), list(map(str, range(max(counts))))
    markers = _markers_of({role for row in roles for role in row})
    about = "" if sizes is None else f"area of a dot: {size_name}"
    figure = Figure(options, [*layers, *heads, *markers, about, *GRID_TITLES])
    with figure.context():
        axes = figure.cells(layers, heads, GRID_TITLES, on_top=True)
        handles = [axes.scatter([], [], s=25, **marker) for marker in markers.values()]
        figure.add_legend(handles, list(markers), about)
        most = (0.8 * figure.fit(MAX_STEP) / POINT) ** 2
        for layer, row in enumerate(roles):
            for head, role in enumerate(row):
                size = 1.0
                if sizes is not None and role not in UNNAMED:
                    size = float(np.clip(np.nan_to_num(sizes[layer][head]), 0.1, 1))
                axes.scatter(head, layer, s=size * most, **markers[role])
    return figure


def _markers_of(roles: set[str]) -> dict[str, dict[str, Any]]:
    """Colour and shape of each role, in the order of the legend."""
    order = [*ROLES, *sorted(roles - {*ROLES, *UNNAMED})]
    markers = {}
    for number, role in enumerate(order):
        shape = (number + number // len(SHAPES)) % len(SHAPES)
        markers[role] = COLOURS[number % len(COLOURS)], SHAPES[shape]
    return {
        role: {"c": colour, "marker": shape, "linewidths": 0.8 if shape == "x" else 0}
        for role, (colour, shape) in (markers | UNNAMED).items()
        if role in roles
    }
