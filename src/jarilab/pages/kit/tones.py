"""The colour of a model: that of its encoding on all pages, or another if two models would have one colour.

A page's payload has the tones of its models (`tones_of`), which `kit/static/tones.js` reads. Beyond `TONES` models, it
distinguishes two of one tone by dashes, marks and hollow bars.
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


def tones_of(models: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The `tones` of a payload, by the name of a model. models: pairs of name and encoding."""
    tones: dict[str, int] = {}
    later = []
    for name, encoding in models:
        if tone_of(encoding) in tones.values():
            later.append((name, encoding))
        else:
            tones[name] = tone_of(encoding)
    for name, encoding in later:
        used = [*tones.values()]
        next_ones = [(tone_of(encoding) + step) % TONES for step in range(TONES)]
        tones[name] = min(next_ones, key=used.count)
    return tones
