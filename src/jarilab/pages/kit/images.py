"""An image as a page draws it: its pixels, and where the patches lie on them."""

from __future__ import annotations

from typing import Any

from jaxtyping import UInt8
from torch.nn import functional

from jarilab.core.shapes import Tensor
from jarilab.pages.kit.blocks import block
from jarilab.positions.patches import PatchedImage

LARGEST = 320
"""Pixels along a side of an image that is shown."""


def picture_of(image: PatchedImage) -> dict[str, Any]:
    """Its pixels row by row, as `pages/kit/static/patches.js` draws them, and where the patches lie on them."""
    pixels_CHW = _small(image.pixels)
    return {
        "pixels": block(pixels_CHW.permute(1, 2, 0), "uint8"),
        "rows": image.rows,
        "columns": image.columns,
        "height": image.height,
        "width": image.width,
        "first": image.first,
        "pool": image.pool,
    }


def _small(pixels: UInt8[Tensor, "C H W"]) -> UInt8[Tensor, "C _ _"]:
    """At most `LARGEST` pixels along a side."""
    sides = pixels.shape[1:]
    factor = max(sides) / LARGEST
    if factor <= 1:
        return pixels
    rounded = [round(side / factor) for side in sides]
    size = [max(1, side) for side in rounded]
    batch = pixels.unsqueeze(0).float()
    smaller = functional.interpolate(batch, size, mode="bilinear", antialias=True)
    whole = smaller[0].round().clamp(0, 255)
    return whole.to(pixels.dtype)
