"""A small image as a PNG (W3C, Portable Network Graphics, third edition), and as a data URL."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png(pixels: np.ndarray) -> bytes:
    """pixels: `(H, W, 3)` bytes, red, green and blue."""
    height, width, _ = pixels.shape
    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)  # 8 bits, three colours
    unfiltered = np.zeros((height, 1), np.uint8)  # the byte before each row
    rows = np.hstack([unfiltered, pixels.astype(np.uint8).reshape(height, -1)])
    data = zlib.compress(rows.tobytes(), 9)
    return SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    checked = kind + data
    return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))


def data_url(image: bytes) -> str:
    """A PNG as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(image).decode("ascii")
