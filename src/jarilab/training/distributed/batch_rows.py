"""Rows of a batch: the part that one process, or one of several passes, computes."""

from __future__ import annotations

import itertools
from dataclasses import fields, is_dataclass, replace
from functools import singledispatch
from typing import Any

from torch import Tensor

from jarilab.positions.coordinates import Positions


@singledispatch
def rows_of(value: Any, rows: slice) -> Any:
    """These rows of a batch, or of a part of it: a tensor, list, tuple or dataclass with a row for each example.

    Positions may be shared by all rows. Other values (a flag, None) stay as they are.
    """
    if not is_dataclass(value) or isinstance(value, type):
        return value
    parts = {field.name: rows_of(getattr(value, field.name), rows) for field in fields(value)}
    return replace(value, **parts)


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
    return value.map_rows(lambda x: x[rows])


def even_parts(count: int, parts: int) -> list[slice]:
    """Slices of `count` rows, as even as possible and the longer ones first; some may be empty."""
    length, longer = divmod(count, parts)
    starts = [part * length + min(part, longer) for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(starts)]
