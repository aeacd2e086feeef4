"""What is shown of one head that is opened: its walk, its scores and their parts, what its weights bring."""

from __future__ import annotations

from typing import Any

from jarilab.errors import UserError
from jarilab.explorer import payload
from jarilab.inspect.capture import Tape
from jarilab.inspect.score_parts import Parts, parts_of
from jarilab.inspect.steps import Walk
from jarilab.inspect.value_norms import valued_of


def detail_of(shown: Tape, inside: Tape, walked: Walk) -> dict[str, Any]:
    """shown: the forward whose maps the page has. inside: the same in float64, recorded with `inside=True`.
    walked: through the head that is opened."""
    site, head = walked.site, walked.head
    found = _parts(inside, site, head)
    return {
        "steps": [payload.step_of(step) for step in walked.steps],
        "walk_error": walked.error,
        **payload.scores_of(shown, site, head),
        "lens": payload.lens_of(walked.call, head),
        "parts": [
            {"name": name, "matrix": payload.block(matrix, "float32")}
            for name, matrix in zip(found.names, found.matrices, strict=True)
        ],
        "parts_about": found.about,
        "parts_error": found.error,
        "valued": payload.block(valued_of(inside, site, head), "float32"),
    }


def _parts(inside: Tape, site: str, head: int) -> Parts:
    try:
        return parts_of(inside, site, head)
    except UserError as error:  # positions that were added cannot be told apart after a norm
        return Parts([], [], str(error), 0.0)
