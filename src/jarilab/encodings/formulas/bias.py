"""The papers' equations of biases that are functions of the distance, and of PaTH, in float64: more of what
`formulas.py` has."""

from __future__ import annotations

import math
from typing import Any

import numpy

from jarilab.encodings.formulas.absolute import Number, array, product
from jarilab.encodings.formulas.oracle import Oracle, ScoreInputs, pair_by_pair


def above_zero(free: Any) -> float:
    """log(1 + e^x)."""
    return math.log1p(math.exp(float(array(free))))


def kerple_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Chi et al. 2022, equations 2 and 3: q.k - r1 |i - j|^r2 with 0 < r2 <= 2, and q.k - r1 log(1 + r2 |i - j|); the
    kernel is not scaled."""
    r1, away = above_zero(encoding.free_r1[head]), abs(i - j)
    if encoding.kernel == "log":
        r2 = above_zero(encoding.free_r2[head])
        return product(q_E, k_E, scale) - r1 * math.log(1 + r2 * away)
    r2 = 2 / (1 + math.exp(-float(array(encoding.free_r2)[head])))
    return product(q_E, k_E, scale) - r1 * away**r2


def sandwich_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Chi et al. 2023, section 6 and appendix E: the product of two sinusoids over the head's compression ratio."""
    width, total = encoding.width, 0.0
    for wave in range(width // 2):
        frequency = encoding.base ** (-2 * wave / width)
        at_i, at_j = i * frequency, j * frequency
        total += math.sin(at_i) * math.sin(at_j) + math.cos(at_i) * math.cos(at_j)
    ratio = (head + 1) * 8 / encoding.site.heads
    return product(q_E, k_E, scale) + total / ratio


def fire_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Li et al. 2024, equations 5 and 6: f(psi(i - j) / psi(max(L, i))), psi(x) = log(c x + 1)."""
    slope, longest = above_zero(encoding.free_slope), encoding.length
    longest *= above_zero(encoding.free_share)
    share = math.log(slope * abs(i - j) + 1) / math.log(slope * max(longest, i) + 1)
    weight, offset = array(encoding.inner.weight)[:, 0], array(encoding.inner.bias)
    units = [max(float(w) * share + float(b), 0.0) for w, b in zip(weight, offset, strict=True)]
    bias = float(array(encoding.outer.weight)[head] @ numpy.array(units))
    return product(q_E, k_E, scale) + bias


def dynamic_bias_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Wang et al. 2022, equation 3, of the logarithm in Liu et al. 2022, equation 4: sign(x) log(1 + |x|)."""
    x = float(j - i)
    if encoding.logarithm:
        x = math.copysign(math.log(1 + abs(x)), x)
    units = numpy.array([x])
    for layer in encoding.layers:
        units = array(layer.weight) @ units + array(layer.bias)
        units = units / (1 + numpy.exp(-units))
    return product(q_E, k_E, scale) + float(array(encoding.out.weight)[head] @ units)


def path_score(inputs: ScoreInputs, query: int, key: int) -> float:
    """Yang et al. 2025, equation 2: q_i (H_i ... H_(j+1)) k_j, H_t = I - beta_t w_t w_t', one token after the other."""
    encoding, head = inputs.encoding, inputs.head
    width = encoding.site.head_width
    direction = array(encoding.direction.weight)[head * width : (head + 1) * width]
    low = array(encoding.low.weight)
    strength, offset = array(encoding.strength.weight)[head], array(encoding.strength.bias)[head]
    turned_E = inputs.k[key]
    for later in range(key + 1, len(inputs.k)):
        if inputs.allowed[query, later]:
            x_D = inputs.x[later]
            w_E = direction @ (low @ x_D)
            w_E = w_E / math.sqrt(float(w_E @ w_E))
            beta = 2 / (1 + math.exp(-float(strength @ x_D + offset)))
            turned_E = turned_E - beta * float(w_E @ turned_E) * w_E
    return inputs.scale * float(inputs.q[query] @ turned_E)


ORACLES = {
    "kerple": Oracle(score=kerple_score),
    "sandwich": Oracle(score=sandwich_score),
    "fire": Oracle(score=fire_score),
    "dynamic_bias": Oracle(score=dynamic_bias_score),
    "path_attention": Oracle(scores=pair_by_pair(path_score)),
}
