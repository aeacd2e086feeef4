"""Walks and softmaxes as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from jarilab.attention import definition
from jarilab.core.columns import right, terminal_width
from jarilab.inspect.explain.softmax import Divisor, Softmax, softmax_jacobian, softmax_lens
from jarilab.inspect.explain.steps import Step, Walk, visible

MAX_COMPONENTS = 8
"""Components of a vector that are shown where the width of the terminal is not known."""
FOLLOWED = "> "
"""Marks the row of the query that is followed."""
MAX_PARAMETER_ROWS = 8
MIN_COLUMN_WIDTH = 9  # characters

NO_DIFFERENCE = (
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


def walk_text(walk: Walk, headline: str, terminal: int | None = None) -> str:
    """Every matrix with its shape and the differences between the rows of equal tokens.

    terminal: characters of a line; the row of the last query is then marked. None if the text goes to a file.
    """
    lines = [_headline(walk, headline), ""]
    for step in walk.steps:
        rows, columns = step.matrix.shape
        size = f"({rows} x {columns})"
        lines.append(f"{step.name}: {step.formula}    {size}")
        lines += _matrix(step, terminal)
        for pair, difference in step.equal.items():
            same = "the same row" if difference == 0 else f"largest difference {difference:.3g}"
            lines.append(f"    {pair}: {same}")
        lines.append("")
    if any(step.equal for step in walk.steps):
        differing = (step.name for step in walk.steps if any(step.equal.values()))
        step_name = next(differing, None)
        lines.append(
            NO_DIFFERENCE if step_name is None else f"Equal tokens first differ in: {step_name}."
        )
    error = f"{walk.error:.1e}"
    lines.append(f"The last matrix is {error} away from what the model itself computed.")
    return "\n".join(lines)


def _headline(walk: Walk, headline: str) -> str:
    where = f"{walk.site}, head {walk.head}"
    return f"{headline}    encoding {walk.encoding}, {where}"


def lens_text(walk: Walk, headline: str) -> str:
    """The softmax of the head's scores by divisor, and its derivative at the last query."""
    queries = next(step.rows for step in walk.steps if step.name == "weights")
    row = len(queries) - 1
    weights_K = definition.weights(walk.call)[0, walk.head, row]
    jacobian = softmax_jacobian(weights_K)
    numbers = [str(i) for i in range(len(jacobian))]
    query = visible(queries[row])
    at_query = f"The derivative at the query '{query}' (place {row}); rows p_i, columns s_j:"
    return "\n".join(
        [
            _headline(walk, headline),
            "",
            *DERIVATIVE,
            *FIGURES,
            *(_divisor(lens, walk) for lens in softmax_lens(walk.call, walk.head)),
            "",
            at_query,
            *_matrix(Step("", "", jacobian, "other", numbers, numbers)),
        ]
    )


def softmax_text(softmaxes: Sequence[Softmax]) -> str:
    """Softmaxes of given numbers, with their derivatives."""
    lines = [*DERIVATIVE]
    for softmax in softmaxes:
        numbers = [str(i) for i in range(len(softmax.scores))]
        scores_and_weights = torch.stack((softmax.scores, softmax.weights))
        lines += [f"softmax of {softmax.name}", ""]
        lines += _matrix(Step("", "", scores_and_weights, "other", ["s", "p"], numbers))
        entropy = f"{softmax.entropy:.4f} of at most {softmax.max_entropy:.4f}"
        lines += ["", f"    1 - sum p^2: {softmax.trace:.4f}    entropy: {entropy}", ""]
        lines += ["    the derivative; rows p_i, columns s_j:"]
        lines += [*_matrix(Step("", "", softmax.jacobian, "other", numbers, numbers)), ""]
    return "\n".join(lines[:-1])


def _divisor(lens: Divisor, walk: Walk) -> str:
    cells = [
        f"  {lens.name:>14}",
        f"{lens.entropy:15.4f}",
        f"{lens.largest:14.4f}",
        f"{lens.trace:11.4f}",
        f"{lens.jacobian:11.4f}",
        f"{lens.gradient:11.4f}",
    ]
    is_scale_of_model = math.isclose(1 / lens.divisor, walk.call.scale)
    return "   ".join(cells) + ("  <- the model's own" if is_scale_of_model else "")


def _matrix(step: Step, terminal: int | None = None) -> list[str]:
    columns = shown = step.matrix.shape[1]
    names = [visible(name) for name in step.rows]
    labels = [visible(name) for name in step.columns or map(str, range(columns))]
    longest = max(map(terminal_width, labels if step.columns else labels[:MAX_COMPONENTS]))
    width = max(MIN_COLUMN_WIDTH, longest + 1)
    margin = max(map(terminal_width, names)) + 4
    if terminal is not None:
        shown = min(columns, max(1, (terminal - margin - len("  ... 99 more")) // width))
        if step.side == "queries":
            names[-1] = FOLLOWED + names[-1]
    elif step.columns is None:
        shown = min(columns, MAX_COMPONENTS)
    more = ""
    if shown < columns:
        more = f"  ... {columns - shown} more"
    rows = len(names)
    if step.side == "parameter":
        rows = min(rows, MAX_PARAMETER_ROWS)
    top = "".join(right(label, width) for label in labels[:shown])
    lines = [" " * margin + top]
    matrix = step.matrix[:rows, :shown].tolist()
    for name, row in zip(names[:rows], matrix, strict=True):
        numbers = [f"{value:.4f}" if math.isfinite(value) else "-inf" for value in row]
        lines.append(right(name, margin) + "".join(n.rjust(width) for n in numbers) + more)
    left_out = len(names) - rows
    if left_out:
        lines.append("...".rjust(margin) + f" {left_out} more rows")
    return lines
