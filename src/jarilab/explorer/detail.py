"""The payload of one head: its walk, its scores and their terms, and the norms of its values."""

from __future__ import annotations

from typing import Any

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.explorer import payload
from jarilab.inspect.explain.score_parts import Parts, parts_of
from jarilab.inspect.explain.softmax import divisors_of, softmax_lens
from jarilab.inspect.explain.steps import Step, Walk
from jarilab.inspect.explain.value_norms import value_norms_of
from jarilab.inspect.record.capture import Tape


def detail_of(shown: Tape, inside: Tape, walked: Walk) -> dict[str, Any]:
    """The payload of a head.

    shown: the forward whose maps the page has. inside: the same in float64, recorded with `inside=True`. walked: the
    walk through the head.
    """
    site, head = walked.site, walked.head
    terms = _parts(inside, site, head)
    valued = value_norms_of(inside, site, head)
    parts = []
    for name, matrix in zip(terms.names, terms.matrices, strict=True):
        parts.append({"name": name, "matrix": payload.numbers(matrix)})
    return {
        "steps": [step_of(step) for step in walked.steps],
        "walk_error": walked.error,
        **scores_of(shown, site, head),
        "lens": lens_of(walked.call, head),
        "parts": parts,
        "parts_about": terms.about,
        "parts_error": terms.error,
        "valued": payload.numbers(valued),
    }


def _parts(inside: Tape, site: str, head: int) -> Parts:
    try:
        return parts_of(inside, site, head)
    except UserError as error:  # added positions cannot be separated after a norm
        return Parts([], [], str(error), 0.0)


def scores_of(tape: Tape, site: str, head: int) -> dict[str, Any]:
    """The scores of a head and their terms: `products * scale + bias`."""
    parts = tape.summands(site, head)
    scores_QK, scale = parts.scores, parts.scale
    # From the scores: the page computes `products * scale + bias`, which must give them back, rounding included.
    scaled_QK, bias = scores_QK, None
    if parts.bias is not None:
        scaled_QK = scores_QK - parts.bias
        bias = payload.numbers(parts.bias)
    return {
        "scores": payload.numbers(scores_QK),
        "products": payload.numbers(scaled_QK / scale),
        "bias": bias,
        "scale": scale,
    }


def lens_of(call: AttentionCall, head: int) -> dict[str, Any] | None:
    """The softmax of a head under other divisors of the scores; None if every query may attend to one key only."""
    divisors = divisors_of(call.q.shape[-1])
    try:
        rows = softmax_lens(call, head, divisors)
    except UserError:
        return None
    distances = [abs(row.divisor * call.scale - 1) for row in rows]
    return {
        "divisors": [row.divisor for row in rows],
        "own": distances.index(min(distances)),
        "entropy": [row.entropy for row in rows],
        "largest": [row.largest for row in rows],
        "trace": [row.trace for row in rows],
        "jacobian": [row.jacobian for row in rows],
        "gradient": [row.gradient for row in rows],
    }


def step_of(step: Step, largest: int = 64) -> dict[str, Any]:
    """One matrix of a walk. A parameter is cut to its first `largest` rows and columns."""
    matrix = step.matrix
    if step.side == "parameter":
        matrix = matrix[:largest, :largest]
    row_names = step.rows[: len(matrix)]
    columns, column_names = "components", None
    if step.columns is not None:
        columns = "tokens" if step.name == "likeliest next tokens" else "keys"
        column_names = list(step.columns)
    return {
        "name": step.name,
        "formula": step.formula,
        "rows": step.side,
        "columns": columns,
        "row_names": list(row_names),
        "column_names": column_names,
        "of": list(step.matrix.shape),
        "matrix": payload.numbers(matrix.float()),
        "equal": step.equal,
    }
