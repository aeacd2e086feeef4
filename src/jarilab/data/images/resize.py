"""Resizing of images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from jaxtyping import UInt8
from torch.nn import functional

from jarilab.core.shapes import Tensor
from jarilab.data.images.augment import background
from jarilab.data.images.image_files import Decoded, decode

Fit = Literal["stretch", "crop", "pad"]
"""How the aspect ratio is treated: ignored, kept by cropping, or kept by padding."""

Size = tuple[int, int]
"""Height and width, in pixels."""


def fitted(source: Path | bytes, channels: int, size: Size, fit: Fit, name: str = "") -> Decoded:
    """Decode an image file, or its bytes, at this size. `name` stands for bytes in errors. Raises as `decode` does."""
    decoded = decode(source, channels, enough=2 * max(size), name=name)
    pixels = resize(decoded.pixels[None], size, fit)[0]
    return replace(decoded, pixels=pixels)


def resize(
    pixels: UInt8[Tensor, "B C H W"], size: Size, fit: Fit = "stretch"
) -> UInt8[Tensor, "B C h w"]:
    """Resize images (bilinear, antialiased).

    fit: stretch ignores the aspect ratio; crop keeps it and cuts both ends of the longer side; pad keeps it and
    centres the image on its `background`.
    """
    height, width = pixels.shape[-2:]
    if fit == "crop":
        inner = _within((height, width), size)
        rows, columns = _middle(inner, (height, width))
        pixels = pixels[..., rows, columns]
    inner = _within(size, (height, width)) if fit == "pad" else size
    if pixels.shape[-2:] != inner:
        pixels = functional.interpolate(pixels, size=inner, mode="bilinear", antialias=True)
    if inner == size:
        return pixels
    canvas = background(pixels).expand(-1, -1, *size).clone()
    rows, columns = _middle(inner, size)
    canvas[..., rows, columns] = pixels
    return canvas


def _middle(inner: Size, outer: Size) -> tuple[slice, slice]:
    """Return the rows and columns of the centred inner image."""
    height, width = inner
    top = (outer[0] - height) // 2
    left = (outer[1] - width) // 2
    return slice(top, top + height), slice(left, left + width)


def _within(outer: Size, shape: Size) -> Size:
    """Return the largest size within `outer` that has the aspect ratio of `shape`."""
    height, width = shape
    scale = min(outer[0] / height, outer[1] / width)
    scaled_height = max(1, round(height * scale))
    scaled_width = max(1, round(width * scale))
    return min(outer[0], scaled_height), min(outer[1], scaled_width)
