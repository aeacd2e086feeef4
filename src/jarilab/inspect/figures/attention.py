"""Figures of a tape: the map of one head, or a grid of the maps of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jarilab.core.errors import UserError, unknown
from jarilab.inspect.figures.figure import Figure
from jarilab.inspect.figures.maps import draw_grid, draw_map
from jarilab.inspect.measure.heads import named_maps
from jarilab.inspect.measure.maps import Map
from jarilab.inspect.measure.words import WordsOf
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.sites import AttentionSite

KINDS = ("map", "grid")


def draw_attention(
    tape: Tape,
    site: str | None = None,
    head: int | None = None,
    kind: str | None = None,
    *,
    tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    words: WordsOf = None,
    **options: Any,
) -> Figure:
    """A figure of a tape for a paper.

    site, head: one head gives its map; a site without a head, a grid of its heads; neither, a grid of all heads.
    kind: `map` or `grid`, if not by these. tokens, words: names of the tokens and how they are merged into words, as in
    `jarilab.show`. options: `width` and `height` in centimetres, `font_size` in points, `font`, `title`,
    `transparent`; `high`, the end of the colour scale, and its `name`.
    Raises UserError for an unknown site, head, kind or option, for a tape of several inputs, and without matplotlib.
    """
    if kind is None:
        kind = "grid" if head is None else "map"
    if kind not in KINDS:
        raise unknown("kind of figure", kind, KINDS)
    if kind == "grid":
        sites = tape.sites if site is None else [site]
        return _grid(list(named_maps(tape, tokens, words, sites)), options)
    if site is None or head is None:
        raise UserError(
            f"a {kind} is of one head: expected site and head, got site={site!r} and head={head!r}; give both, such as "
            f"tape.figure({tape.sites[0]!r}, 0)"
        )
    tape.head(site, head)  # checks both
    ((_, map),) = named_maps(tape, tokens, words, [site])
    return draw_map(map.weights[head], map.queries, map.keys, map.allowed, **options)


def _grid(maps: Sequence[tuple[AttentionSite, Map]], options: Mapping[str, Any]) -> Figure:
    """A row of maps a site."""
    kinds = {site.kind for site, _ in maps}
    names = [site.short if len(kinds) == 1 else site.name for site, _ in maps]
    rows = []
    for _, map in maps:
        hidden = np.where(map.allowed, 0.0, np.nan)
        rows.append(list(map.weights.numpy() + hidden))
    return draw_grid(rows, names, **options)
