"""Drawings of a softmax and its derivative."""

from __future__ import annotations

import numpy as np

from jarilab.inspect.explain.softmax import Softmax
from jarilab.pages.encodings.colours import css, ranked
from jarilab.pages.encodings.encoding_parts import array, rounded
from jarilab.pages.encodings.figures import Column
from jarilab.pages.encodings.heatmaps import LEFT, RIGHT, WIDTH, HeatmapTable
from jarilab.pages.encodings.svg import Drawing, Words, element, figure, line, text

TOP, TALL = 22, 150
LARGEST = 0.25
"""The limit of the colour scale: the largest absolute derivative, p (1 - p) at p = 1/2."""


def column_of(softmax: Softmax) -> Column:
    """The weights of a row of scores, and their derivative."""
    facts: list[Words] = [
        (f"1 − Σp² = {softmax.trace:.4f}", f"1 − Σp² = {softmax.trace:.4f}"),
        (
            f"entropy {softmax.entropy:.4f} of at most {softmax.max_entropy:.4f}",
            f"엔트로피 {softmax.entropy:.4f} (최대 {softmax.max_entropy:.4f})",
        ),
    ]
    return Column(softmax.name, [], facts, [_weights(softmax), _derivative(softmax)])


def _weights(softmax: Softmax) -> Drawing:
    p_K, s_K = softmax.weights.tolist(), softmax.scores.tolist()
    wide = (RIGHT - LEFT) / len(p_K)
    bottom = TOP + TALL
    parts = []
    for share in (0, 0.5, 1):
        y = bottom - TALL * share
        parts.append(line((LEFT, y), (RIGHT, y), "grid" if share else "zero"))
        parts.append(text(LEFT - 6, y + 4, figure(share), "end"))
    for number, (p, s) in enumerate(zip(p_K, s_K, strict=True)):
        x, high = LEFT + number * wide, TALL * p
        box = {"x": x + wide * 0.15, "y": bottom - high, "width": wide * 0.7, "height": high}
        parts.append(element("rect", {**box, "fill": css(ranked(2, 5))}))
        if len(p_K) <= 12:
            parts.append(text(x + wide / 2, bottom - high - 5, f"{p:.3f}", "middle"))
            parts.append(text(x + wide / 2, bottom + 16, figure(float(f"{s:.4g}")), "middle"))
    parts.append(text((LEFT + RIGHT) / 2, bottom + 32, ("score s", "점수 s"), "middle"))
    parts.append(text(2, 8, ("weight p", "가중치 p")))
    title = ("The softmax of the numbers", "수들의 소프트맥스")
    caption = ("p = exp(s) / Σ exp(s).", "p = exp(s) / Σ exp(s).")
    data = {"scores": rounded(np.array(s_K)), "weights": rounded(np.array(p_K))}
    inside = "".join(parts)
    return Drawing("softmax-weights", title, caption, WIDTH, bottom + 40, inside, data)


def _derivative(softmax: Softmax) -> Drawing:
    values = array(softmax.jacobian)
    drawn = HeatmapTable(values, ("p i", "p i"), ("s j", "s j"), LARGEST)
    title = ("Its derivative, diag(p) − p pᵀ", "도함수 diag(p) − p pᵀ")
    caption = (
        "How much each weight p i changes with each score s j. Rows and columns add up to 0. If one weight is "
        "near 1, all entries are near 0.",
        "각 점수 s j에 따라 각 가중치 p i가 얼마나 변하는지. 행과 열의 합은 0이고, 한 가중치가 1에 가까우면 모든 "
        "값이 0에 가깝습니다.",
    )
    data = {"values": rounded(values), "trace": softmax.trace}
    return Drawing(
        "softmax-derivative", title, caption, drawn.width, drawn.height, drawn.inside(), data
    )
