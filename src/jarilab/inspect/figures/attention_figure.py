"""Figures of a tape: one head as a map, as lines or over an image, or a grid of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jarilab.core.errors import UserError, unknown
from jarilab.inspect.figures.figure import Figure
from jarilab.inspect.figures.heads import draw_lines
from jarilab.inspect.figures.images import draw_over_image, patch_grid
from jarilab.inspect.figures.maps import draw_grid, draw_map
from jarilab.inspect.measure.heads import named_maps
from jarilab.inspect.measure.maps import Map
from jarilab.inspect.measure.words import WordsOf
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.sites import AttentionSite

KINDS = ("map", "grid", "lines", "image")


def draw_attention(
    tape: Tape,
    site: str | None = None,
    head: int | None = None,
    kind: str | None = None,
    *,
    tokens: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    words: WordsOf = None,
    image: Any = None,
    queries: Sequence[int] = (0,),
    grid: tuple[int, int] | None = None,
    **options: Any,
) -> Figure:
    """A figure of a tape for a paper.

    site, head: one head gives its map; a site without a head, a grid of its heads; neither, a grid of all heads.
    kind: `map`, `grid`, `lines` or `image`, if it does not follow from these. tokens, words: names of the tokens and
    how they are merged into words, as in `jarilab.show`.
    image: `(height, width, 3)`; the weights of `queries` are drawn over it. grid: rows and columns of its patches,
    which are the last keys; found for square patches.
    options: `width` and `height` in centimetres, `font_size` in points, `font`, `title`, `transparent`; `high`, the end
    of the colour scale, and `name`, its name.
    Raises UserError for an unknown site, head, kind or option, for a tape of several inputs, and without matplotlib.
    """
    if kind is None:
        kind = "image" if image is not None else "grid" if head is None else "map"
    if kind not in KINDS:
        raise unknown("kind of figure", kind, KINDS)
    if kind == "grid" and head is None:
        sites = tape.sites if site is None else [site]
        return _grid(list(named_maps(tape, tokens, words, sites)), options)
    if kind == "grid" or site is None or head is None or (kind == "image" and image is None):
        needs = {"image": "site, head and image", "grid": "no head"}.get(kind, "site and head")
        raise UserError(
            f"a figure of the kind {kind} needs {needs}, got site={site!r} and head={head!r}; give such as "
            f"tape.figure({tape.sites[0]!r}, 0)"
        )
    tape.head(site, head)  # checks both
    ((_, map),) = named_maps(tape, tokens, words, [site])
    if kind != "image":
        draw = draw_lines if kind == "lines" else draw_map
        return draw(map.weights[head], map.queries, map.keys, map.allowed, **options)
    count = len(map.queries)
    if not queries or not all(0 <= query < count for query in queries):
        raise UserError(
            f"expected queries from 0 to {count - 1}, got {list(queries)}; name such as queries=[0]"
        )
    rows, columns = patch_grid(len(map.keys), image, grid)
    weights_NK = map.weights[head][list(queries), -rows * columns :]
    names = [map.queries[query] for query in queries]
    return draw_over_image(image, weights_NK.unflatten(1, (rows, columns)), names, **options)


def _grid(maps: Sequence[tuple[AttentionSite, Map]], options: Mapping[str, Any]) -> Figure:
    kinds = {site.kind for site, _ in maps}
    names = [site.short if len(kinds) == 1 else site.name for site, _ in maps]
    rows = []
    for _, map in maps:
        hidden = np.where(map.allowed, 0.0, np.nan)
        rows.append(list(map.weights.numpy() + hidden))
    return draw_grid(rows, names, **options)
