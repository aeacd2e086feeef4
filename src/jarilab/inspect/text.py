"""A walk and a softmax lens for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jarilab.attention import call as definition
from jarilab.inspect.walk import Step, Walk, softmax_jacobian, softmax_lens

SHOWN_COMPONENTS = 8
SHOWN_ROWS = 8  # of a matrix whose rows stand for no tokens


def walk_text(walked: Walk, headline: str) -> str:
    """Every matrix with its shape, and under it how far the rows of equal tokens differ."""
    lines = [f"{headline}    encoding {walked.encoding}, {walked.site}, head {walked.head}", ""]
    apart: str | None = None
    for step in walked.steps:
        rows, columns = step.matrix.shape
        lines.append(f"{step.name}: {step.formula}    ({rows} x {columns})")
        lines += _matrix(step)
        for pair, difference in step.equal.items():
            same = "the same row" if difference == 0 else f"largest difference {difference:.3g}"
            lines.append(f"    {pair}: {same}")
            if difference > 0 and apart is None:
                apart = step.name
        lines.append("")
    if any(step.equal for step in walked.steps):
        lines.append(
            "Equal tokens have the same row in every matrix: nothing in this attention says where a token stands, so "
            "no head can treat them differently."
            if apart is None
            else f"Equal tokens first differ in: {apart}."
        )
    lines.append(f"The last matrix is {walked.error:.1e} away from what the model itself computed.")
    return "\n".join(lines)


def lens_text(walked: Walk, headline: str) -> str:
    """What the divisor does to the softmax of the head's own scores, and the derivative it is about."""
    queries = next(step.rows for step in walked.steps if step.name == "weights")
    row = len(queries) - 1
    jacobian = softmax_jacobian(definition.weights(walked.call)[0, walked.head, row])
    numbers = [str(i) for i in range(len(jacobian))]
    lines = [
        f"{headline}    encoding {walked.encoding}, {walked.site}, head {walked.head}",
        "",
        "The derivative of the softmax is d p_i / d s_j = p_i (1[i = j] - p_j). Its trace is 1 - sum p^2: the more one",
        "weight takes all, the nearer the derivative comes to 0, and the less reaches the scores.",
        "",
        "  q.k divided by   entropy / log n   largest weight   1 - sum p^2   |d p / d s|   |d p / d q|",
    ]
    for lens in softmax_lens(walked.call, walked.head):
        used = "  <- the model's own" if math.isclose(1 / lens.divisor, walked.call.scale) else ""
        lines.append(
            f"  {lens.name:>14}   {lens.entropy:15.4f}   {lens.largest:14.4f}   {lens.trace:11.4f}"
            f"   {lens.jacobian:11.4f}   {lens.gradient:11.4f}{used}"
        )
    lines += [
        "",
        f"The derivative at the query {queries[row]!r} (place {row}); rows p_i, columns s_j:",
    ]
    return "\n".join(lines + _matrix(Step("", "", jacobian, "other", numbers, numbers)))


def _matrix(step: Step) -> list[str]:
    columns = step.matrix.shape[1]
    # Maps over keys are shown whole, vectors by their first components.
    shown = columns if step.columns is not None else min(columns, SHOWN_COMPONENTS)
    heads = step.columns or [str(c) for c in range(columns)]
    width = max(9, *(len(head) + 1 for head in heads[:shown]))
    margin = max(len(name) for name in step.rows) + 4
    more = "" if shown == columns else f"  ... {columns - shown} more"
    lines = [" " * margin + "".join(f"{head:>{width}}" for head in heads[:shown])]
    rows = min(len(step.rows), SHOWN_ROWS) if step.side == "parameter" else len(step.rows)
    for name, row in zip(step.rows[:rows], step.matrix[:rows, :shown].tolist(), strict=True):
        lines.append(f"{name:>{margin}}" + _numbers(row, width) + more)
    if rows < len(step.rows):
        lines.append(f"{'...':>{margin}} {len(step.rows) - rows} more rows")
    return lines


def _numbers(row: Sequence[float], width: int) -> str:
    return "".join(
        f"{value:>{width}.4f}" if math.isfinite(value) else f"{'-inf':>{width}}" for value in row
    )
