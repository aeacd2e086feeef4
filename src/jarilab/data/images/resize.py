"""Images brought to another height and width."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from jaxtyping import UInt8
from torch.nn import functional

from jarilab.core.shapes import Tensor
from jarilab.data.images.augment import background
from jarilab.data.images.files import Decoded, decode

Fit = Literal["stretch", "crop", "pad"]
"""What becomes of proportions: let go, kept by cutting what is too long, or kept by padding what is too short."""

Size = tuple[int, int]
"""Height and width, in pixels."""


def fitted(source: Path | bytes, channels: int, size: Size, fit: Fit, name: str = "") -> Decoded:
    """The image of a file, or of its bytes, at this size; `name` is what errors call bytes. Raises UserError as
    `decode` does."""
    found = decode(source, channels, enough=2 * max(size), name=name)
    pixels = resize(found.pixels[None], size, fit)[0]
    return Decoded(pixels, found.height, found.width, found.animated)


def resize(
    pixels: UInt8[Tensor, "B C H W"], size: Size, fit: Fit = "stretch"
) -> UInt8[Tensor, "B C h w"]:
    """Images of another height and width, averaged over all pixels that fall together (bilinear, antialiased).

    fit: stretch lets proportions go; crop keeps them and cuts what is too long off both ends; pad keeps them and
    puts the image in the middle of its `background`.
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
    whole = background(pixels).expand(-1, -1, *size).clone()
    rows, columns = _middle(inner, size)
    whole[..., rows, columns] = pixels
    return whole


def _middle(inner: Size, outer: Size) -> tuple[slice, slice]:
    """The rows and columns of what lies in the middle."""
    height, width = inner
    top = (outer[0] - height) // 2
    left = (outer[1] - width) // 2
    return slice(top, top + height), slice(left, left + width)


def _within(outer: Size, shape: Size) -> Size:
    """The largest height and width of the proportions of `shape` that lie in `outer`."""
    height, width = shape
    scale = min(outer[0] / height, outer[1] / width)
    scaled_height = max(1, round(height * scale))
    scaled_width = max(1, round(width * scale))
    return min(outer[0], scaled_height), min(outer[1], scaled_width)
