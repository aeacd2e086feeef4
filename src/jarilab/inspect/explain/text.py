"""A walk and a softmax lens for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from jarilab.attention import definition
from jarilab.inspect.explain.softmax import Softmax
from jarilab.inspect.explain.softmax_lens import Divisor, softmax_jacobian, softmax_lens
from jarilab.inspect.explain.steps import Step, Walk
from jarilab.inspect.explain.visible import visible

SHOWN_COMPONENTS = 8
SHOWN_ROWS = 8  # of a matrix whose rows stand for no tokens
NARROWEST = 9  # characters of a column

UNTOLD = (
    "Equal tokens have the same row in every matrix: nothing in this attention says where a token stands, so "
    "no head can treat them differently."
)
DERIVATIVE = (
    "The derivative of the softmax is d p_i / d s_j = p_i (1[i = j] - p_j). Its trace is 1 - sum p^2: the more one",
    "weight takes all, the nearer the derivative comes to 0, and the less reaches the scores.",
    "",
)
FIGURES = (
    "  q.k divided by   entropy / log n   largest weight   1 - sum p^2   |d p / d s|   |d p / d q|",
)


def walk_text(walked: Walk, headline: str) -> str:
    """Every matrix with its shape, and under it how far the rows of equal tokens differ."""
    lines = [_headline(walked, headline), ""]
    for step in walked.steps:
        rows, columns = step.matrix.shape
        size = f"({rows} x {columns})"
        lines.append(f"{step.name}: {step.formula}    {size}")
        lines += _matrix(step)
        for pair, difference in step.equal.items():
            same = "the same row" if difference == 0 else f"largest difference {difference:.3g}"
            lines.append(f"    {pair}: {same}")
        lines.append("")
    if any(step.equal for step in walked.steps):
        apart = _first_apart(walked.steps)
        lines.append(UNTOLD if apart is None else f"Equal tokens first differ in: {apart}.")
    away = f"{walked.error:.1e}"
    lines.append(f"The last matrix is {away} away from what the model itself computed.")
    return "\n".join(lines)


def _headline(walked: Walk, headline: str) -> str:
    where = f"{walked.site}, head {walked.head}"
    return f"{headline}    encoding {walked.encoding}, {where}"


def _first_apart(steps: Sequence[Step]) -> str | None:
    """The first matrix in which rows of equal tokens differ."""
    for step in steps:
        if any(difference > 0 for difference in step.equal.values()):
            return step.name
    return None


def lens_text(walked: Walk, headline: str) -> str:
    """What the divisor does to the softmax of the head's own scores, and the derivative it is about."""
    queries = next(step.rows for step in walked.steps if step.name == "weights")
    row = len(queries) - 1
    weights_K = definition.weights(walked.call)[0, walked.head, row]
    jacobian = softmax_jacobian(weights_K)
    numbers = [str(i) for i in range(len(jacobian))]
    query = visible(queries[row])
    at_query = f"The derivative at the query '{query}' (place {row}); rows p_i, columns s_j:"
    return "\n".join(
        [
            _headline(walked, headline),
            "",
            *DERIVATIVE,
            *FIGURES,
            *(_divisor(lens, walked) for lens in softmax_lens(walked.call, walked.head)),
            "",
            at_query,
            *_matrix(Step("", "", jacobian, "other", numbers, numbers)),
        ]
    )


def softmax_text(found: Sequence[Softmax]) -> str:
    """The softmax of one's own numbers, and its derivative at them."""
    lines = [*DERIVATIVE]
    for softmax in found:
        numbers = [str(i) for i in range(len(softmax.scores))]
        both = torch.stack((softmax.scores, softmax.weights))
        lines += [f"softmax of {softmax.name}", ""]
        lines += _matrix(Step("", "", both, "other", ["s", "p"], numbers))
        entropy = f"{softmax.entropy:.4f} of at most {softmax.most:.4f}"
        lines += ["", f"    1 - sum p^2: {softmax.trace:.4f}    entropy: {entropy}", ""]
        lines += ["    the derivative; rows p_i, columns s_j:"]
        lines += [*_matrix(Step("", "", softmax.jacobian, "other", numbers, numbers)), ""]
    return "\n".join(lines[:-1])


def _divisor(lens: Divisor, walked: Walk) -> str:
    cells = [
        f"  {lens.name:>14}",
        f"{lens.entropy:15.4f}",
        f"{lens.largest:14.4f}",
        f"{lens.trace:11.4f}",
        f"{lens.jacobian:11.4f}",
        f"{lens.gradient:11.4f}",
    ]
    own = math.isclose(1 / lens.divisor, walked.call.scale)
    return "   ".join(cells) + ("  <- the model's own" if own else "")


def _matrix(step: Step) -> list[str]:
    columns = shown = step.matrix.shape[1]
    if step.columns is None:
        # Maps over keys are shown whole, vectors by their first components.
        shown = min(columns, SHOWN_COMPONENTS)
    names = [visible(name) for name in step.rows]
    heads = [visible(name) for name in step.columns or map(str, range(columns))]
    longest = max(len(head) for head in heads[:shown])
    width = max(NARROWEST, longest + 1)
    margin = max(len(name) for name in names) + 4
    more = ""
    if shown < columns:
        more = f"  ... {columns - shown} more"
    rows = len(names)
    if step.side == "parameter":
        rows = min(rows, SHOWN_ROWS)
    top = "".join(head.rjust(width) for head in heads[:shown])
    lines = [" " * margin + top]
    matrix = step.matrix[:rows, :shown].tolist()
    for name, row in zip(names[:rows], matrix, strict=True):
        numbers = "".join(_number(value, width) for value in row)
        lines.append(name.rjust(margin) + numbers + more)
    left_out = len(names) - rows
    if left_out:
        lines.append("...".rjust(margin) + f" {left_out} more rows")
    return lines


def _number(value: float, width: int) -> str:
    text = f"{value:.4f}" if math.isfinite(value) else "-inf"
    return text.rjust(width)
