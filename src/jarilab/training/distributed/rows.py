"""Some rows of a batch: the part of it that one process computes, or one pass of several."""

from __future__ import annotations

import itertools
from dataclasses import fields, is_dataclass, replace
from functools import singledispatch
from typing import Any

from torch import Tensor

from jarilab.positions.coordinates import Positions


@singledispatch
def rows_of(value: Any, rows: slice) -> Any:
    """The same of these rows alone. Tensors have a row for each example; so do all tensors that a tuple or a dataclass
    holds, but for positions that all rows share. What is no such thing (a flag, None) stays as it is."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    held = {own.name: rows_of(getattr(value, own.name), rows) for own in fields(value)}
    return replace(value, **held)


@rows_of.register
def _(value: Tensor, rows: slice) -> Tensor:
    return value[rows] if value.ndim else value


@rows_of.register
def _(value: list, rows: slice) -> list[Any]:
    return value[rows]


@rows_of.register
def _(value: tuple, rows: slice) -> tuple[Any, ...]:
    parts = [rows_of(part, rows) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


@rows_of.register
def _(value: Positions, rows: slice) -> Positions:
    def of(held: Tensor | None, axes: int) -> Tensor | None:
        return held if held is None or held.ndim < axes else held[rows]

    coordinates = value.coordinates if value.coordinates.ndim < 3 else value.coordinates[rows]
    return replace(
        value,
        coordinates=coordinates,
        within=value.picked(coordinates),
        unplaced=of(value.unplaced, 2),
        relations=of(value.relations, 3),
        extent=of(value.extent, 2),
    )


def even_parts(count: int, parts: int) -> list[slice]:
    """`count` rows in so many parts, as even as can be, the longer ones first; a part may be empty."""
    short, longer = divmod(count, parts)
    starts = [number * short + min(number, longer) for number in range(parts + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(starts)]
