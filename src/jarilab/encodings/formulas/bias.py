"""Formulas of biases that depend on the distance."""

from __future__ import annotations

import math
from typing import Any

import numpy

from jarilab.encodings.formulas.oracle import Cell, Number, Oracle, array, score_plus


def alibi_slopes(n_heads: int) -> list[float]:
    """Press et al. 2022, section 3: for n heads a geometric sequence that starts at 2^(-8/n) with that ratio.

    Their code (get_slopes) for n that are no power of two: the slopes of the power below, then every other one of the
    power above.
    """
    if n_heads & (n_heads - 1) == 0:
        start = 2.0 ** (-8.0 / n_heads)
        return [start**power for power in range(1, n_heads + 1)]
    below = 1 << (n_heads.bit_length() - 1)
    every_other = alibi_slopes(2 * below)[0::2]
    return alibi_slopes(below) + every_other[: n_heads - below]


def alibi_bias(encoding: Any, i: Number, j: Number, head: int) -> float:
    """Press et al. 2022, section 3: q_i . k_j - m (i - j), with an unscaled bias; symmetric for j > i.

    Lee et al. 2022, section 3.2: other learned slopes for j > i.
    """
    slope = alibi_slopes(encoding.site.n_heads)[head]
    if encoding.slopes != "fixed":
        side = -1 if j > i else 0
        slope = math.exp(float(array(encoding.logarithms)[side, head]))
    return -slope * abs(i - j)


def alibi2d_bias(encoding: Any, i: Cell, j: Cell, head: int) -> float:
    """Press et al. 2022, section 3, with a distance in the plane: the Minkowski norm of order 1, 2 or infinity."""
    order = {"manhattan": 1, "euclidean": 2, "chebyshev": math.inf}[encoding.distance]
    away = float(numpy.linalg.norm([i.row - j.row, i.column - j.column], order))
    slope = alibi_slopes(encoding.site.n_heads)[head]
    return -slope * away


def softplus(x: Any) -> float:
    """log(1 + e^x)."""
    return math.log1p(math.exp(float(array(x))))


def kerple_bias(encoding: Any, i: Number, j: Number, head: int) -> float:
    """Chi et al. 2022, equations 2 and 3: q.k - r1 |i - j|^r2 with 0 < r2 <= 2, and q.k - r1 log(1 + r2 |i - j|).

    The kernel is not scaled.
    """
    r1, away = softplus(encoding.free_r1[head]), abs(i - j)
    if encoding.kernel == "log":
        r2 = softplus(encoding.free_r2[head])
        return -r1 * math.log(1 + r2 * away)
    r2 = 2 / (1 + math.exp(-float(array(encoding.free_r2)[head])))
    return -r1 * away**r2


def sandwich_bias(encoding: Any, i: Number, j: Number, head: int) -> float:
    """Chi et al. 2023, section 6 and appendix E: the product of two sinusoids, over the head's compression ratio.

    Minus that of equal positions, which the softmax cancels.
    """
    width, total = encoding.width, 0.0
    for wave in range(width // 2):
        frequency = encoding.base ** (-2 * wave / width)
        at_i, at_j = i * frequency, j * frequency
        total += math.sin(at_i) * math.sin(at_j) + math.cos(at_i) * math.cos(at_j) - 1
    ratio = (head + 1) * 8 / encoding.site.n_heads
    return total / ratio


def t5_bucket(ahead: int, buckets: int, farthest: int, both_ways: bool) -> int:
    """The row of T5's table for a distance (Raffel et al. 2020, section 2.1).

    As `_relative_position_bucket` of their code, where ahead = key - query, but in integers. Bucket e + b of the n
    logarithmic ones starts where log(away/e) / log(farthest/e) * n >= b, that is away^n e^b >= farthest^b e^n.
    """
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
    far, bucket = buckets - exact, exact
    for b in range(1, far):
        if away**far * exact**b >= farthest**b * exact**far:
            bucket += 1
    return first + bucket


def t5_bias(encoding: Any, i: Number, j: Number, head: int) -> float:
    """Raffel et al. 2020, section 2.1: a learned scalar of the offset's bucket is added to the logit."""
    both_ways = not encoding.site.causal
    row = t5_bucket(int(j - i), encoding.buckets, encoding.distance, both_ways)
    return float(array(encoding.table)[row, head])


def table2d_bias(encoding: Any, i: Cell, j: Cell, head: int) -> float:
    """Liu et al. 2021, equation 4: B is looked up in a table of (2M - 1) x (2M - 1) offsets."""
    rows, columns = encoding.rows, encoding.columns
    down, right = j.row - i.row, j.column - i.column
    if encoding.clip:
        down = max(-rows, min(rows, down))
        right = max(-columns, min(columns, right))
    table = array(encoding.table).reshape(2 * rows + 1, 2 * columns + 1, -1)
    return float(table[down + rows, right + columns, head])


def dynamic_bias(encoding: Any, i: Number, j: Number, head: int) -> float:
    """Wang et al. 2022, equation 3, of the logarithm of Liu et al. 2022, equation 4: sign(x) log(1 + |x|)."""
    x = float(j - i)
    if encoding.logarithm:
        x = math.copysign(math.log(1 + abs(x)), x)
    units = numpy.array([x])
    for layer in encoding.layers:
        units = array(layer.weight) @ units + array(layer.bias)
        units = units / (1 + numpy.exp(-units))
    return float(array(encoding.out.weight)[head] @ units)


def fire_bias(encoding: Any, i: Number, j: Number, head: int) -> float:
    """Li et al. 2024, equations 5 and 6: f(psi(i - j) / psi(max(L, i))), psi(x) = log(c x + 1)."""
    slope, longest = softplus(encoding.free_slope), encoding.length
    longest *= softplus(encoding.free_share)
    ratio = math.log(slope * abs(i - j) + 1) / math.log(slope * max(longest, i) + 1)
    weight, offset = array(encoding.inner.weight)[:, 0], array(encoding.inner.bias)
    units = [max(float(w) * ratio + float(b), 0.0) for w, b in zip(weight, offset, strict=True)]
    return float(array(encoding.outer.weight)[head] @ numpy.array(units))


def continuous_bias2d(encoding: Any, i: Cell, j: Cell, head: int) -> float:
    """Liu et al. 2022, equations 3 and 4: B = G(sign(x) log(1 + |x|), ...), where G has two layers and ReLU.

    Their code scales offsets to 8 first, divides logarithms by log 8, and has the bias 16 sigmoid(G).
    """
    coordinates = []
    for away, largest in ((j.row - i.row, encoding.rows), (j.column - i.column, encoding.columns)):
        x = 8 * away / largest
        coordinates.append(math.copysign(math.log2(1 + abs(x)) / math.log2(8), x))
    hidden = array(encoding.first.weight) @ numpy.array(coordinates) + array(encoding.first.bias)
    logit = float(array(encoding.last.weight)[head] @ numpy.maximum(hidden, 0))
    return 16 / (1 + math.exp(-logit))


ORACLES = {
    "alibi": Oracle(score=score_plus(alibi_bias)),
    "alibi2d": Oracle(score=score_plus(alibi2d_bias)),
    "kerple": Oracle(score=score_plus(kerple_bias)),
    "sandwich": Oracle(score=score_plus(sandwich_bias)),
    "t5": Oracle(score=score_plus(t5_bias)),
    "table2d": Oracle(score=score_plus(table2d_bias)),
    "dynamic_bias": Oracle(score=score_plus(dynamic_bias)),
    "fire": Oracle(score=score_plus(fire_bias)),
    "continuous_bias2d": Oracle(score=score_plus(continuous_bias2d)),
}
