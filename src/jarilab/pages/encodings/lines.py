"""Line charts of numbers against positions or distances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from jarilab.pages.encodings.svg import (
    Number,
    Words,
    element,
    figure,
    line,
    path,
    round_numbers,
    text,
)

WIDTH, PLOT = 420, 190
LEFT, RIGHT, TOP = 52, WIDTH - 14, 30
BOTTOM = TOP + PLOT
TONES, DASHES = 6, 3
MOST_LINES = TONES * DASHES
PER_ROW = 5
"""Entries in a row of the legend."""


@dataclass(frozen=True, eq=False)
class Line:
    """A line. label: in the legend. x, y: its points, with rising x. low, high: the band around it, or None."""

    label: Words
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Chart:
    """Lines with axes. span: the range of x. marks: labelled positions on the x axis."""

    lines: Sequence[Line]
    across: Words
    up: Words
    span: tuple[Number, Number]
    marks: Sequence[tuple[Number, Words]] = field(default_factory=tuple)

    @property
    def width(self) -> Number:
        return WIDTH

    @property
    def height(self) -> Number:
        return BOTTOM + 40 + 16 * self._legend_rows

    @property
    def _legend_rows(self) -> int:
        return -(-len(self.lines) // PER_ROW) if len(self.lines) > 1 else 0

    def inside(self) -> str:
        """The SVG elements."""
        low, high = self._heights()
        x_of = scale(*self.span, LEFT, RIGHT)
        y_of = scale(low, high, BOTTOM - 6, TOP + 6)
        box = {"x": LEFT, "y": TOP, "width": RIGHT - LEFT, "height": PLOT}
        parts = [element("rect", {**box, "kind": "frame"})]
        for value in round_numbers(low, high):
            y = y_of(value)
            parts.append(line((LEFT, y), (RIGHT, y), "grid" if value else "zero"))
            parts.append(text(LEFT - 6, y + 4, figure(value), "end"))
        parts += [tick(value, x_of(value), BOTTOM) for value in round_numbers(*self.span)]
        for place, words in self.marks:
            x = x_of(place)
            parts.append(line((x, TOP), (x, BOTTOM), "mark"))
            parts.append(text(x, TOP - 6, words, "middle small"))
        parts += [_drawn(one, number, x_of, y_of) for number, one in enumerate(self.lines)]
        parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 32, self.across, "middle"))
        parts.append(text(2, 10, self.up))
        if self._legend_rows:
            parts += [self._entry(number) for number in range(len(self.lines))]
        return "".join(parts)

    def _heights(self) -> tuple[Number, Number]:
        """The lowest and the highest number, with 0 between them."""
        values = [one.y for one in self.lines]
        values += [edge for one in self.lines for edge in (one.low, one.high) if edge is not None]
        every = np.concatenate([*values, np.zeros(1)])
        # To six digits: the rounding of a float32 is no reason to leave out the number at an end.
        low, high = (float(f"{edge:.6g}") for edge in (every.min(), every.max()))
        return (low, high) if high > low else (low - 1, high + 1)

    def _entry(self, number: int) -> str:
        row, column = divmod(number, PER_ROW)
        x = LEFT - 40 + column * (RIGHT - LEFT + 40) / PER_ROW
        y = BOTTOM + 50 + 16 * row
        swatch = line((x, y - 4), (x + 18, y - 4), f"curve {_kind(number)}")
        return swatch + text(x + 23, y, self.lines[number].label)


def scale(low: Number, high: Number, start: Number, end: Number) -> Callable[[Number], Number]:
    """The linear map of low ... high to start ... end; to the middle if low is high."""
    if high <= low:
        return lambda _: (start + end) / 2
    stretch = (end - start) / (high - low)
    return lambda value: start + (value - low) * stretch


def tick(value: Number, x: Number, bottom: Number) -> str:
    """A number below an axis."""
    stroke = line((x, bottom), (x, bottom + 4), "zero")
    return stroke + text(x, bottom + 16, figure(value), "middle")


def _kind(number: int) -> str:
    """The CSS class of a line: one of six tones, then dashes."""
    dash = number // TONES
    return f"t{number % TONES}" + (f" d{dash}" if dash else "")


def _drawn(
    one: Line, number: int, x_of: Callable[[Number], Number], y_of: Callable[[Number], Number]
) -> str:
    """A line with its band, or a dot for a single point."""
    kind = _kind(number)
    places = _places(one.x, one.y, x_of, y_of)
    if len(places) == 1:
        ((x, y),) = places
        return element("circle", {"kind": f"dot {kind}", "cx": x, "cy": y, "r": 3})
    band = ""
    if one.low is not None and one.high is not None and not np.allclose(one.low, one.high):
        above = _places(one.x, one.high, x_of, y_of)
        below = _places(one.x, one.low, x_of, y_of)
        around = path([*above, *reversed(below)])
        band = element("polygon", {"kind": f"band {kind}", "points": around})
    return band + element("polyline", {"kind": f"curve {kind}", "points": path(places)})


def _places(
    x: np.ndarray, y: np.ndarray, x_of: Callable[[Number], Number], y_of: Callable[[Number], Number]
) -> list[tuple[Number, Number]]:
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    return [(x_of(one), y_of(other)) for one, other in pairs]
