"""Formulas of encodings that compare content with positions."""

from __future__ import annotations

import math
from typing import Any

import numpy

from jarilab.encodings.formulas.oracle import (
    Cell,
    Number,
    Oracle,
    ScoreInputs,
    Vector,
    array,
    pair_by_pair,
    product,
)


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
    """Equation 4, where a_ij is the vector of an edge of a graph with this label (section 3.1)."""
    key_E = array(k_E)
    if encoding.key_table is not None:
        key_E = key_E + array(encoding.key_table)[label]
    return product(q_E, key_E, scale)


def shaw_label_value(encoding: Any, v_E: Any, label: int) -> Vector:
    """Equation 3, where a_ij is the vector of an edge of a graph with this label (section 3.1)."""
    if encoding.value_table is None:
        return array(v_E)
    return array(v_E) + array(encoding.value_table)[label]


def shaw2d_vector(encoding: Any, kind: str, i: Cell, j: Cell) -> Vector | float:
    """Shaw et al. 2018, section 3.2, once for rows and once for columns."""
    rows = getattr(encoding, f"{kind}_row_table")
    columns = getattr(encoding, f"{kind}_column_table")
    if rows is None:
        return 0.0
    row_vector = array(rows)[shaw_row(encoding, i.row, j.row)]
    column_vector = array(columns)[shaw_row(encoding, i.column, j.column)]
    return row_vector + column_vector


def shaw2d_score(
    encoding: Any, q_E: Any, k_E: Any, i: Cell, j: Cell, head: int, scale: float
) -> float:
    """Shaw et al. 2018, equation 4, with the vectors of both axes."""
    key_E = array(k_E) + shaw2d_vector(encoding, "key", i, j)
    return product(q_E, key_E, scale)


def shaw2d_value(encoding: Any, v_E: Any, i: Cell, j: Cell, head: int) -> Vector:
    """Shaw et al. 2018, equation 3, with the vectors of both axes."""
    return array(v_E) + shaw2d_vector(encoding, "value", i, j)


def transformer_xl_score(
    encoding: Any, q_E: Any, k_E: Any, i: Number, j: Number, head: int, scale: float
) -> float:
    """Dai et al. 2019, section 3.3: (q + u).k + (q + v).W_kR R_(i-j), where R has sines, then cosines."""
    u, v = array(encoding.u)[head], array(encoding.v)[head]
    count = encoding.site.d_model // 2
    phases = [(i - j) * encoding.base ** (-t / count) for t in range(count)]
    waves = [math.sin(phase) for phase in phases] + [math.cos(phase) for phase in phases]
    width = encoding.site.d_head
    w_ED = array(encoding.position.weight)[head * width : (head + 1) * width]
    distance_score = float((array(q_E) + v) @ (w_ED @ numpy.array(waves)))
    return product(q_E, k_E, scale) + scale * (float(u @ array(k_E)) + distance_score)


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
    """He et al. 2021, equation 4: Qc_i.Kc_j + Qc_i.Kr + Kc_j.Qr, over sqrt(3 d), which `scale` contains.

    Both rows are those of i - j, as in the authors' code; the paper has j - i in the last one.
    """
    width = encoding.site.d_head
    rows = slice(head * width, (head + 1) * width)
    vector = array(encoding.table)[deberta_row(encoding, i, j)]
    distance_key_E = array(encoding.key.weight)[rows] @ vector
    distance_query_E = array(encoding.query.weight)[rows] @ vector
    terms = float(array(q_E) @ distance_key_E) + float(array(k_E) @ distance_query_E)
    return product(q_E, k_E, scale) + scale * terms


def cope_score(inputs: ScoreInputs, query: int, key: int) -> float:
    """Golovneva et al. 2024, equations 3 to 6 and the code of appendix B.

    Gates are sigmoid(q.k), a position is their sum from the key up to the query, and q.e is interpolated between
    integer positions.
    """
    table = array(inputs.encoding.table)
    q_E, position = inputs.q[query], 0.0
    for later in range(key, len(inputs.k)):
        if inputs.allowed[query, later]:
            logit = inputs.scale * float(q_E @ inputs.k[later])
            position += 1 / (1 + math.exp(-logit))
    position = min(position, len(table) - 1)
    below, above = math.floor(position), math.ceil(position)
    product_below, product_above = q_E @ table[below], q_E @ table[above]
    term = (position - below) * product_above + (1 - position + below) * product_below
    return inputs.scale * float(q_E @ inputs.k[key]) + term


def forgetting_score(inputs: ScoreInputs, query: int, key: int) -> float:
    """Lin et al. 2025, equations 4 and 5: D_ij = sum of log f_l over l = j + 1 ... i, f_l = sigmoid(w.x_l + b)."""
    gate = inputs.encoding.gate
    weight, bias = array(gate.weight)[inputs.head], float(array(gate.bias)[inputs.head])
    log_gates = 0.0
    for later in range(key + 1, len(inputs.k)):
        if inputs.allowed[query, later]:
            logit = float(weight @ inputs.x[later]) + bias
            log_gates -= math.log1p(math.exp(-logit))
    return inputs.scale * float(inputs.q[query] @ inputs.k[key]) + log_gates


def path_score(inputs: ScoreInputs, query: int, key: int) -> float:
    """Yang et al. 2025, equation 2: q_i (H_i ... H_(j+1)) k_j, H_t = I - beta_t w_t w_t'."""
    encoding, head = inputs.encoding, inputs.head
    width = encoding.site.d_head
    direction = array(encoding.direction.weight)[head * width : (head + 1) * width]
    low = array(encoding.low.weight)
    strength, offset = array(encoding.strength.weight)[head], array(encoding.strength.bias)[head]
    key_E = inputs.k[key]
    for later in range(key + 1, len(inputs.k)):
        if inputs.allowed[query, later]:
            x_D = inputs.x[later]
            w_E = direction @ (low @ x_D)
            w_E = w_E / math.sqrt(float(w_E @ w_E))
            beta = 2 / (1 + math.exp(-float(strength @ x_D + offset)))
            key_E = key_E - beta * float(w_E @ key_E) * w_E
    return inputs.scale * float(inputs.q[query] @ key_E)


ORACLES = {
    "shaw": Oracle(score=shaw_score, value=shaw_value),
    "shaw2d": Oracle(score=shaw2d_score, value=shaw2d_value),
    "transformer_xl": Oracle(score=transformer_xl_score),
    "deberta": Oracle(score=deberta_score),
    "cope": Oracle(scores=pair_by_pair(cope_score)),
    "forgetting": Oracle(scores=pair_by_pair(forgetting_score)),
    "path_attention": Oracle(scores=pair_by_pair(path_score)),
}
