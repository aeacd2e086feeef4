"""The papers' equations of encodings that compare content with place, in float64: more of what `formulas.py` has."""

from __future__ import annotations

import math
from typing import Any

import numpy

from jarilab.encodings.formulas.absolute import Number, array, pair, product, turned_pair
from jarilab.encodings.formulas.oracle import Oracle, ScoreInputs, pair_by_pair


def xpos_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Sun et al. 2022, equation 9: (A_n q) . (A_m k) with A of size zeta^n and zeta^-m, so that pair t of the product
    is multiplied by zeta_t^((n - m) / 512), zeta_t = (2t/d + gamma) / (1 + gamma) with gamma = 0.4."""
    q_E, k_E = array(q_E), array(k_E)
    width, total = len(q_E), 0.0
    for t in range(width // 2):
        real, imaginary = pair(encoding, t, width)
        angle = encoding.base ** (-2 * t / width)
        q_real, q_imaginary = turned_pair(q_E, real, imaginary, i * angle)
        k_real, k_imaginary = turned_pair(k_E, real, imaginary, j * angle)
        zeta = (2 * t / width + 0.4) / 1.4
        decay = zeta ** ((i - j) / encoding.decay)
        total += decay * (q_real * k_real + q_imaginary * k_imaginary)
    return scale * total


def cope_score(inputs: ScoreInputs, query: int, key: int) -> float:
    """Golovneva et al. 2024, equations 3 to 6 and the code of appendix B: gates sigmoid(q.k), positions their sums from
    the key up to the query, q.e of the two whole positions around in proportion."""
    table = array(inputs.encoding.table)
    q_E, place = inputs.q[query], 0.0
    for later in range(key, len(inputs.k)):
        if inputs.allowed[query, later]:
            logit = inputs.scale * float(q_E @ inputs.k[later])
            place += 1 / (1 + math.exp(-logit))
    place = min(place, len(table) - 1)
    below, above = math.floor(place), math.ceil(place)
    at_below, at_above = q_E @ table[below], q_E @ table[above]
    added = (place - below) * at_above + (1 - place + below) * at_below
    return inputs.scale * float(q_E @ inputs.k[key]) + added


def forgetting_score(inputs: ScoreInputs, query: int, key: int) -> float:
    """Lin et al. 2025, equations 4 and 5: D_ij = sum over l = j + 1 ... i of log f_l, f_l = sigmoid(w.x_l + b)."""
    gate = inputs.encoding.gate
    weight, bias = array(gate.weight)[inputs.head], float(array(gate.bias)[inputs.head])
    kept = 0.0
    for later in range(key + 1, len(inputs.k)):
        if inputs.allowed[query, later]:
            logit = float(weight @ inputs.x[later]) + bias
            kept -= math.log1p(math.exp(-logit))
    return inputs.scale * float(inputs.q[query] @ inputs.k[key]) + kept


def transformer_xl_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Dai et al. 2019, section 3.3: (q + u).k + (q + v).W_kR R_(i-j), R of sines, then cosines."""
    u, v = array(encoding.u)[head], array(encoding.v)[head]
    count = encoding.site.width // 2
    phases = [(i - j) * encoding.base ** (-t / count) for t in range(count)]
    waves = [math.sin(phase) for phase in phases] + [math.cos(phase) for phase in phases]
    width = encoding.site.head_width
    of_head = array(encoding.position.weight)[head * width : (head + 1) * width]
    by_place = float((array(q_E) + v) @ (of_head @ numpy.array(waves)))
    return product(q_E, k_E, scale) + scale * (float(u @ array(k_E)) + by_place)


def deberta_row(encoding: Any, i: Number, j: Number) -> int:
    """He et al. 2021, equation 3."""
    if i - j <= -encoding.clip:
        return 0
    if i - j >= encoding.clip:
        return 2 * encoding.clip - 1
    return int(i - j + encoding.clip)


def deberta_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """He et al. 2021, equation 4: Qc_i.Kc_j + Qc_i.Kr + Kc_j.Qr, over sqrt(3 d), which `scale` has. Both rows are those
    of i - j, as in the authors' code; the paper writes the last one's as j - i."""
    width = encoding.site.head_width
    rows = slice(head * width, (head + 1) * width)
    vector = array(encoding.table)[deberta_row(encoding, i, j)]
    key_of_place = array(encoding.key.weight)[rows] @ vector
    query_of_place = array(encoding.query.weight)[rows] @ vector
    added = float(array(q_E) @ key_of_place) + float(array(k_E) @ query_of_place)
    return product(q_E, k_E, scale) + scale * added


ORACLES = {
    "xpos": Oracle(score=xpos_score),
    "cope": Oracle(scores=pair_by_pair(cope_score)),
    "forgetting": Oracle(scores=pair_by_pair(forgetting_score)),
    "transformer_xl": Oracle(score=transformer_xl_score),
    "deberta": Oracle(score=deberta_score),
}
