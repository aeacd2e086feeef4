"""Figures of a study: the roles of all heads, one of their measures, or mean maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from jarilab.core.errors import UserError, unknown
from jarilab.inspect.figures.figure import Figure
from jarilab.inspect.figures.heads import draw_roles
from jarilab.inspect.figures.maps import draw_grid, draw_map
from jarilab.inspect.study.head import Head


def draw_heads(rows: Sequence[Mapping[str, Any]], kind: str = "roles", **options: Any) -> Figure:
    """A figure of the heads of a study, layers down and heads across.

    rows: as `Study.rows` gives them. kind: `roles`, a dot for each head; or a column of numbers, such as `previous`, as
    a map. options: see `draw_roles` and `draw_map`.
    Raises UserError for an unknown column, and for roles that were not named.
    """
    columns = [name.removesuffix("_low") for name in rows[0] if name.endswith("_low")]
    columns = [name for name in columns if not name.startswith("role")]
    if kind != "roles" and not any(isinstance(row.get(kind), int | float) for row in rows):
        raise unknown("column of the heads", kind, ["roles", *columns])
    layers = [list(group) for _, group in groupby(rows, key=lambda row: row["site"])]
    names = [_layer(layer[0]["head"]) for layer in layers]
    if kind == "roles":
        if "role" not in rows[0]:
            raise UserError(
                "expected heads with roles, got rows without them; name the roles first, or draw a measure, such as "
                f"study.figure({(columns or ['previous'])[0]!r})"
            )
        roles = [list(map(itemgetter("role"), layer)) for layer in layers]
        sizes = [_numbers(layer, "role_score") for layer in layers]
        return draw_roles(roles, names, sizes, **{"size_name": "score of the role", **options})
    width = max(map(len, layers))
    values = np.full((len(layers), width), np.nan)
    for number, layer in enumerate(layers):
        values[number, : len(layer)] = _numbers(layer, kind)
    heads = list(map(str, range(width)))
    settings = {"name": kind, "titles": ("layer", "head"), "blank": "not defined", **options}
    return draw_map(values, names, heads, **settings)


def draw_mean_maps(
    heads: Sequence[Head],
    weights: np.ndarray,
    first: int,
    site: str | None = None,
    head: int | None = None,
    **options: Any,
) -> Figure:
    """The mean map of one head, or a grid of those of a site or of all heads.

    weights: `(H, P, P)`, NaN without examples, as `MeanMaps.maps` gives it. first: the first position of its rows and
    columns. Raises UserError for an unknown site or head, and without examples.
    """
    sites = list(dict.fromkeys(each.site for each in heads))
    if site is not None and site not in sites:
        raise unknown("site", site, sites)
    maps, names = {}, {}
    for name in sites if site is None else [site]:
        rows = [row for row, each in enumerate(heads) if each.site == name]
        # A softmax gives a weight of exactly 0 to masked keys alone.
        is_masked_PP = (weights[rows] == 0).all(0)
        maps[name] = np.where(is_masked_PP, np.nan, weights[rows])
        names[name] = _layer(heads[rows[0]].short)
    is_blank_HPP = np.isnan(np.concatenate(list(maps.values())))
    queries, keys = np.nonzero(~is_blank_HPP.all(0))
    if not len(queries):
        raise UserError("a mean map needs examples, got none of this site; study some inputs first")
    rows, columns = slice(queries.min(), queries.max() + 1), slice(keys.min(), keys.max() + 1)
    settings = {"name": "mean weight", "blank": "masked or no data", **options}
    if head is None:
        return draw_grid(
            [list(each[:, rows, columns]) for each in maps.values()],
            list(names.values()),
            **settings,
        )
    if site is None or not 0 <= head < len(maps[site]):
        raise UserError(
            f"expected a site and one of its heads, got site={site!r} and head={head}; such as "
            f"site={sites[0]!r}, head=0"
        )
    positions = [
        str(position).replace("-", "−") for position in range(first, first + weights.shape[1])
    ]
    return draw_map(
        maps[site][head, rows, columns], positions[rows], positions[columns], **settings
    )


def _layer(short: str) -> str:
    """The layer of a head's short name: `dec.L3H1` -> `dec.L3`."""
    return short.rpartition("H")[0].rstrip(".")


def _numbers(rows: Sequence[Mapping[str, Any]], column: str) -> list[float]:
    """A column, NaN where it has no number."""
    values = [row.get(column) for row in rows]
    return [float("nan") if value is None else float(value) for value in values]
