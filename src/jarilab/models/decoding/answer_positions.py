"""Positions of an answer's tokens while it is written."""

from __future__ import annotations

from collections.abc import Callable

from jarilab.core.shapes import Int, Tensor
from jarilab.positions.coordinates import Positions

Places = Callable[[Tensor, int, Tensor], Positions]
"""Returns the positions of the tokens from an index on, given all ids `(R, L)`, that index, and the source of each row
`(R,)`.
"""


def in_order(ids: Int[Tensor, "R L"], start: int, rows: Int[Tensor, " R"]) -> Positions:
    """Return the positions 0, 1, 2, ... in the frame `target`."""
    return Positions.sequence(ids.shape[1] - start, start, frame="target", device=ids.device)
