"""What the encodings of two axes share."""

from __future__ import annotations

from collections.abc import Callable

from jarilab.core.shapes import Float, Tensor


def interpolated(
    look_up: Callable[[Tensor, Tensor], Tensor], row: Tensor, column: Tensor
) -> Float[Tensor, "*P D"]:
    """What `look_up` says of whole rows and columns, `(*P,)` to `(*P, D)`; between them, weighted by nearness.

    The four cells around a place may lie beyond the last row or column only with a weight of 0, and are then not asked.
    """
    if not row.is_floating_point() and not column.is_floating_point():
        return look_up(row, column)
    total: Tensor | None = None
    for row_there, row_share in _neighbours(row):
        for column_there, column_share in _neighbours(column):
            part = look_up(row_there, column_there) * (row_share * column_share).unsqueeze(-1)
            total = part if total is None else total + part
    assert total is not None
    return total


def _neighbours(place: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The whole numbers below and above, each with its share; a whole number is its own neighbour on both sides."""
    below, above = place.floor(), place.ceil()
    share = place - below
    return (below.long(), 1 - share), (above.long(), share)
