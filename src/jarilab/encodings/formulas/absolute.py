"""The papers' equations, one pair of tokens at a time, in float64. Slow on purpose, and sharing no code with the
encodings, which are only asked for their options and parameters: the laws and the tests hold one against the other.

`ORACLES[name]` is the formula of the encoding registered under that name; those of two axes are in `formulas2d.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from jarilab.encodings.formulas.oracle import Oracle, Vector, plain_score

Number = int | float


def array(x: Any) -> Vector:
    """A tensor or an array, in float64."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().double().numpy()
    return numpy.array(x, dtype=numpy.float64)


def product(q_E: Any, k_E: Any, scale: float) -> float:
    """Vaswani et al. 2017, equation 1: q . k / sqrt(d_k)."""
    return plain_score(None, array(q_E), array(k_E), None, None, 0, scale)


def turned_pair(x_E: Vector, real: int, imaginary: int, angle: float) -> tuple[float, float]:
    """Two components as one complex number, times exp(1j angle)."""
    z = complex(x_E[real], x_E[imaginary])
    z *= complex(math.cos(angle), math.sin(angle))
    return z.real, z.imag


def pair(encoding: Any, t: int, rotated: int) -> tuple[int, int]:
    """Which two of the rotated components form pair t."""
    return (t, t + rotated // 2) if encoding.pairing == "half" else (2 * t, 2 * t + 1)


def wave(dimension: int, phase: float) -> float:
    """Sines in the even dimensions, cosines in the odd ones."""
    return math.cos(phase) if dimension % 2 else math.sin(phase)


def sinusoidal_embed(encoding: Any, position: Number) -> Vector:
    """Vaswani et al. 2017, section 3.5: PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(p / 10000^(2i/d)).

    `concatenated`: the same numbers, sines first. `tensor2tensor`: get_timing_signal_1d of the authors' code,
    wavelengths 10000^(i / (d/2 - 1)), sines first, a zero at the end of an odd width.
    """
    width, base = encoding.site.width, encoding.base
    if encoding.layout == "tensor2tensor":
        pairs = width // 2
        phases = [position / base ** (i / max(pairs - 1, 1)) for i in range(pairs)]
        sines = [math.sin(phase) for phase in phases]
        cosines = [math.cos(phase) for phase in phases]
        return numpy.array(sines + cosines + [0.0] * (width % 2))
    paper = []
    for dimension in range(width):
        phase = position / base ** (2 * (dimension // 2) / width)
        paper.append(wave(dimension, phase))
    if encoding.layout == "interleaved":
        return numpy.array(paper)
    return numpy.array(paper[0::2] + paper[1::2])


def scaled_sinusoidal_embed(encoding: Any, position: Number) -> Vector:
    """x-transformers' ScaledSinusoidalEmbedding: the waves times one learned number."""
    return float(array(encoding.scale)[0]) * sinusoidal_embed(encoding, position)


def learned_embed(encoding: Any, position: Number) -> Vector:
    """Gehring et al. 2017, section 3.1: the embedding p_j of absolute position j is added to the token's."""
    return array(encoding.table)[int(position)]


def rotary_turn(encoding: Any, x_E: Any, position: Number) -> Vector:
    """Su et al. 2021, equations 13 and 15: pair i, as a complex number, times exp(1j m theta_i), where
    theta_i = 10000^(-2(i-1)/d). `rotated` components take part, d being their number; the others stay."""
    x_E = array(x_E)
    rotated = round(encoding.fraction * len(x_E))
    turned = x_E.copy()
    for i in range(rotated // 2):
        real, imaginary = pair(encoding, i, rotated)
        angle = position * encoding.base ** (-2 * i / rotated)
        turned[real], turned[imaginary] = turned_pair(x_E, real, imaginary, angle)
    return turned


def rotary_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Su et al. 2021, equation 16: (R_m q) . (R_n k)."""
    q_E, k_E = rotary_turn(encoding, q_E, i), rotary_turn(encoding, k_E, j)
    return product(q_E, k_E, scale)


def shaw_row(encoding: Any, i: Number, j: Number) -> int:
    """Shaw et al. 2018, section 3.2: a_ij = w_clip(j - i, k), clip(x, k) = max(-k, min(k, x)); w_-k is row 0."""
    clip = encoding.clip
    return int(max(-clip, min(clip, j - i))) + clip


def shaw_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Shaw et al. 2018, equation 4: e_ij = q_i . (k_j + a^K_ij) / sqrt(d_z)."""
    return shaw_label_score(encoding, q_E, k_E, shaw_row(encoding, i, j), scale)


def shaw_value(encoding: Any, v_E: Any, i: Number, j: Number, head: int) -> Vector:
    """Shaw et al. 2018, equation 3: z_i = sum_j alpha_ij (v_j + a^V_ij)."""
    return shaw_label_value(encoding, v_E, shaw_row(encoding, i, j))


def shaw_label_score(encoding: Any, q_E: Any, k_E: Any, label: int, scale: float) -> float:
    """Equation 4, where a_ij belongs to an edge of a graph with this label (section 3.1)."""
    key_E = array(k_E)
    if encoding.key_table is not None:
        key_E = key_E + array(encoding.key_table)[label]
    return product(q_E, key_E, scale)


def shaw_label_value(encoding: Any, v_E: Any, label: int) -> Vector:
    """Equation 3, where a_ij belongs to an edge of a graph with this label (section 3.1)."""
    if encoding.value_table is None:
        return array(v_E)
    return array(v_E) + array(encoding.value_table)[label]


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
    far, bucket = buckets - exact, exact
    for b in range(1, far):
        if away**far * exact**b >= farthest**b * exact**far:
            bucket += 1
    return first + bucket


def t5_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Raffel et al. 2020, section 2.1: a learned scalar for the bucket of the offset, added to the logit."""
    both_ways = not encoding.site.causal
    row = t5_bucket(int(j - i), encoding.buckets, encoding.distance, both_ways)
    bias = float(array(encoding.table)[row, head])
    return product(q_E, k_E, scale) + bias


def alibi_slopes(heads: int) -> list[float]:
    """Press et al. 2022, section 3: for n heads a geometric sequence that starts at 2^(-8/n) with that ratio; their
    code (get_slopes), for n no power of two: those of the power below, then every other one of the power above."""
    if heads & (heads - 1) == 0:
        start = 2.0 ** (-8.0 / heads)
        return [start**power for power in range(1, heads + 1)]
    below = 1 << (heads.bit_length() - 1)
    every_other = alibi_slopes(2 * below)[0::2]
    return alibi_slopes(below) + every_other[: heads - below]


def alibi_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Press et al. 2022, section 3: q_i . k_j + m (-(i - j)), the bias not scaled; symmetric where j > i. Lee et al.
    2022, section 3.2: other learned slopes where j > i."""
    slope = alibi_slopes(encoding.site.heads)[head]
    if encoding.slopes != "fixed":
        side = -1 if j > i else 0
        slope = math.exp(float(array(encoding.logarithms)[side, head]))
    return product(q_E, k_E, scale) - slope * abs(i - j)


ORACLES = {
    "none": Oracle(),
    "sinusoidal": Oracle(embed=sinusoidal_embed),
    "scaled_sinusoidal": Oracle(embed=scaled_sinusoidal_embed),
    "learned": Oracle(embed=learned_embed),
    "rotary": Oracle(score=rotary_score),
    "shaw": Oracle(score=shaw_score, value=shaw_value),
    "t5": Oracle(score=t5_score),
    "alibi": Oracle(score=alibi_score),
}
