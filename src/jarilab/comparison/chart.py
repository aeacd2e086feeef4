"""A line chart as SVG text: axes with round numbers, one line for each series."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jarilab.web.axes import Number, round_numbers
from jarilab.web.page import escape_text

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT = 64, WIDTH - 16
TOP, BOTTOM = 12, HEIGHT - 44

Point = tuple[Number, Number]
Scale = Callable[[Number], float]


@dataclass(frozen=True)
class Line:
    """colour: the number of its class in the style. points: (x, y), x rising."""

    colour: int
    points: Sequence[Point]


def chart(lines: Sequence[Line], title: str, below: str, *, logarithmic: bool = False) -> str:
    """The chart of all lines. below: what x counts. logarithmic: of y; then only what is above 0 is drawn."""
    if logarithmic:
        lines = [_above_zero(line) for line in lines]
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    xs, ys = zip(*points, strict=True)
    x_of = _scale(0, max(xs), LEFT, RIGHT)
    y_of = _scale(min(ys), max(ys), BOTTOM, TOP, logarithmic=logarithmic)
    parts = [_horizontal(value, y_of(value)) for value in round_numbers(min(ys), max(ys))]
    parts += [_vertical(value, x_of(value)) for value in round_numbers(0, max(xs))]
    parts.append(_text("axis", RIGHT, HEIGHT - 6, below))
    for line in lines:
        places = [(x_of(x), y_of(y)) for x, y in line.points]
        parts.append(_drawn(line.colour, places))
    inside = "".join(parts)
    label = escape_text(title)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{inside}</svg>'


def _above_zero(line: Line) -> Line:
    points = [(x, y) for x, y in line.points if y > 0]
    return Line(line.colour, points)


def _scale(
    low: Number, high: Number, start: Number, end: Number, *, logarithmic: bool = False
) -> Scale:
    """The map of low ... high to start ... end; to the middle where there is one value only."""
    bend: Scale = math.log10 if logarithmic else float
    if high <= low:
        middle = (start + end) / 2
        return lambda _: middle
    first = bend(low)
    stretch = (end - start) / (bend(high) - first)
    return lambda value: start + (bend(value) - first) * stretch


def _horizontal(value: Number, y: Number) -> str:
    height = f"{y:.1f}"
    line = f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{height}" y2="{height}"/>'
    return line + _text("y", LEFT - 6, y + 4, f"{value:,.6g}")


def _vertical(value: Number, x: Number) -> str:
    return _text("x", x, BOTTOM + 18, f"{value:,.6g}")


def _text(kind: str, x: Number, y: Number, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape_text(text)}</text>'


def _drawn(colour: int, places: Sequence[Point]) -> str:
    """A line, or a dot where there is one point alone."""
    if len(places) == 1:
        ((x, y),) = places
        return f'<circle class="c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="c{colour}" points="{points}"/>'
