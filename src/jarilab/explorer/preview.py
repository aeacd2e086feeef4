"""One map of a page, as a figure or for the preview of a link, and of a tape, as a page with a control for the head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jarilab.explorer.payload import hidden_of, pooled_in_chunks
from jarilab.inspect.figures.figure import Figure
from jarilab.inspect.figures.maps import draw_map
from jarilab.inspect.measure.maps import allowed_of, named_site, names_of_sides
from jarilab.inspect.measure.words import WordsOf, merged_groups, merged_in_chunks
from jarilab.inspect.record.calls import check_has_sites
from jarilab.inspect.record.capture import Tape
from jarilab.pages.kit.data_blocks import block, unpacked
from jarilab.pages.kit.image_data import data_url, png

MAX_WEIGHTS = 1_500_000
"""Weights of a small page, about four megabytes; larger maps are pooled."""
MAX_SIDE = 150
"""Cells along a map of 300 pixels."""


PREVIEW_PIXELS = 400
OCTAVES = (-4, 0, 1, 2, 3, 4)
"""Logarithms of how often a weight is the even share of its row, at the `COLOURS` of `kit/static/draw.js` by day."""
_HEX = ("cfdbe8", "f8f6f0", "fbd7a1", "ee9a3a", "b9540c", "591c02")
COLOURS = np.array([list(bytes.fromhex(stop)) for stop in _HEX])
HIDDEN = np.array([0xE8, 0xE5, 0xDC])


def opened(page: Mapping[str, Any]) -> tuple[dict[str, Any], np.ndarray, np.ndarray | None]:
    """The site at which a page opens, the map of the head, and which keys its queries may see; None if all."""
    view = page["views"][page["view"]]
    (site,) = (shown for shown in view["sites"] if shown["site"] == page["site"])
    allowed_QK = None if site["hidden"] is None else unpacked(site["hidden"]) == 0
    return site, unpacked(site["weights"])[page["head"]], allowed_QK


def preview_image(page: Mapping[str, Any]) -> str:
    """The map at which a page opens, in the page's colours by day, as the data URL of a PNG."""
    site, weights_QK, allowed_QK = opened(page)
    if allowed_QK is None:
        allowed_QK = np.ones(weights_QK.shape, bool)
    times_QK = weights_QK * site["pooled"] * allowed_QK.sum(1, keepdims=True)
    octaves_QK = np.log2(times_QK.clip(min=2.0**-4))
    channels = [np.interp(octaves_QK, OCTAVES, COLOURS[:, channel]) for channel in range(3)]
    pixels = np.where(allowed_QK[..., None], np.stack(channels, -1).round(), HIDDEN)
    cell = max(1, PREVIEW_PIXELS // max(weights_QK.shape))
    return data_url(png(pixels.repeat(cell, 0).repeat(cell, 1)))


def figure_of(page: Mapping[str, Any]) -> Figure:
    """The map of the head at which a page opens."""
    view = page["views"][page["view"]]
    site, weights_QK, allowed = opened(page)
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
