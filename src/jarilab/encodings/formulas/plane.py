"""The papers' equations for encodings of two axes, one pair of cells at a time, in float64, as `formulas.py` has them
for one axis.

`ORACLES[name]` is the formula of the encoding registered under that name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from jarilab.encodings.formulas.absolute import (
    alibi_slopes,
    array,
    pair,
    product,
    shaw_row,
    turned_pair,
    wave,
)
from jarilab.encodings.formulas.oracle import Cell, Oracle, Vector


def waves_of_half(encoding: Any, place: int | float) -> list[float]:
    """Vaswani et al. 2017, section 3.5, for one axis of an image, in half of the width."""
    half = encoding.site.width // 2
    waves = []
    for dimension in range(half):
        phase = place / encoding.base ** (2 * (dimension // 2) / half)
        waves.append(wave(dimension, phase))
    return waves


def sinusoidal2d_embed(encoding: Any, at: Cell) -> Vector:
    """Carion et al. 2020, appendix A.4: "for both spatial coordinates of each embedding we independently use d/2 sine
    and cosine functions", rows first; scaled, in their code, to 2 pi in a frame whose first cell counts 1."""
    if encoding.where == "inject":
        return numpy.zeros(encoding.site.width)
    row, column = at.row, at.column
    if encoding.normalised:
        row = (at.row + 1) / (at.height + 1e-6) * 2 * math.pi
        column = (at.column + 1) / (at.width + 1e-6) * 2 * math.pi
    return numpy.array(waves_of_half(encoding, row) + waves_of_half(encoding, column))


def sinusoidal_mae_embed(encoding: Any, at: Cell) -> Vector:
    """`get_2d_sincos_pos_embed` of He et al. 2022: of the column, then of the row, sin(p omega), then cos(p omega),
    omega = 10000^(-i / (D/4)); of SimpleViT, the exponent i / (D/4 - 1)."""
    quarter, waves = encoding.site.width // 4, []
    last = quarter if encoding.exponent == "width" else max(quarter - 1, 1)
    for place in (at.column, at.row):
        phases = [place * encoding.base ** (-i / last) for i in range(quarter)]
        waves += [math.sin(phase) for phase in phases] + [math.cos(phase) for phase in phases]
    return numpy.array(waves)


def learned2d_embed(encoding: Any, at: Cell) -> Vector:
    """Dosovitskiy et al. 2021, appendix D.4: an embedding for the cell; or one for each axis (Ramesh et al. 2021)."""
    if encoding.where == "inject":
        return numpy.zeros(encoding.site.width)
    if encoding.layout == "table":
        table = array(encoding.table).reshape(encoding.rows, encoding.columns, -1)
        return table[at.row, at.column]
    return array(encoding.row_table)[at.row] + array(encoding.column_table)[at.column]


def rotary2d_turn(encoding: Any, x_E: Any, at: Cell, head: int) -> Vector:
    """Heo et al. 2024, equation 4: R(n, t) = exp(i theta_t p_n^x) and exp(i theta_t p_n^y), theta_t = 100^(-t/(d/4));
    equation 6, mixed: R(n, t) = exp(i (theta_t^x p_n^x + theta_t^y p_n^y)). Pairs of rows come first."""
    x_E = array(x_E)
    rotated = round(encoding.fraction * len(x_E))
    turned = x_E.copy()
    for t in range(rotated // 2):
        of_row, of_column = rotary2d_frequencies(encoding, t, rotated, head)
        angle = of_row * at.row + of_column * at.column
        real, imaginary = pair(encoding, t, rotated)
        turned[real], turned[imaginary] = turned_pair(x_E, real, imaginary, angle)
    return turned


def rotary2d_frequencies(encoding: Any, t: int, rotated: int, head: int) -> tuple[float, float]:
    """theta_t for rows and for columns: learned where mixed; else pairs of rows have none for columns."""
    if encoding.frequencies == "mixed":
        of_row, of_column = array(encoding.frequency)[head, t]
        return of_row, of_column
    quarter, base = rotated // 4, encoding.base or 100
    slow = base ** (-(t % quarter) / (rotated / 4))
    return (slow, 0.0) if t < quarter else (0.0, slow)


def rotary2d_score(
    encoding: Any, q_E: Any, k_E: Any, i: Cell, j: Cell, head: int, scale: float
) -> float:
    """Heo et al. 2024, equation 5: the real part of q'_n times the conjugate of k'_m."""
    q_E, k_E = rotary2d_turn(encoding, q_E, i, head), rotary2d_turn(encoding, k_E, j, head)
    return product(q_E, k_E, scale)


def pixtral_turn(encoding: Any, x_E: Any, at: Cell) -> Vector:
    """`precompute_freqs_cis_2d` of Mistral's code: of the frequencies theta^(-2i/d), rows take every other one from the
    first on, columns from the second on."""
    x_E = array(x_E)
    rotated = round(encoding.fraction * len(x_E))
    turned = x_E.copy()
    series = [encoding.base ** (-2 * i / rotated) for i in range(rotated // 2)]
    angles = [at.row * theta for theta in series[0::2]]
    angles += [at.column * theta for theta in series[1::2]]
    for t, angle in enumerate(angles):
        real, imaginary = pair(encoding, t, rotated)
        turned[real], turned[imaginary] = turned_pair(x_E, real, imaginary, angle)
    return turned


def pixtral_score(
    encoding: Any, q_E: Any, k_E: Any, i: Cell, j: Cell, head: int, scale: float
) -> float:
    """Su et al. 2021, equation 16."""
    return product(pixtral_turn(encoding, q_E, i), pixtral_turn(encoding, k_E, j), scale)


def continuous_bias2d_score(
    encoding: Any, q_E: Any, k_E: Any, i: Cell, j: Cell, head: int, scale: float
) -> float:
    """Liu et al. 2022, equations 3 and 4: B = G(sign(x) log(1 + |x|), ...), G two layers with ReLU; in their code
    offsets are scaled to 8 first, logarithms divided by log 8, and the bias is 16 sigmoid(G)."""
    coordinates = []
    for away, largest in ((j.row - i.row, encoding.rows), (j.column - i.column, encoding.columns)):
        x = 8 * away / largest
        coordinates.append(math.copysign(math.log2(1 + abs(x)) / math.log2(8), x))
    hidden = array(encoding.first.weight) @ numpy.array(coordinates) + array(encoding.first.bias)
    logit = float(array(encoding.last.weight)[head] @ numpy.maximum(hidden, 0))
    return product(q_E, k_E, scale) + 16 / (1 + math.exp(-logit))


def table2d_score(
    encoding: Any, q_E: Any, k_E: Any, i: Cell, j: Cell, head: int, scale: float
) -> float:
    """Liu et al. 2021, equation 4: B taken from a table of (2M - 1) x (2M - 1) offsets."""
    rows, columns = encoding.rows, encoding.columns
    down, right = j.row - i.row, j.column - i.column
    if encoding.clip:
        down = max(-rows, min(rows, down))
        right = max(-columns, min(columns, right))
    table = array(encoding.table).reshape(2 * rows + 1, 2 * columns + 1, -1)
    bias = float(table[down + rows, right + columns, head])
    return product(q_E, k_E, scale) + bias


def shaw2d_vector(encoding: Any, kind: str, i: Cell, j: Cell) -> Vector | float:
    """Shaw et al. 2018, section 3.2, once for rows and once for columns."""
    rows = getattr(encoding, f"{kind}_row_table")
    columns = getattr(encoding, f"{kind}_column_table")
    if rows is None:
        return 0.0
    of_row = array(rows)[shaw_row(encoding, i.row, j.row)]
    of_column = array(columns)[shaw_row(encoding, i.column, j.column)]
    return of_row + of_column


def shaw2d_score(
    encoding: Any, q_E: Any, k_E: Any, i: Cell, j: Cell, head: int, scale: float
) -> float:
    """Shaw et al. 2018, equation 4, with the vectors of both axes."""
    key_E = array(k_E) + shaw2d_vector(encoding, "key", i, j)
    return product(q_E, key_E, scale)


def shaw2d_value(encoding: Any, v_E: Any, i: Cell, j: Cell, head: int) -> Vector:
    """Shaw et al. 2018, equation 3, with the vectors of both axes."""
    return array(v_E) + shaw2d_vector(encoding, "value", i, j)


def alibi2d_score(
    encoding: Any, q_E: Any, k_E: Any, i: Cell, j: Cell, head: int, scale: float
) -> float:
    """Press et al. 2022, section 3, with a distance in the plane: its Minkowski norm of order 1, 2 or infinity."""
    order = {"manhattan": 1, "euclidean": 2, "chebyshev": math.inf}[encoding.distance]
    away = float(numpy.linalg.norm([i.row - j.row, i.column - j.column], order))
    slope = alibi_slopes(encoding.site.heads)[head]
    return product(q_E, k_E, scale) - slope * away


ORACLES = {
    "sinusoidal2d": Oracle(embed=sinusoidal2d_embed),
    "sinusoidal_mae": Oracle(embed=sinusoidal_mae_embed),
    "learned2d": Oracle(embed=learned2d_embed),
    "rotary2d": Oracle(score=rotary2d_score),
    "pixtral": Oracle(score=pixtral_score),
    "continuous_bias2d": Oracle(score=continuous_bias2d_score),
    "table2d": Oracle(score=table2d_score),
    "shaw2d": Oracle(score=shaw2d_score, value=shaw2d_value),
    "alibi2d": Oracle(score=alibi2d_score),
}
