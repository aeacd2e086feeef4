"""The colour of an encoding: the same on every page, whatever stands beside it.

A page is told the tones of its encodings (`tones_of`), and `kit/static/tones.js` reads them. Two encodings of one tone
on a page are told apart there: by dashes, marks and hollow bars.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from jarilab.pages.kit.page import read

TONES = 7
"""Tones that `theme.css` has; the last one is grey."""
_SEED = 18854291
"""Chosen so that encodings of the package differ, and grey is that of the one that tells nothing."""


def tone_of(encoding: str) -> int:
    """The number of its tone: a hash of the spec (FNV-1a over its letters), since specs are without number."""
    number = _SEED
    for byte in encoding.encode("utf-8", "surrogatepass"):
        number = ((number ^ byte) * 16777619) & 0xFFFFFFFF
    return (number ^ number >> 16) % TONES


def tones_of(encodings: Iterable[str]) -> dict[str, int]:
    """What a page is told, as `tones` of its payload."""
    return {encoding: tone_of(encoding) for encoding in encodings}


def colours(*, dark: bool = False) -> list[str]:
    """The colour of each tone, `#rrggbb`, by day or by night."""
    found = re.findall(r"--tone-\d: (#[0-9a-f]{6});", read("jarilab.pages.kit", "kit/theme.css"))
    return found[TONES:] if dark else found[:TONES]
