"""Where the tokens of an answer are while it is written."""

from __future__ import annotations

from collections.abc import Callable

from jarilab.core.shapes import Int, Tensor
from jarilab.positions.coordinates import Positions

Places = Callable[[Tensor, int, Tensor], Positions]
"""The places of the tokens from some number on: what a search asks for. It is given all tokens so far, `(R, L)`, that
number, and which of the sources each row is of, `(R,)`."""


def in_order(ids: Int[Tensor, "R L"], start: int, rows: Int[Tensor, " R"]) -> Positions:
    """0, 1, 2, ... in the frame `target`."""
    return Positions.sequence(ids.shape[1] - start, start, frame="target", device=ids.device)
