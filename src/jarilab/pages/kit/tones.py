"""The colour of an encoding, equal on all pages.

A page's payload has the tones of its encodings (`tones_of`), which `kit/static/tones.js` reads. It distinguishes two
encodings of one tone by dashes, marks and hollow bars.
"""

from __future__ import annotations

from collections.abc import Iterable

TONES = 7
"""Tones of `theme.css`; the last one is grey."""
_SEED = 18854291
"""Chosen so that the encodings of the package differ, and `none` is grey."""


def tone_of(encoding: str) -> int:
    """The tone of an encoding, from 0 to TONES - 1: the 32-bit FNV-1a hash of its spec."""
    number = _SEED
    for byte in encoding.encode("utf-8", "surrogatepass"):
        number = ((number ^ byte) * 16777619) & 0xFFFFFFFF
    # Xor-folded, as the authors of FNV advise for small ranges.
    return (number ^ number >> 16) % TONES


def tones_of(encodings: Iterable[str]) -> dict[str, int]:
    """The `tones` of a payload."""
    return {encoding: tone_of(encoding) for encoding in encodings}
