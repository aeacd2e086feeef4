"""The papers' equations, one pair of tokens at a time, in float64. Slow on purpose, and sharing no code with the
encodings, which are only asked for their options and parameters: the laws and the tests hold one against the other.

`ORACLES[name]` is the formula of the encoding registered under that name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from jarilab.encodings.oracle import Cell, Oracle, Vector
from jarilab.encodings.oracle import plain_score as score


def array(x: Any) -> Vector:
    """A tensor or an array, in float64."""
    return numpy.array(
        x.detach().cpu().double().numpy() if hasattr(x, "detach") else x, dtype=numpy.float64
    )


def sinusoidal_embed(encoding: Any, position: int | float) -> Vector:
    """Vaswani et al. 2017, section 3.5: PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(p / 10000^(2i/d)).

    `concatenated`: the same numbers, sines first. `tensor2tensor`: get_timing_signal_1d of the authors' code,
    wavelengths 10000^(i / (d/2 - 1)), sines first, a zero at the end of an odd width.
    """
    width, base = encoding.site.width, encoding.base
    if encoding.layout == "tensor2tensor":
        pairs = width // 2
        phases = [position / base ** (i / max(pairs - 1, 1)) for i in range(pairs)]
        return numpy.array(
            [math.sin(a) for a in phases] + [math.cos(a) for a in phases] + [0.0] * (width % 2)
        )
    paper = []
    for dimension in range(width):
        phase = position / base ** (2 * (dimension // 2) / width)
        paper.append(math.cos(phase) if dimension % 2 else math.sin(phase))
    return numpy.array(paper if encoding.layout == "interleaved" else paper[0::2] + paper[1::2])


def learned_embed(encoding: Any, position: int | float) -> Vector:
    """Gehring et al. 2017, section 3.1: the embedding p_j of absolute position j is added to the token's."""
    return array(encoding.table)[int(position)]


def rotary_turn(encoding: Any, x_E: Any, position: int | float) -> Vector:
    """Su et al. 2021, equations 13 and 15: pair i, as a complex number, times exp(1j m theta_i), where
    theta_i = 10000^(-2(i-1)/d). `rotated` components take part, d being their number; the others stay."""
    x_E = array(x_E)
    rotated = round(encoding.fraction * len(x_E))
    turned = x_E.copy()
    for i in range(rotated // 2):
        real, imaginary = (
            (i, i + rotated // 2) if encoding.pairing == "half" else (2 * i, 2 * i + 1)
        )
        angle = position * encoding.base ** (-2 * i / rotated)
        z = complex(x_E[real], x_E[imaginary]) * complex(math.cos(angle), math.sin(angle))
        turned[real], turned[imaginary] = z.real, z.imag
    return turned


def rotary_score(
    encoding: Any, q_E: Any, k_E: Any, i: int | float, j: int | float, head: int, scale: float
) -> float:
    """Su et al. 2021, equation 16: (R_m q) . (R_n k)."""
    return score(
        encoding, rotary_turn(encoding, q_E, i), rotary_turn(encoding, k_E, j), i, j, head, scale
    )


def shaw_row(encoding: Any, i: int | float, j: int | float) -> int:
    """Shaw et al. 2018, section 3.2: a_ij = w_clip(j - i, k), clip(x, k) = max(-k, min(k, x)); w_-k is row 0."""
    return int(max(-encoding.clip, min(encoding.clip, j - i))) + encoding.clip


def shaw_score(
    encoding: Any, q_E: Any, k_E: Any, i: int | float, j: int | float, head: int, scale: float
) -> float:
    """Shaw et al. 2018, equation 4: e_ij = q_i . (k_j + a^K_ij) / sqrt(d_z)."""
    return shaw_label_score(encoding, q_E, k_E, shaw_row(encoding, i, j), scale)


def shaw_value(encoding: Any, v_E: Any, i: int | float, j: int | float, head: int) -> Vector:
    """Shaw et al. 2018, equation 3: z_i = sum_j alpha_ij (v_j + a^V_ij)."""
    return shaw_label_value(encoding, v_E, shaw_row(encoding, i, j))


def shaw_label_score(encoding: Any, q_E: Any, k_E: Any, label: int, scale: float) -> float:
    """Equation 4, where a_ij belongs to an edge of a graph with this label (section 3.1)."""
    a_E = 0.0 if encoding.key_table is None else array(encoding.key_table)[label]
    return score(encoding, array(q_E), array(k_E) + a_E, 0, 0, 0, scale)


def shaw_label_value(encoding: Any, v_E: Any, label: int) -> Vector:
    """Equation 3, where a_ij belongs to an edge of a graph with this label (section 3.1)."""
    return array(v_E) + (
        0.0 if encoding.value_table is None else array(encoding.value_table)[label]
    )


def t5_bucket(ahead: int, buckets: int, farthest: int, both_ways: bool) -> int:
    """Raffel et al. 2020, section 2.1 ("up to an offset of 128 beyond which we assign all to the same embedding"), and
    `_relative_position_bucket` of their code, where ahead = key - query. In whole numbers: bucket e + b of the
    logarithmic n is reached when log(away/e) / log(farthest/e) * n >= b, that is away^n e^b >= farthest^b e^n."""
    first = 0
    if both_ways:
        buckets //= 2
        first = buckets if ahead > 0 else 0
        away = abs(ahead)
    else:
        away = max(-ahead, 0)
    exact = buckets // 2
    if away < exact:
        return first + away
    far = buckets - exact
    reached = sum(away**far * exact**b >= farthest**b * exact**far for b in range(1, far))
    return first + exact + reached


def t5_score(
    encoding: Any, q_E: Any, k_E: Any, i: int | float, j: int | float, head: int, scale: float
) -> float:
    """Raffel et al. 2020, section 2.1: a learned scalar for the bucket of the offset, added to the logit."""
    row = t5_bucket(
        int(j - i), encoding.buckets, encoding.distance, both_ways=not encoding.site.causal
    )
    return score(encoding, array(q_E), array(k_E), i, j, head, scale) + float(
        array(encoding.table)[row, head]
    )


def alibi_slopes(heads: int) -> list[float]:
    """Press et al. 2022, section 3: for n heads a geometric sequence that starts at 2^(-8/n) with that ratio; their
    code (get_slopes), for n no power of two: those of the power below, then every other one of the power above."""
    if heads & (heads - 1) == 0:
        start = 2.0 ** (-8.0 / heads)
        return [start**power for power in range(1, heads + 1)]
    below = 1 << (heads.bit_length() - 1)
    return alibi_slopes(below) + alibi_slopes(2 * below)[0::2][: heads - below]


def alibi_score(
    encoding: Any, q_E: Any, k_E: Any, i: int | float, j: int | float, head: int, scale: float
) -> float:
    """Press et al. 2022, section 3: q_i . k_j + m (-(i - j)), the bias not scaled; symmetric where j > i."""
    slope = alibi_slopes(encoding.site.heads)[head]
    return score(encoding, array(q_E), array(k_E), i, j, head, scale) - slope * abs(i - j)


def waves_of_half(encoding: Any, place: int | float) -> list[float]:
    """Vaswani et al. 2017, section 3.5, for one axis of an image, in half of the width."""
    half = encoding.site.width // 2
    phases = [place / encoding.base ** (2 * (dimension // 2) / half) for dimension in range(half)]
    return [
        math.cos(phase) if dimension % 2 else math.sin(phase)
        for dimension, phase in enumerate(phases)
    ]


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


def learned2d_embed(encoding: Any, at: Cell) -> Vector:
    """Dosovitskiy et al. 2021, appendix D.4: an embedding for the cell; or one for each axis (Ramesh et al. 2021)."""
    if encoding.where == "inject":
        return numpy.zeros(encoding.site.width)
    if encoding.layout == "table":
        return array(encoding.table).reshape(encoding.rows, encoding.columns, -1)[at.row, at.column]
    return array(encoding.row_table)[at.row] + array(encoding.column_table)[at.column]


def rotary2d_turn(encoding: Any, x_E: Any, at: Cell, head: int) -> Vector:
    """Heo et al. 2024, equation 4: R(n, t) = exp(i theta_t p_n^x) and exp(i theta_t p_n^y), theta_t = 100^(-t/(d/4));
    equation 6, mixed: R(n, t) = exp(i (theta_t^x p_n^x + theta_t^y p_n^y)). Pairs of rows come first."""
    x_E = array(x_E)
    rotated = round(encoding.fraction * len(x_E))
    base, turned = encoding.base or 100, x_E.copy()
    for t in range(rotated // 2):
        if encoding.frequencies == "mixed":
            of_row, of_column = array(encoding.frequency)[head, t]
        else:
            slow = base ** (-(t % (rotated // 4)) / (rotated / 4))
            of_row, of_column = (slow, 0.0) if t < rotated // 4 else (0.0, slow)
        angle = of_row * at.row + of_column * at.column
        real, imaginary = (
            (t, t + rotated // 2) if encoding.pairing == "half" else (2 * t, 2 * t + 1)
        )
        z = complex(x_E[real], x_E[imaginary]) * complex(math.cos(angle), math.sin(angle))
        turned[real], turned[imaginary] = z.real, z.imag
    return turned


def rotary2d_score(
    encoding: Any, q_E: Any, k_E: Any, i: Cell, j: Cell, head: int, scale: float
) -> float:
    """Heo et al. 2024, equation 5: the real part of q'_n times the conjugate of k'_m."""
    q_E, k_E = rotary2d_turn(encoding, q_E, i, head), rotary2d_turn(encoding, k_E, j, head)
    return score(encoding, q_E, k_E, i, j, head, scale)


def table2d_score(
    encoding: Any, q_E: Any, k_E: Any, i: Cell, j: Cell, head: int, scale: float
) -> float:
    """Liu et al. 2021, equation 4: B taken from a table of (2M - 1) x (2M - 1) offsets."""
    down, right = j.row - i.row, j.column - i.column
    if encoding.clip:
        down = max(-encoding.rows, min(encoding.rows, down))
        right = max(-encoding.columns, min(encoding.columns, right))
    table = array(encoding.table).reshape(2 * encoding.rows + 1, 2 * encoding.columns + 1, -1)
    bias = float(table[down + encoding.rows, right + encoding.columns, head])
    return score(encoding, array(q_E), array(k_E), i, j, head, scale) + bias


def shaw2d_vector(encoding: Any, kind: str, i: Cell, j: Cell) -> Vector | float:
    """Shaw et al. 2018, section 3.2, once for rows and once for columns."""
    rows, columns = (
        getattr(encoding, f"{kind}_row_table"),
        getattr(encoding, f"{kind}_column_table"),
    )
    if rows is None:
        return 0.0
    return (
        array(rows)[shaw_row(encoding, i.row, j.row)]
        + array(columns)[shaw_row(encoding, i.column, j.column)]
    )


def shaw2d_score(
    encoding: Any, q_E: Any, k_E: Any, i: Cell, j: Cell, head: int, scale: float
) -> float:
    """Shaw et al. 2018, equation 4, with the vectors of both axes."""
    return score(
        encoding, array(q_E), array(k_E) + shaw2d_vector(encoding, "key", i, j), i, j, head, scale
    )


def shaw2d_value(encoding: Any, v_E: Any, i: Cell, j: Cell, head: int) -> Vector:
    """Shaw et al. 2018, equation 3, with the vectors of both axes."""
    return array(v_E) + shaw2d_vector(encoding, "value", i, j)


def alibi2d_score(
    encoding: Any, q_E: Any, k_E: Any, i: Cell, j: Cell, head: int, scale: float
) -> float:
    """Press et al. 2022, section 3, with a distance in the plane: its Minkowski norm of order 1, 2 or infinity."""
    order = {"manhattan": 1, "euclidean": 2, "chebyshev": math.inf}[encoding.distance]
    away = float(numpy.linalg.norm([i.row - j.row, i.column - j.column], order))
    return (
        score(encoding, array(q_E), array(k_E), i, j, head, scale)
        - alibi_slopes(encoding.site.heads)[head] * away
    )


ORACLES = {
    "none": Oracle(),
    "sinusoidal": Oracle(embed=sinusoidal_embed),
    "learned": Oracle(embed=learned_embed),
    "rotary": Oracle(score=rotary_score),
    "shaw": Oracle(score=shaw_score, value=shaw_value),
    "t5": Oracle(score=t5_score),
    "alibi": Oracle(score=alibi_score),
    "sinusoidal2d": Oracle(embed=sinusoidal2d_embed),
    "learned2d": Oracle(embed=learned2d_embed),
    "rotary2d": Oracle(score=rotary2d_score),
    "table2d": Oracle(score=table2d_score),
    "shaw2d": Oracle(score=shaw2d_score, value=shaw2d_value),
    "alibi2d": Oracle(score=alibi2d_score),
}
