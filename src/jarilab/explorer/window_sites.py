"""Models that attend in windows, as Swin: each window becomes a site, with the patches in it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from jarilab.inspect.fields.windows import Grid, patches_of_windows, windows_of
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.recorded_call import RecordedCall

MAX_WINDOWS = 4
"""Windows of a site that are shown, spread over the image."""
MAX_HALVINGS = 8
"""Times that layers may have halved the grid of patches."""
PADDING = "padding"
WINDOW = " window "
"""Separates the name of an attention from the number of its window."""


@dataclass(frozen=True, eq=False)
class Windows:
    """A tape of one input with a site for each window that is shown.

    names: the patches of a site, `row,column` in the grid of its layer, if known. note: which windows are shown, in
    English and Korean; None without windows.
    """

    tape: Tape
    names: dict[str, list[str]]
    note: tuple[str, str] | None

    @staticmethod
    def of(tape: Tape, patches: Grid | None) -> Windows:
        """The windows of a tape of one input, whose batch rows are windows. patches: rows and columns of the image's
        patches, or None."""
        calls: dict[str, list[RecordedCall]] = {}
        names: dict[str, list[str]] = {}
        partial: dict[str, str] = {}
        counts: dict[int, list[str]] = {}
        for site in tape.sites:
            recorded = tape.recorded(site)
            count = len(recorded.call.q)
            if count > 1:
                counts.setdefault(count, []).append(site)
            for window in _spread(count):
                shown = f"{site}{WINDOW}{window}" if count > 1 else site
                calls[shown] = [recorded.select_rows(slice(window, window + 1))]
                if site in tape.partial:
                    partial[shown] = tape.partial[site]
                patch_names = _patches(recorded, window, patches)
                if patch_names is not None:
                    names[shown] = patch_names
        if not counts:
            return Windows(tape, {}, None)
        return Windows(replace(tape, calls=calls, partial=partial), names, _note(counts))


def attentions_in(sites: Iterable[str]) -> set[str]:
    """The names of attentions, without the numbers of windows."""
    return {site.partition(WINDOW)[0] for site in sites}


def _note(counts: dict[int, list[str]]) -> tuple[str, str]:
    of_sites = [f"{min(MAX_WINDOWS, n)}/{n} ({', '.join(sites)})" for n, sites in counts.items()]
    listed = "; ".join(of_sites)
    return (
        "It attends in windows, counted row by row. Each window is a map with the rows and columns of its "
        f"layer's grid. Shown: {listed}.",
        "창으로 나누어 봅니다. 창은 행을 따라 세고, 창마다 맵이 하나입니다. 토큰은 그 층 격자의 행과 열입니다. "
        f"보이는 창: {listed}.",
    )


def _spread(count: int) -> list[int]:
    """The windows to show, evenly spread."""
    return sorted(
        {round(float(each)) for each in torch.linspace(0, count - 1, min(count, MAX_WINDOWS))}
    )


def _patches(recorded: RecordedCall, window: int, patches: Grid | None) -> list[str] | None:
    """The patches of a window, by the width and shift of its layer's windows; None if they are unknown."""
    layer = windows_of(recorded.placed.above)
    if layer is None or patches is None:
        return None
    for halved in range(MAX_HALVINGS):
        height, width = (math.ceil(each / 2**halved) for each in patches)
        of_windows = patches_of_windows((height, width), *layer)
        if of_windows.shape == (len(recorded.call.q), recorded.call.k.shape[2]):
            places = of_windows[window].tolist()
            return [PADDING if at < 0 else f"{at // width},{at % width}" for at in places]
    return None
