"""One map of a page, as a figure for a paper, and of a tape, as a small page with a control for the head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jarilab.explorer.payload import hidden_of, pooled_in_chunks
from jarilab.inspect.figures.figure import Figure
from jarilab.inspect.figures.maps import draw_map
from jarilab.inspect.measure.maps import allowed_of, named_site, names_of_sides
from jarilab.inspect.measure.words import WordsOf, merged_groups, merged_in_chunks
from jarilab.inspect.record.calls import check_has_sites
from jarilab.inspect.record.capture import Tape
from jarilab.pages.kit.data_blocks import block, unpacked

MAX_WEIGHTS = 1_500_000
"""Weights of a small page, about four megabytes; larger maps are pooled."""
MAX_SIDE = 150
"""Cells along a map of 300 pixels."""


def figure_of(page: Mapping[str, Any]) -> Figure:
    """The map of the head at which a page opens."""
    view = page["views"][page["view"]]
    (site,) = (shown for shown in view["sites"] if shown["site"] == page["site"])
    weights_QK = unpacked(site["weights"])[page["head"]]
    allowed = None if site["hidden"] is None else unpacked(site["hidden"]) == 0
    queries, keys = (
        view["sides"][site[axis]]["tokens"][:: site["pooled"]] for axis in ("queries", "keys")
    )
    title = f"{page['site']}, head {page['head']}"
    return draw_map(weights_QK, queries, keys, allowed, title=title)


def preview_payload(
    tape: Tape,
    tokens: Mapping[str, Sequence[str]] | Sequence[str] | None,
    words: WordsOf,
) -> dict[str, Any]:
    """The maps of the first input of a tape, pooled where they are large."""
    check_has_sites(tape.sites)
    batch = max(len(calls[0].output) for calls in tape.calls.values())
    names = names_of_sides(tape, tokens)
    groups = merged_groups(names, words)
    heads = sum(calls[0].call.q.shape[1] for calls in tape.calls.values())
    cells = min(MAX_SIDE, math.isqrt(MAX_WEIGHTS // heads))
    sites = []
    for name in tape.sites:
        site = named_site(tape, name, names)
        if groups is None:
            weights_HQK, factor = pooled_in_chunks(tape, name, cells)
            sides = [names[site.queries][::factor], names[site.keys][::factor]]
            hidden = hidden_of(allowed_of(tape, name), factor)
        else:
            queries, keys = groups[site.queries], groups[site.keys]
            weights_HQK, allowed_QK = merged_in_chunks(tape, name, queries, keys)
            sides = [queries.names, keys.names]
            hidden = hidden_of(allowed_QK, 1)
        sites.append(
            {
                "site": name,
                "weights": block(weights_HQK, "uint16"),
                "hidden": hidden,
                "sides": sides,
            }
        )
    return {"sites": sites, "batch": batch, "language": None}
