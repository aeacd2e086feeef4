"""Formulas of encodings that rotate or scale queries and keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from jarilab.encodings.formulas.oracle import (
    Cell,
    Number,
    Oracle,
    ScoreInputs,
    Vector,
    array,
    pair,
    pair_by_pair,
    product,
    rotate_pair,
    score_rotated,
)

Theta = Callable[[Any, int, int, Number], float]
"""The frequency of a pair: of the encoding, the pair, the number of rotated components, and the length of the text."""


def count_rotated(encoding: Any, width: int) -> int:
    """The number of rotated components."""
    return round(encoding.fraction * width)


def turn(encoding: Any, x_E: Any, rotated: int, angles: Sequence[float]) -> Vector:
    """Su et al. 2021, equation 15: each pair, as a complex number, times exp(1j angle).

    rotated: number of rotated components. The others do not change.
    """
    x_E = array(x_E)
    rotated_E = x_E.copy()
    for t, angle in enumerate(angles):
        real, imaginary = pair(encoding, t, rotated)
        rotated_E[real], rotated_E[imaginary] = rotate_pair(x_E, real, imaginary, angle)
    return rotated_E


def rotate(
    encoding: Any, x_E: Any, position: Number, theta: Theta, rotated: int, length: Number
) -> Vector:
    """Su et al. 2021, equation 15, with any theta."""
    angles = [position * theta(encoding, t, rotated, length) for t in range(rotated // 2)]
    return turn(encoding, x_E, rotated, angles)


def rotate_rotary(encoding: Any, x_E: Any, position: Number, head: int = 0) -> Vector:
    """Su et al. 2021, equations 13 and 15: pair i, as a complex number, times exp(1j m theta_i)."""
    rotated = count_rotated(encoding, len(x_E))
    return rotate(encoding, x_E, position, plain, rotated, 0)


def rotary_oracle(
    theta: Theta, temperature: Callable[[Any], float] = lambda encoding: 1.0
) -> Oracle:
    """The oracle of rotary with another theta. temperature: factor of rotated components."""

    def score(
        encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
    ) -> float:
        return pair_score(encoding, q_E, k_E, i, j, 0, scale)

    def pair_score(
        encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, length: Number, scale: float
    ) -> float:
        rotated = count_rotated(encoding, len(q_E))
        q_E = rotate(encoding, q_E, i, theta, rotated, length)
        k_E = rotate(encoding, k_E, j, theta, rotated, length)
        squared = temperature(encoding) ** 2
        rotated_score = squared * product(q_E[:rotated], k_E[:rotated], scale)
        return rotated_score + product(q_E[rotated:], k_E[rotated:], scale)

    def score_in_text(inputs: ScoreInputs, query: int, key: int) -> float:
        q_E, k_E = inputs.q[query], inputs.k[key]
        i, j = inputs.q_at[query], inputs.k_at[key]
        length = max(inputs.k_at) + 1
        return pair_score(inputs.encoding, q_E, k_E, i, j, length, inputs.scale)

    scores = pair_by_pair(score_in_text) if theta in LENGTH_DEPENDENT else None
    return Oracle(score=score, scores=scores)


def plain(encoding: Any, t: int, rotated: int, length: Number = 0) -> float:
    """Su et al. 2021, section 3.2.2: theta_i = 10000^(-2(i-1)/d)."""
    return encoding.base ** (-2 * t / rotated)


def linear(encoding: Any, t: int, rotated: int, length: Number) -> float:
    """Chen et al. 2023, equation 4: f'(x, m) = f(x, m L / L'), where L' is `factor` times L."""
    return plain(encoding, t, rotated) / encoding.factor


def ntk(encoding: Any, t: int, rotated: int, length: Number) -> float:
    """Peng et al. 2023, definition 1: b' = b s^(|D| / (|D| - 2)), theta = b'^(-2d/|D|)."""
    base = encoding.base * encoding.factor ** (rotated / (rotated - 2))
    return base ** (-2 * t / rotated)


def dynamic(encoding: Any, t: int, rotated: int, length: Number) -> float:
    """`dynamic` of the transformers library: base (factor l / L - (factor - 1))^(d / (d - 2)) for lengths l above L."""
    trained, factor = encoding.trained_length, encoding.factor
    stretch = factor * max(length, trained) / trained - (factor - 1)
    base = encoding.base * stretch ** (rotated / (rotated - 2))
    return base ** (-2 * t / rotated)


def yarn_pair(encoding: Any, rotated: int, turns: float) -> float:
    """`_yarn_find_correction_dim` of the authors' code: the pair that rotates `turns` times in the trained length."""
    periods = encoding.trained_length / (turns * 2 * math.pi)
    return rotated * math.log(periods) / (2 * math.log(encoding.base))


def yarn(encoding: Any, t: int, rotated: int, length: Number) -> float:
    """Peng et al. 2023, definition 2: h(theta) = (1 - gamma) theta / s + gamma theta.

    gamma falls from 1 to 0 over the pairs, as in `_yarn_find_correction_range` and `_yarn_linear_ramp_mask` of the
    authors' code.
    """
    low = yarn_pair(encoding, rotated, encoding.fast_turns)
    high = yarn_pair(encoding, rotated, encoding.slow_turns)
    if encoding.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    if low == high:
        high += 0.001
    gamma = 1 - min(1, max(0, (t - low) / (high - low)))
    theta = plain(encoding, t, rotated)
    return (1 - gamma) * theta / encoding.factor + gamma * theta


def yarn_temperature(encoding: Any) -> float:
    """Peng et al. 2023, equation 15: sqrt(1 / t) = 0.1 ln(s) + 1."""
    if encoding.attention_factor is not None:
        return encoding.attention_factor
    return 0.1 * math.log(encoding.factor) + 1


def longrope(encoding: Any, t: int, rotated: int, length: Number) -> float:
    """Ding et al. 2024, equation 3: theta / lambda_i, with the lambdas of short or of long texts."""
    lambdas = encoding.long if length > encoding.trained_length else encoding.short
    numbers = [float(number) for number in lambdas.split("/")]
    return plain(encoding, t, rotated) / (numbers[t] if len(numbers) > 1 else numbers[0])


def longrope_temperature(encoding: Any) -> float:
    """The code of Phi-3: sqrt(1 + ln(s) / ln(L))."""
    if encoding.attention_factor is not None:
        return encoding.attention_factor
    return math.sqrt(1 + math.log(encoding.factor) / math.log(encoding.trained_length))


def llama3(encoding: Any, t: int, rotated: int, length: Number) -> float:
    """`apply_scaling` of Llama 3.1's code, by wavelength."""
    theta = plain(encoding, t, rotated)
    low, high = encoding.low_frequency_factor, encoding.high_frequency_factor
    wavelength = 2 * math.pi / theta
    if wavelength < encoding.trained_length / high:
        return theta
    if wavelength > encoding.trained_length / low:
        return theta / encoding.factor
    smooth = (encoding.trained_length / wavelength - low) / (high - low)
    return (1 - smooth) * theta / encoding.factor + smooth * theta


def prope_frequency(encoding: Any, t: int, rotated: int, length: Number) -> float:
    """theta for the first pairs, and 0 for the others."""
    rotating_pairs = int(encoding.fraction * rotated // 2)
    return plain(encoding, t, rotated) if t < rotating_pairs else 0.0


def rotate_prope(encoding: Any, x_E: Any, position: Number, head: int) -> Vector:
    """Barbero et al. 2025, section 6: "RoPE is applied to the first p of the frequencies", the rest being 0."""
    return rotate(encoding, x_E, position, prope_frequency, len(x_E), 0)


def xpos_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Sun et al. 2022, equation 9: (A_n q) . (A_m k), where A_n scales by zeta^n and A_m by zeta^-m.

    Pair t of the product has the factor zeta_t^((n - m) / 512), zeta_t = (2t/d + gamma) / (1 + gamma), gamma = 0.4.
    """
    q_E, k_E = array(q_E), array(k_E)
    width, total = len(q_E), 0.0
    for t in range(width // 2):
        real, imaginary = pair(encoding, t, width)
        angle = encoding.base ** (-2 * t / width)
        q_real, q_imaginary = rotate_pair(q_E, real, imaginary, i * angle)
        k_real, k_imaginary = rotate_pair(k_E, real, imaginary, j * angle)
        zeta = (2 * t / width + 0.4) / 1.4
        decay = zeta ** ((i - j) / encoding.decay)
        total += decay * (q_real * k_real + q_imaginary * k_imaginary)
    return scale * total


def log_length_score(inputs: ScoreInputs, query: int, key: int) -> float:
    """Chiang and Cholak 2022, section 5.3: log n q.k / sqrt(d); Su 2021: log n / log L, at least 1 in Qwen."""
    encoding = inputs.encoding
    last = inputs.q_at[query] if encoding.site.causal else max(inputs.k_at)
    factor = math.log(last + 1)
    if encoding.trained_length is not None:
        factor /= math.log(encoding.trained_length)
    if encoding.only_beyond:
        factor = max(1.0, factor)
    return factor * product(inputs.q[query], inputs.k[key], inputs.scale)


def rotate_rotary2d(encoding: Any, x_E: Any, at: Cell, head: int) -> Vector:
    """Heo et al. 2024, equation 4: R(n, t) = exp(i theta_t p_n^x) and exp(i theta_t p_n^y), theta_t = 100^(-t/(d/4)).

    Equation 6, mixed: R(n, t) = exp(i (theta_t^x p_n^x + theta_t^y p_n^y)). Pairs of rows come first.
    """
    rotated, angles = count_rotated(encoding, len(x_E)), []
    for t in range(rotated // 2):
        row_theta, column_theta = rotary2d_frequencies(encoding, t, rotated, head)
        angles.append(row_theta * at.row + column_theta * at.column)
    return turn(encoding, x_E, rotated, angles)


def rotary2d_frequencies(encoding: Any, t: int, rotated: int, head: int) -> tuple[float, float]:
    """theta_t for rows and for columns: learned if mixed; otherwise one of them is 0."""
    if encoding.frequencies == "mixed":
        row_theta, column_theta = array(encoding.frequency)[head, t]
        return row_theta, column_theta
    quarter = rotated // 4
    theta = encoding.base ** (-(t % quarter) / (rotated / 4))
    return (theta, 0.0) if t < quarter else (0.0, theta)


def rotate_pixtral(encoding: Any, x_E: Any, at: Cell, head: int) -> Vector:
    """`precompute_freqs_cis_2d` of Mistral's code: rows and columns alternate in the frequencies theta^(-2i/d)."""
    rotated = count_rotated(encoding, len(x_E))
    series = [encoding.base ** (-2 * i / rotated) for i in range(rotated // 2)]
    angles = [at.row * theta for theta in series[0::2]]
    angles += [at.column * theta for theta in series[1::2]]
    return turn(encoding, x_E, rotated, angles)


def rotary3d_pairs(encoding: Any, width: int) -> list[tuple[int, float]]:
    """Axis and theta of each pair: Wang et al. 2024, section 2.1; the code of Qwen3-VL and HunyuanVideo."""
    pairs = width // 2
    if encoding.sections is None:
        counts = [pairs // 3 + (axis < pairs % 3) for axis in range(3)]
    else:
        counts = [int(count) for count in encoding.sections.split("/")]
    axes_and_thetas: list[tuple[int, float]] = []
    for axis, count in enumerate(counts):
        for number in range(count):
            t = len(axes_and_thetas)
            exponent = number / count if encoding.layout == "axial" else t / pairs
            axes_and_thetas.append((axis, encoding.base**-exponent))
    if encoding.layout == "interleaved":
        axes_and_thetas = [(0, encoding.base ** (-t / pairs)) for t in range(pairs)]
        for axis in (1, 2):
            for t in range(axis, 3 * counts[axis], 3):
                axes_and_thetas[t] = axis, axes_and_thetas[t][1]
    return axes_and_thetas


def rotate_rotary3d(encoding: Any, x_E: Any, coordinates: tuple[Number, Number, Number]) -> Vector:
    """Each pair rotated by the coordinate of its axis."""
    pairs = rotary3d_pairs(encoding, len(x_E))
    return turn(encoding, x_E, len(x_E), [coordinates[axis] * theta for axis, theta in pairs])


def rotate_in_text(encoding: Any, x_E: Any, position: Number, head: int) -> Vector:
    """Wang et al. 2024, section 2.1: "for textual inputs, these components utilize identical position IDs"."""
    return rotate_rotary3d(encoding, x_E, (position, position, position))


def pope_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """x-transformers' PolarEmbedding: the sum over c of mu_qc mu_kc cos((s - t) theta_c + delta_c).

    mu is the softplus, theta_c = 10000^(-c/d), and s is the position of the key.
    """
    width, total = len(q_E), 0.0
    for c in range(width):
        delta = min(0.0, max(-2 * math.pi, float(array(encoding.phase)[head, c])))
        sizes = math.log1p(math.exp(q_E[c])) * math.log1p(math.exp(k_E[c]))
        total += sizes * math.cos((j - i) * encoding.base ** (-c / width) + delta)
    return scale * total


# Their theta depends on the length of the text.
LENGTH_DEPENDENT = (dynamic, longrope)

ORACLES = {
    "rotary": Oracle(score=score_rotated(rotate_rotary)),
    "rotary_linear": rotary_oracle(linear),
    "rotary_ntk": rotary_oracle(ntk),
    "rotary_dynamic": rotary_oracle(dynamic),
    "yarn": rotary_oracle(yarn, yarn_temperature),
    "longrope": rotary_oracle(longrope, longrope_temperature),
    "llama3": rotary_oracle(llama3),
    "prope": Oracle(score=score_rotated(rotate_prope)),
    "xpos": Oracle(score=xpos_score),
    "log_length": Oracle(scores=pair_by_pair(log_length_score)),
    "rotary2d": Oracle(score=score_rotated(rotate_rotary2d)),
    "pixtral": Oracle(score=score_rotated(rotate_pixtral)),
    "rotary3d": Oracle(score=score_rotated(rotate_in_text)),
    "pope": Oracle(score=pope_score),
}
