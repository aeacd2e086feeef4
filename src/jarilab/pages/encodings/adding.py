"""Drawings of vectors that are added to the input, or to queries and keys."""

from __future__ import annotations

import numpy as np

from jarilab.pages.encodings.drawn_encoding import DrawnEncoding
from jarilab.pages.encodings.encoding_parts import (
    DIMENSION,
    NOTHING,
    POSITION,
    array,
    both,
    chart,
    end_of,
    evenly,
    heat_map,
)
from jarilab.pages.encodings.heatmaps import HeatMap
from jarilab.pages.encodings.lines import Chart, Line
from jarilab.pages.encodings.svg import Drawing, Number, Words

WAVES = 5


def drawings(subject: DrawnEncoding, hook: str) -> list[Drawing]:
    """The matrix, some of its columns, and the dot products of its rows."""
    positions = subject.line(2 * subject.length)
    added_LD = array(subject.added(hook, positions))
    ended = end_of(subject) if positions.length < 2 * subject.length else NOTHING
    return [
        _matrix(subject, hook, added_LD, ended),
        _waves(subject, hook, added_LD, ended),
        _products(subject, hook, added_LD, ended),
    ]


def _matrix(subject: DrawnEncoding, hook: str, added_LD: np.ndarray, ended: Words) -> Drawing:
    shown = added_LD[: subject.length]
    rows, width = shown.shape
    title = ("What is added: position × dimension", "더해지는 값: 위치 × 차원")
    caption = (
        "Each row is the vector that is added at this position.",
        "한 행은 그 위치의 토큰에 더해지는 벡터입니다.",
    )
    if rows == subject.length:
        ended = NOTHING
    drawn = HeatMap(shown, POSITION, DIMENSION, (0, rows), (0, width))
    return heat_map(f"{hook}-matrix", title, both(caption, ended), drawn)


def _waves(subject: DrawnEncoding, hook: str, added_LD: np.ndarray, ended: Words) -> Drawing:
    rows, width = added_LD.shape
    x = np.arange(rows, dtype=np.float64)
    chosen = evenly(width, WAVES)
    lines = [Line((f"dim {d}", f"차원 {d}"), x, added_LD[:, d]) for d in chosen]
    title = ("Some dimensions along the positions", "위치에 따른 몇 개의 차원")
    caption = (
        "Each line is a column of the matrix. Dashed: the length.",
        "각 선은 행렬의 한 열입니다. 점선: 길이.",
    )
    drawn = Chart(lines, POSITION, ("added", "더해지는 값"), *_along(subject))
    return chart(f"{hook}-waves", title, both(caption, ended), drawn)


def _products(subject: DrawnEncoding, hook: str, added_LD: np.ndarray, ended: Words) -> Drawing:
    products = added_LD @ added_LD.T
    rows = len(products)
    diagonals = [np.diagonal(products, distance) for distance in range(rows)]
    line = Line(
        ("mean", "평균"),
        np.arange(rows, dtype=np.float64),
        np.array([diagonal.mean() for diagonal in diagonals]),
        np.array([diagonal.min() for diagonal in diagonals]),
        np.array([diagonal.max() for diagonal in diagonals]),
    )
    title = ("Dot product of two positions against their distance", "거리에 따른 두 위치의 내적")
    caption = (
        "Mean over all pairs of positions at this distance; the band shows the smallest and the largest. "
        "Without a band the product depends on distance alone. Dashed: the length.",
        "그 거리에 있는 모든 위치 쌍의 평균이며, 띠는 최솟값과 최댓값입니다. "
        "띠가 없으면 내적은 거리에만 달려 있습니다. 점선: 길이.",
    )
    drawn = Chart([line], ("distance", "거리"), ("dot product", "내적"), *_along(subject))
    return chart(f"{hook}-products", title, both(caption, ended), drawn)


def _along(subject: DrawnEncoding) -> tuple[tuple[Number, Number], list[tuple[Number, Words]]]:
    """The range of the position axis, and its marks."""
    length, known = subject.length, subject.encoding.max_positions
    marks: list[tuple[Number, Words]] = [(float(length), ("L", "L"))]
    if known is not None and known < 2 * length:
        marks.append((float(known), ("end", "끝")))
    return (0.0, 2.0 * length), marks
