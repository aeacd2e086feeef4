"""Colour scales of numbers, and images that use them."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from jarilab.inspect.figures.maps import SIGNED
from jarilab.pages.kit.image_data import SIGNATURE, chunk, data_url

PLAIN = "440154481769472a7a433d843d4e8a355e8d2e6d8e297b8e23898e1f978b21a5852eb37c46c06f65cb5e89d548b0dd2fd8e219fde725"
"""The stops of `pages/kit/static/draw.js` from dark to light."""

HIDDEN = 0
ZERO = 128
"""Indices of the 256 colours of an image: transparent, and the colour of 0."""


def gradient(stops: str, count: int) -> np.ndarray:
    """`count` colours between the stops, `(count, 3)`, from 0 to 255."""
    parts = [stops[start : start + 6] for start in range(0, len(stops), 6)]
    colours = np.array([list(bytes.fromhex(part)) for part in parts], dtype=np.float64)
    place = np.linspace(0, len(parts) - 1, count)
    channels = [np.interp(place, np.arange(len(parts)), colours[:, c]) for c in range(3)]
    return np.round(np.stack(channels, -1)).astype(np.uint8)


def css(colour: np.ndarray) -> str:
    """A colour as `#rrggbb`."""
    return f"#{bytes(colour).hex()}"


def is_dark(colour: np.ndarray) -> bool:
    """Whether white text is easier to read on it than black text."""
    # The luma of ITU-R BT.601, from 0 to 255.
    return float(colour @ np.array([0.299, 0.587, 0.114])) < 140


def ranked(rank: int, count: int) -> np.ndarray:
    """The colour of an entry in an ordered list of `count`."""
    return gradient(PLAIN, max(count, 2))[rank]


def signed_index(values: np.ndarray, limit: float) -> np.ndarray:
    """The colour index of each number from -limit to limit, 1 to 255; NaN is transparent."""
    share = np.clip(values / limit, -1, 1) if limit > 0 else np.zeros_like(values)
    index = np.round(ZERO + 127 * np.nan_to_num(share))
    return np.where(np.isnan(values), HIDDEN, index).astype(np.uint8)


def signed_colour(value: float, limit: float) -> np.ndarray:
    """The colour of a number."""
    index = signed_index(np.array([[value]]), limit)[0, 0]
    return gradient(SIGNED, 255)[index - 1]


def image(index: np.ndarray) -> str:
    """A PNG data URL with one pixel for each colour index."""
    rows, columns = index.shape
    palette = bytes(3) + gradient(SIGNED, 255).tobytes()
    lines = np.hstack((np.zeros((rows, 1), np.uint8), index.astype(np.uint8)))
    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    chunks = {
        b"IHDR": header,
        b"PLTE": palette,
        b"tRNS": b"\0",  # the first colour is transparent
        b"IDAT": zlib.compress(lines.tobytes(), 9),
        b"IEND": b"",
    }
    png = SIGNATURE + b"".join(chunk(kind, data) for kind, data in chunks.items())
    return data_url(png)
