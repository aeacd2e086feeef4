"""Building blocks of the drawings: lines of heads, charts and maps with captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jarilab.core.shapes import Tensor
from jarilab.pages.encodings.drawn_encoding import DrawnEncoding
from jarilab.pages.encodings.heatmaps import HeatMap, SmallMaps
from jarilab.pages.encodings.lines import MOST_LINES, Chart, Line
from jarilab.pages.encodings.svg import Drawing, Number, Words

DISTANCE: Words = ("distance, key − query", "거리(키 − 쿼리)")
POSITION: Words = ("position", "위치")
KEY: Words = ("key position", "키 위치")
QUERY: Words = ("query position", "쿼리 위치")
DIMENSION: Words = ("dimension", "차원")
ALL_HEADS: Words = ("all heads", "모든 헤드")
MOST_MAPS = 8
NOTHING: Words = ("", "")
NEAR = 32
"""The largest distance of a close-up."""
LARGEST_MAP = 256
"""Positions of a map of all pairs."""


def array(x: Tensor) -> np.ndarray:
    """A tensor as a float64 array."""
    return x.detach().double().cpu().numpy()


def rounded(values: np.ndarray) -> Any:
    """The array as nested lists of numbers with six significant digits; None for NaN."""
    written = [
        None if value != value else float(f"{value:.6g}") for value in values.ravel().tolist()
    ]
    return np.array(written, dtype=object).reshape(values.shape).tolist()


def both(*words: Words) -> Words:
    """Sentences joined in both languages."""
    return " ".join(w[0] for w in words if w[0]), " ".join(w[1] for w in words if w[1])


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of the numbers 0 to count - 1, evenly spaced."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})


def head_of(number: int) -> Words:
    """The name of a head."""
    return f"head {number}", f"헤드 {number}"


def heads(values: np.ndarray, most: int) -> list[tuple[Words, int]]:
    """The names and numbers of at most `most` heads to draw; of one if all are equal. values: `(H, ...)`."""
    if np.allclose(values, values[:1], equal_nan=True):
        return [(ALL_HEADS if len(values) > 1 else head_of(0), 0)]
    return [(head_of(number), number) for number in evenly(len(values), most)]


def of_heads(values_HK: np.ndarray, x_K: np.ndarray) -> list[Line]:
    """The lines of at most MOST_LINES heads, against `x`; one line if all heads are equal."""
    drawn = heads(values_HK, MOST_LINES)
    return [Line(words, x_K, values_HK[number]) for words, number in drawn]


def chart(
    name: str, title: Words, caption: Words, drawn: Chart, data: dict[str, Any] | None = None
) -> Drawing:
    """A line chart with its caption. data: numbers for `--json` besides those of the lines."""
    lines = [_line_data(one) for one in drawn.lines]
    numbers = {"across": drawn.across[0], "lines": lines} | (data or {})
    return Drawing(name, title, caption, drawn.width, drawn.height, drawn.inside(), numbers)


def _line_data(one: Line) -> dict[str, Any]:
    band = {}
    if one.low is not None and one.high is not None:
        band = {"low": rounded(one.low), "high": rounded(one.high)}
    return {"label": one.label[0], "x": rounded(one.x), "y": rounded(one.y), **band}


def heat_map(name: str, title: Words, caption: Words, drawn: HeatMap) -> Drawing:
    """A heat map with its caption."""
    data = {
        "rows": drawn.down[0],
        "columns": drawn.across[0],
        "first": [drawn.rows[0], drawn.columns[0]],
        "values": rounded(drawn.values),
    }
    return Drawing(name, title, caption, drawn.width, drawn.height, drawn.inside(), data)


def small_maps(
    name: str,
    title: Words,
    caption: Words,
    maps: Sequence[tuple[Words, np.ndarray]],
    place: tuple[int, int] | None,
) -> Drawing:
    """Maps of the plane with their caption."""
    drawn = SmallMaps(maps, place)
    labelled = [{"label": words[0], "values": rounded(values)} for words, values in maps]
    data = {"from": place, "maps": labelled}
    return Drawing(name, title, caption, drawn.width, drawn.height, drawn.inside(), data)


def relative(
    subject: DrawnEncoding, name: str, title: Words, caption: Words, up: Words, values_HK: Tensor
) -> list[Drawing]:
    """Numbers of each head against the distance from query to key, up to twice the length.

    A close-up is added if the numbers change only near the query.
    """
    positions, query = subject.around()
    x_K = np.arange(positions.length, dtype=np.float64) - query
    length, causal = subject.length, subject.site.causal
    span = (-2.0 * length, 0.0 if causal else 2.0 * length)
    marks: list[tuple[Number, Words]] = [(-float(length), ("−L", "−L"))]
    if not causal:
        marks.append((float(length), ("L", "L")))
    values = array(values_HK)
    drawn = Chart(of_heads(values, x_K), DISTANCE, up, span, marks)
    dashed = (
        f"Dashed: distances of L = {length}, the length.",
        f"점선: 길이 L = {length}만큼의 거리.",
    )
    ended = end_of(subject) if positions.length <= span[1] - span[0] else NOTHING
    drawings = [chart(name, title, both(caption, dashed, ended), drawn)]
    happening = eventful(values, x_K)
    if happening < float("inf"):
        is_near = np.abs(x_K) <= min(happening, NEAR, length)
        drawings.append(_near(name, title, values[:, is_near], x_K[is_near]))
    return drawings


def _near(name: str, title: Words, values_HK: np.ndarray, x_K: np.ndarray) -> Drawing:
    """A map with a row for each head, whose lines would hide each other."""
    shown = [number for _, number in heads(values_HK, MOST_LINES)]
    title = f"{title[0]}, enlarged", f"{title[1]}, 확대"
    caption = (
        "The middle of the drawing above, one row a head. Equal colours are equal numbers.",
        "위 그림의 가운데 부분이며, 한 행이 한 헤드입니다. 색이 같으면 값도 같습니다.",
    )
    down = ("head", "헤드")
    columns = (float(x_K[0]), float(x_K[-1]) + 1)
    drawn = HeatMap(values_HK[shown], down, DISTANCE, (0, len(shown)), columns)
    return heat_map(f"{name}-near", title, caption, drawn)


def eventful(values_RK: np.ndarray, x_K: np.ndarray) -> float:
    """1.25 times the largest distance at which numbers change, if they are mostly constant; else infinity."""
    # 1e-9: what equal numbers in float64 may differ by.
    changes = np.abs(np.diff(values_RK, axis=1)).max(0) > 1e-9
    if not changes.any() or changes.mean() > 0.5:
        return float("inf")
    farthest = np.abs(x_K[1:][changes]).max()
    return float(np.ceil(1.25 * farthest))


def end_of(subject: DrawnEncoding) -> Words:
    """Why a drawing ends, for encodings with a limit."""
    known, farthest = subject.encoding.max_positions, subject.encoding.max_distance
    english, korean = [], []
    if known is not None:
        english.append(f"It supports positions up to {known - 1}; the drawing ends there.")
        korean.append(f"위치 {known - 1}까지만 다루므로 그림은 거기서 끝납니다.")
    if farthest is not None:
        english.append(f"It supports distances up to {farthest}; the drawing ends there.")
        korean.append(f"거리 {farthest}까지만 다루므로 그림은 거기서 끝납니다.")
    return " ".join(english), " ".join(korean)


def pair_map(
    subject: DrawnEncoding, name: str, title: Words, caption: Words, values_HQK: np.ndarray
) -> Drawing:
    """Numbers of all pairs of positions in one head; hidden keys are transparent."""
    which, number = heads(values_HQK, 1)[0]
    values_QK = values_HQK[number].copy()
    size = len(values_QK)
    if subject.site.causal:
        values_QK[np.triu_indices(size, 1)] = np.nan
    cut = NOTHING
    if size < subject.length:
        cut = (f"The first {size} positions.", f"처음 {size}개 위치.")
    title = f"{title[0]}, {which[0]}", f"{title[1]}, {which[1]}"
    drawn = HeatMap(values_QK, QUERY, KEY, (0, size), (0, size), square=True)
    return heat_map(name, title, both(caption, cut), drawn)
