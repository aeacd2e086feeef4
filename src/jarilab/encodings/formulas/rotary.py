"""The papers' equations for rotations of longer texts and of three axes, for scores that grow with the length, and for
polar coordinates, as `formulas.py` has them for the encodings of one axis.

`ORACLES[name]` is the formula of the encoding registered under that name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jarilab.encodings.formulas.absolute import Number, array, pair, product, turned_pair
from jarilab.encodings.formulas.oracle import Oracle, ScoreInputs, Vector, pair_by_pair

Turns = Callable[[Any, int, int, Number], float]
"""theta of pair t, given the encoding, t, the number of components that are rotated, and the length of the text."""


def rotated_of(encoding: Any, width: int) -> int:
    """How many components are rotated."""
    return round(encoding.fraction * width)


def turned(
    encoding: Any, x_E: Any, position: Number, theta: Turns, rotated: int, length: Number
) -> Vector:
    """Su et al. 2021, equation 15, with the theta given."""
    x_E = array(x_E)
    after_E = x_E.copy()
    for t in range(rotated // 2):
        real, imaginary = pair(encoding, t, rotated)
        angle = position * theta(encoding, t, rotated, length)
        after_E[real], after_E[imaginary] = turned_pair(x_E, real, imaginary, angle)
    return after_E


def rotary(theta: Turns, temperature: Callable[[Any], float] = lambda encoding: 1.0) -> Oracle:
    """The formula of a rotation by theta alone. temperature: what turned components are multiplied by."""

    def score(
        encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
    ) -> float:
        return pair_score(encoding, q_E, k_E, i, j, 0, scale)

    def pair_score(
        encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, length: Number, scale: float
    ) -> float:
        rotated = rotated_of(encoding, len(q_E))
        q_E = turned(encoding, q_E, i, theta, rotated, length)
        k_E = turned(encoding, k_E, j, theta, rotated, length)
        squared = temperature(encoding) ** 2
        with_place = squared * product(q_E[:rotated], k_E[:rotated], scale)
        return with_place + product(q_E[rotated:], k_E[rotated:], scale)

    def score_in_text(inputs: ScoreInputs, query: int, key: int) -> float:
        q_E, k_E = inputs.q[query], inputs.k[key]
        i, j = inputs.q_at[query], inputs.k_at[key]
        length = max(inputs.k_at) + 1
        return pair_score(inputs.encoding, q_E, k_E, i, j, length, inputs.scale)

    scores = pair_by_pair(score_in_text) if theta in BY_LENGTH else None
    return Oracle(score=score, scores=scores)


def plain(encoding: Any, t: int, rotated: int) -> float:
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
    """The transformers library's `dynamic`: base (factor l / L - (factor - 1))^(d / (d - 2)), l the length above L."""
    trained, factor = encoding.trained_length, encoding.factor
    stretch = factor * max(length, trained) / trained - (factor - 1)
    base = encoding.base * stretch ** (rotated / (rotated - 2))
    return base ** (-2 * t / rotated)


def yarn_dimension(encoding: Any, rotated: int, turns: float) -> float:
    """`_yarn_find_correction_dim` of the authors' code: the pair that turns so often in a text of trained length."""
    periods = encoding.trained_length / (turns * 2 * math.pi)
    return rotated * math.log(periods) / (2 * math.log(encoding.base))


def yarn(encoding: Any, t: int, rotated: int, length: Number) -> float:
    """Peng et al. 2023, definition 2: h(theta) = (1 - gamma) theta / s + gamma theta, gamma falling from 1 to 0 over
    the pairs, as `_yarn_find_correction_range` and `_yarn_linear_ramp_mask` of the authors' code have it."""
    low = yarn_dimension(encoding, rotated, encoding.fast_turns)
    high = yarn_dimension(encoding, rotated, encoding.slow_turns)
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
    """Ding et al. 2024, equation 3: theta / lambda_i, the lambdas of short or of long texts."""
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


def first_frequencies(encoding: Any, t: int, rotated: int, length: Number) -> float:
    """theta of the first pairs, and 0 of the others."""
    turning = int(encoding.fraction * rotated // 2)
    return plain(encoding, t, rotated) if t < turning else 0.0


def prope_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Barbero et al. 2025, section 6: "RoPE is applied to the first p of the frequencies", the rest being 0."""
    width = len(q_E)
    q_E = turned(encoding, q_E, i, first_frequencies, width, 0)
    k_E = turned(encoding, k_E, j, first_frequencies, width, 0)
    return product(q_E, k_E, scale)


def log_length_score(inputs: ScoreInputs, query: int, key: int) -> float:
    """Chiang and Cholak 2022, section 5.3: log n q.k / sqrt(d); Su 2021: log n / log L, and no less than 1 in Qwen."""
    encoding = inputs.encoding
    last = inputs.q_at[query] if encoding.site.causal else max(inputs.k_at)
    factor = math.log(last + 1)
    if encoding.trained_length is not None:
        factor /= math.log(encoding.trained_length)
    if encoding.only_beyond:
        factor = max(1.0, factor)
    return factor * product(inputs.q[query], inputs.k[key], inputs.scale)


def rotary3d_pairs(encoding: Any, width: int) -> list[tuple[int, float]]:
    """Axis and theta of each pair. Wang et al. 2024, section 2.1; Qwen3-VL's and HunyuanVideo's code."""
    pairs = width // 2
    if encoding.sections is None:
        counts = [pairs // 3 + (axis < pairs % 3) for axis in range(3)]
    else:
        counts = [int(count) for count in encoding.sections.split("/")]
    found: list[tuple[int, float]] = []
    for axis, count in enumerate(counts):
        for number in range(count):
            t = len(found)
            exponent = number / count if encoding.layout == "axial" else t / pairs
            found.append((axis, encoding.base**-exponent))
    if encoding.layout == "interleaved":
        found = [(0, encoding.base ** (-t / pairs)) for t in range(pairs)]
        for axis in (1, 2):
            for t in range(axis, 3 * counts[axis], 3):
                found[t] = axis, found[t][1]
    return found


def rotary3d_turn(encoding: Any, x_E: Any, place: tuple[Number, Number, Number]) -> Vector:
    """Each pair turned by its own coordinate of three."""
    x_E = array(x_E)
    after_E = x_E.copy()
    for t, (axis, theta) in enumerate(rotary3d_pairs(encoding, len(x_E))):
        real, imaginary = pair(encoding, t, len(x_E))
        angle = place[axis] * theta
        after_E[real], after_E[imaginary] = turned_pair(x_E, real, imaginary, angle)
    return after_E


def rotary3d_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Wang et al. 2024, section 2.1: "for textual inputs, these components utilize identical position IDs"."""
    q_E = rotary3d_turn(encoding, q_E, (i, i, i))
    k_E = rotary3d_turn(encoding, k_E, (j, j, j))
    return product(q_E, k_E, scale)


def pope_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """x-transformers' PolarEmbedding: the sum over c of mu_qc mu_kc cos((s - t) theta_c + delta_c), where mu is the
    softplus and theta_c = 10000^(-c/d)."""
    width, total = len(q_E), 0.0
    for c in range(width):
        delta = min(0.0, max(-2 * math.pi, float(array(encoding.phase)[head, c])))
        sizes = math.log1p(math.exp(q_E[c])) * math.log1p(math.exp(k_E[c]))
        total += sizes * math.cos((j - i) * encoding.base ** (-c / width) + delta)
    return scale * total


BY_LENGTH = (dynamic, longrope)
"""Those that turn by the length of the text."""

ORACLES = {
    "rotary_linear": rotary(linear),
    "rotary_ntk": rotary(ntk),
    "rotary_dynamic": rotary(dynamic),
    "yarn": rotary(yarn, yarn_temperature),
    "longrope": rotary(longrope, longrope_temperature),
    "llama3": rotary(llama3),
    "prope": Oracle(score=prope_score),
    "log_length": Oracle(scores=pair_by_pair(log_length_score)),
    "rotary3d": Oracle(score=rotary3d_score),
    "pope": Oracle(score=pope_score),
}
