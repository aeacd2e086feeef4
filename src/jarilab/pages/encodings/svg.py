"""Drawings as SVG text, for a file or a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jarilab.pages.kit.page import escape_text, read, slim

Words = tuple[str, str]
"""English and Korean."""
Number = int | float

PACKAGE = "jarilab.pages.encodings"
STYLES = ("kit/theme.css", "figure.css")
TICKS = 5
"""Numbers at an axis, approximately."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A drawing with its title, its caption and its numbers.

    name: of its file. title: what it shows. caption: how to read it. width, height: in SVG units, shown as pixels.
    inside: SVG elements. data: for `--json`.
    """

    name: str
    title: Words
    caption: Words
    width: Number
    height: Number
    inside: str
    data: Mapping[str, Any]

    def markup(self) -> str:
        """An SVG element for a page that has the style."""
        return self._svg("", "")

    def file(self) -> str:
        """An SVG file with its style, for the light and the dark scheme."""
        style = "".join(slim(read(PACKAGE, name)) for name in STYLES)
        embedded = f"<style>{style}.ko{{display:none}}svg{{background:var(--paper)}}</style>"
        return self._svg(' xmlns="http://www.w3.org/2000/svg"', embedded) + "\n"

    def _svg(self, namespace: str, before: str) -> str:
        english, korean = map(escape_text, self.title)
        size = f'viewBox="0 0 {number(self.width)} {number(self.height)}"'
        names = f'role="img" aria-label="{english}" data-en="{english}" data-ko="{korean}"'
        title = f"<title>{english}</title>"
        return f'<svg class="drawing"{namespace} {size} {names}>{title}{before}{self.inside}</svg>'

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title[0],
            "caption": self.caption[0],
            **self.data,
        }


def element(tag: str, attributes: Mapping[str, Any], inside: str = "") -> str:
    """`<tag attributes>inside</tag>`. `kind` is the class; numbers are rounded."""
    written = "".join(
        f' {"class" if key == "kind" else key.replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
    )
    return f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>"


def text(x: Number, y: Number, words: Words | str, kind: str = "") -> str:
    """Text in both languages, of which the page hides one. kind: `middle` or `end` aligns it at x."""
    if isinstance(words, str):
        words = words, words
    if words[0] == words[1]:
        return element("text", {"x": x, "y": y, "kind": kind}, escape_text(words[0]))
    both = zip(("en", "ko"), words, strict=True)
    return "".join(
        element("text", {"x": x, "y": y, "kind": f"{kind} {lang}".strip()}, escape_text(one))
        for lang, one in both
    )


def line(start: tuple[Number, Number], end: tuple[Number, Number], kind: str) -> str:
    """A straight line."""
    (x1, y1), (x2, y2) = start, end
    return element("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "kind": kind})


def path(points: Sequence[tuple[Number, Number]]) -> str:
    """The points of a polyline or polygon."""
    return " ".join(f"{number(x)},{number(y)}" for x, y in points)


def number(value: Number) -> str:
    """A coordinate, rounded to hundredths."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def figure(value: Number) -> str:
    """A number for readers: `1,024`, `0.25`, `−3`."""
    return f"{value:,.6g}".replace("-", "−")


def _value(value: Any) -> str:
    return number(value) if isinstance(value, int | float) else escape_text(str(value))


def round_numbers(low: Number, high: Number) -> list[Number]:
    """About TICKS numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [power * digit for digit in (1, 2, 5, 10)]
    step = next(step for step in steps if step >= rough)
    first = math.ceil(low / step)
    last = math.floor(high / step)
    return [number * step for number in range(first, last + 1)]
