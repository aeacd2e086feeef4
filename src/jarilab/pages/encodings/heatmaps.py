"""Heat maps with axes, groups of small maps, and tables of a few cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jarilab.pages.encodings.colours import css, image, is_dark, signed_colour, signed_index
from jarilab.pages.encodings.lines import scale, tick
from jarilab.pages.encodings.svg import (
    Number,
    Words,
    element,
    figure,
    line,
    number,
    round_numbers,
    text,
)

WIDTH = 420
LEFT, RIGHT, TOP = 52, WIDTH - 14, 22
BETWEEN, LABEL = 10, 16
"""Between small maps, and above each for its words."""
LEGEND = 34
PRINTED = 8
"""Columns up to which a table prints its numbers."""


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A matrix as colours around 0; NaN is transparent.

    down, across: labels of rows and columns. rows, columns: the first number of each axis, and one beyond its last.
    """

    values: np.ndarray
    down: Words
    across: Words
    rows: tuple[Number, Number]
    columns: tuple[Number, Number]
    square: bool = False

    @property
    def width(self) -> Number:
        return WIDTH

    @property
    def height(self) -> Number:
        return self._bottom + 40 + LEGEND

    @property
    def _bottom(self) -> Number:
        rows, columns = self.values.shape
        wide = RIGHT - LEFT
        tall = wide * rows / columns if self.square else 12 * rows
        return TOP + min(max(tall, 110), 300)

    @property
    def _right(self) -> Number:
        """The right edge; a square map is as wide as it is high."""
        return LEFT + self._bottom - TOP if self.square else RIGHT

    def inside(self) -> str:
        """The SVG elements."""
        limit = limit_of(self.values)
        parts = [picture(self.values, limit, LEFT, TOP, self._right - LEFT, self._bottom - TOP)]
        x_of = _cell(self.columns, LEFT, self._right)
        y_of = _cell(self.rows, TOP, self._bottom)
        parts += [
            tick(value, x_of(value), self._bottom)
            for value in _ticks(self.columns)
            if x_of(value) < self._right
        ]
        for value in _ticks(self.rows):
            y = y_of(value)
            parts.append(line((LEFT - 4, y), (LEFT, y), "zero"))
            parts.append(text(LEFT - 7, y + 4, figure(value), "end"))
        middle = (LEFT + self._right) / 2
        parts.append(text(middle, self._bottom + 32, self.across, "middle"))
        parts.append(text(2, 11, self.down))
        parts.append(legend(limit, self._bottom + 44))
        return "".join(parts)


@dataclass(frozen=True, eq=False)
class SmallMaps:
    """Maps of equal shape with one colour scale. place: a cell to frame in each, or None."""

    maps: Sequence[tuple[Words, np.ndarray]]
    place: tuple[int, int] | None = None

    @property
    def _columns(self) -> int:
        return min(4, max(2, len(self.maps)))

    @property
    def _size(self) -> tuple[Number, Number]:
        wide = (WIDTH - 8 - BETWEEN * (self._columns - 1)) / self._columns
        rows, columns = self.maps[0][1].shape
        return wide, wide * rows / columns

    @property
    def width(self) -> Number:
        return WIDTH

    @property
    def height(self) -> Number:
        rows = -(-len(self.maps) // self._columns)
        return rows * (self._size[1] + LABEL + BETWEEN) + LEGEND

    def inside(self) -> str:
        """The SVG elements."""
        limit = max(limit_of(values) for _, values in self.maps)
        wide, tall = self._size
        parts = []
        for which, (words, values) in enumerate(self.maps):
            row, column = divmod(which, self._columns)
            x, y = 4 + column * (wide + BETWEEN), row * (tall + LABEL + BETWEEN) + LABEL
            parts.append(text(x, y - 5, words))
            parts.append(picture(values, limit, x, y, wide, tall))
            parts.append(self._framed(values, x, y, wide, tall))
        parts.append(legend(limit, self.height - LEGEND + 6))
        return "".join(parts)

    def _framed(self, values: np.ndarray, x: Number, y: Number, wide: Number, tall: Number) -> str:
        if self.place is None:
            return ""
        rows, columns = values.shape
        row, column = self.place
        cell = {"width": wide / columns, "height": tall / rows}
        at = {"x": x + column * wide / columns, "y": y + row * tall / rows, **cell}
        edge = element("rect", {**at, "kind": "place-edge"})
        return edge + element("rect", {**at, "kind": "place"})


@dataclass(frozen=True, eq=False)
class HeatmapTable:
    """A small matrix as cells, with numbers up to PRINTED columns. limit: of the colour scale."""

    values: np.ndarray
    down: Words
    across: Words
    limit: Number

    @property
    def width(self) -> Number:
        return WIDTH

    @property
    def _cell(self) -> tuple[Number, Number]:
        rows, columns = self.values.shape
        return (RIGHT - LEFT) / columns, max(280 / max(rows, 8), (RIGHT - LEFT) / columns / 3)

    @property
    def _bottom(self) -> Number:
        return TOP + self._cell[1] * self.values.shape[0]

    @property
    def height(self) -> Number:
        return self._bottom + 40 + LEGEND

    def inside(self) -> str:
        """The SVG elements."""
        rows, columns = self.values.shape
        wide, tall = self._cell
        parts = []
        for row in range(rows):
            y = TOP + row * tall
            parts += [self._one(row, column, y) for column in range(columns)]
            parts.append(text(LEFT - 7, y + tall / 2 + 4, str(row), "end"))
        for column in range(columns):
            x = LEFT + (column + 0.5) * wide
            parts.append(text(x, self._bottom + 16, str(column), "middle"))
        parts.append(text((LEFT + RIGHT) / 2, self._bottom + 32, self.across, "middle"))
        parts.append(text(2, 11, self.down))
        parts.append(legend(self.limit, self._bottom + 44))
        return "".join(parts)

    def _one(self, row: int, column: int, y: Number) -> str:
        wide, tall = self._cell
        x, value = LEFT + column * wide, float(self.values[row, column])
        colour = signed_colour(value, self.limit)
        cell = {"x": x, "y": y, "width": wide, "height": tall, "fill": css(colour)}
        drawn = element("rect", cell)
        if self.values.shape[1] > PRINTED:
            return drawn
        written = f"{value:.3f}".replace("-", "−")
        shade = "on-dark" if is_dark(colour) else "on-light"
        return drawn + text(x + wide / 2, y + tall / 2 + 4, written, f"middle {shade}")


def limit_of(values: np.ndarray) -> Number:
    """The largest absolute number."""
    known = np.abs(values[~np.isnan(values)])
    return float(known.max()) if known.size else 0.0


def picture(
    values: np.ndarray, limit: Number, x: Number, y: Number, width: Number, height: Number
) -> str:
    """A matrix as a framed image."""
    at = {"x": x, "y": y, "width": width, "height": height}
    address = image(signed_index(values, limit))
    place = " ".join(f'{side}="{number(value)}"' for side, value in at.items())
    how = 'preserveAspectRatio="none" image-rendering="pixelated"'
    drawn = f'<image {place} {how} href="{address}"/>'
    return drawn + element("rect", at | {"kind": "frame"})


def legend(limit: Number, y: Number) -> str:
    """The colour scale from -limit to limit."""
    wide = 200
    left = (WIDTH - wide) / 2
    steps = np.linspace(-1, 1, 255)[None]
    parts = [picture(steps, 1.0, left, y, wide, 8)]
    largest = figure(float(f"{limit:.3g}"))
    ends = (f"−{largest}", "0", largest) if limit else ("", "0", "")
    parts += [
        text(left + wide * share, y + 21, words, "middle")
        for share, words in zip((0, 0.5, 1), ends, strict=True)
    ]
    return "".join(parts)


def _cell(ends: tuple[Number, Number], start: Number, end: Number):
    """The map from a number to the middle of its cell."""
    of = scale(*ends, start, end)
    return lambda value: of(value + 0.5)


def _ticks(ends: tuple[Number, Number]) -> list[Number]:
    """The whole numbers of an axis of cells."""
    ticks = [value for value in round_numbers(ends[0], ends[1] - 1) if value == int(value)]
    return ticks or [ends[0]]
