"""Figures of a study: the roles of all heads, or one of their measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from jarilab.core.errors import UserError, unknown
from jarilab.inspect.figures.figure import Figure
from jarilab.inspect.figures.heads import draw_roles
from jarilab.inspect.figures.maps import draw_map


def draw_heads(rows: Sequence[Mapping[str, Any]], kind: str = "roles", **options: Any) -> Figure:
    """A figure of the heads of a study, layers down and heads across.

    rows: as `Study.rows` gives them. kind: `roles`, a dot for each head; or a column of numbers, such as `previous`, as
    a map. options: see `draw_roles` and `draw_map`.
    Raises UserError for an unknown column, and for roles that were not named.
    """
    columns = [name.removesuffix("_low") for name in rows[0] if name.endswith("_low")]
    if kind != "roles" and not any(isinstance(row.get(kind), int | float) for row in rows):
        raise unknown("column of the heads", kind, ["roles", *columns])
    layers = [list(group) for _, group in groupby(rows, key=lambda row: row["site"])]
    names = [layer[0]["head"].rpartition("H")[0].rstrip(".") for layer in layers]
    if kind == "roles":
        if "role" not in rows[0]:
            raise UserError(
                "expected heads with roles, got rows without them; name the roles first, or draw a measure, such as "
                f"study.figure({(columns or ['previous'])[0]!r})"
            )
        roles = [_roles(layer) for layer in layers]
        sizes = [_numbers(layer, "role_score") for layer in layers]
        return draw_roles(roles, names, sizes, **{"size_name": "score of the role", **options})
    width = max(map(len, layers))
    values = np.full((len(layers), width), np.nan)
    for number, layer in enumerate(layers):
        values[number, : len(layer)] = _numbers(layer, kind)
    heads = list(map(str, range(width)))
    settings = {"name": kind, "titles": ("layer", "head"), "blank": "not defined", **options}
    return draw_map(values, names, heads, **settings)


def _roles(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [row["role"] for row in rows]


def _numbers(rows: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    """A column, NaN where it has no number."""
    values = [row.get(column) for row in rows]
    return [float("nan") if value is None else float(value) for value in values]
