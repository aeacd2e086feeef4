"""Images of a page: pixels with the grid of their patches, and PNG files.

Source of the file format: W3C, Portable Network Graphics (PNG) Specification, third edition.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from jaxtyping import UInt8
from torch.nn import functional

from jarilab.core.shapes import Tensor
from jarilab.pages.kit.data_blocks import block
from jarilab.positions.patches import PatchedImage

LARGEST = 320
"""Pixels along a side of an image that is shown."""


def picture_of(image: PatchedImage) -> dict[str, Any]:
    """The payload of an image: its pixels row by row, and the grid of its patches."""
    pixels_CHW = _small(image.pixels)
    return {
        "pixels": block(pixels_CHW.permute(1, 2, 0), "uint8"),
        "rows": image.rows,
        "columns": image.columns,
        "height": image.height,
        "width": image.width,
        "first": image.first,
        "pool": image.pool,
        **({} if image.seconds is None else {"seconds": image.seconds}),
    }


def _small(pixels: UInt8[Tensor, "C H W"]) -> UInt8[Tensor, "C _ _"]:
    """The image scaled down to at most `LARGEST` pixels along a side."""
    sides = pixels.shape[1:]
    factor = max(sides) / LARGEST
    if factor <= 1:
        return pixels
    rounded = [round(side / factor) for side in sides]
    size = [max(1, side) for side in rounded]
    batch = pixels.unsqueeze(0).float()
    # Without antialias, thin lines vanish between the sampled pixels.
    smaller = functional.interpolate(batch, size, mode="bilinear", antialias=True)
    whole = smaller[0].round().clamp(0, 255)
    return whole.to(pixels.dtype)


SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png(pixels: np.ndarray) -> bytes:
    """A PNG file. pixels: `(H, W, 3)` bytes, red, green and blue."""
    height, width, _ = pixels.shape
    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)  # 8 bits, three colours
    unfiltered = np.zeros((height, 1), np.uint8)  # the byte before each row
    rows = np.hstack([unfiltered, pixels.astype(np.uint8).reshape(height, -1)])
    data = zlib.compress(rows.tobytes(), 9)
    return SIGNATURE + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file with its checksum."""
    checked = kind + data
    return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))


def data_url(image: bytes) -> str:
    """A PNG file as a data URL."""
    return "data:image/png;base64," + base64.b64encode(image).decode("ascii")
