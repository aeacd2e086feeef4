"""Reading a person's images: whatever they are called and however they are stored, in bounded memory."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from jarilab.core.errors import UserError, import_optional
from jarilab.core.shapes import Tensor
from jarilab.data.text import files

MOST_PIXELS = 1 << 26
"""An image whose header says more is refused before it is decoded."""

LARGEST_FILE = 1 << 29
"""Bytes: a larger file is not read."""

LARGEST_SET = 2 << 30
"""Bytes of pixels that a set of images may take."""

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
"""What is recognised by its content, by Pillow's names; none that it hands to other programs."""

_NAMED = "PNG, JPEG, GIF, BMP, WebP, TIFF or PPM"
_BITS = 258  # of each sample, the tag of a TIFF
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Decoded:
    """An image, and how the file has it once upright."""

    pixels: UInt8[Tensor, "C H W"]
    height: int
    width: int
    animated: bool
    """There is more than the first frame or page, which is the one that was read."""


def read_image(
    source: Path | bytes, channels: int, longest: int | None = None
) -> UInt8[Tensor, "C H W"]:
    """The pixels of an image, uint8, as `decode` gives them."""
    return decode(source, channels, longest=longest).pixels


def decode(
    source: Path | bytes,
    channels: int,
    *,
    longest: int | None = None,
    enough: int | None = None,
    name: str = "",
) -> Decoded:
    """An image file, or its bytes, as uint8 of 1 (gray, ITU-R 601) or 3 (RGB) channels.

    What is transparent lies on white; 16 bits become 8; CMYK becomes RGB without colour management; EXIF's orientation
    is applied; of animations and pages the first is taken. A longer side beyond `longest` is scaled down to it. A JPEG
    may come smaller than it is stored as long as no side falls below `enough` pixels, which saves most of the work for
    large photographs. `name` is what errors call bytes. Raises UserError for what is no whole image, or a too large
    one.
    """
    if channels not in (1, 3):
        raise UserError(
            f"expected 1 channel (gray) or 3 (RGB); got {channels}; ask for one of them"
        )
    if isinstance(source, Path):
        name, data = name or str(source), read_bytes(source)
    else:
        name, data = name or "the image", source
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # Pillow's, of damaged metadata and of sizes that are judged here
        return _decoded(data, name, channels, longest, enough)


def read_bytes(path: Path) -> bytes:
    """All of a regular file. Raises UserError for what is none, and beyond LARGEST_FILE bytes."""
    with files.open_binary(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(LARGEST_FILE + 1) if size <= LARGEST_FILE else b""
    if max(size, len(data)) > LARGEST_FILE:
        raise UserError(
            f"{path}: expected an image of at most {LARGEST_FILE:,} bytes; got {size:,}; make it smaller"
        )
    return data


def size_of(data: bytes, name: str) -> tuple[int, int]:
    """Width and height by the header, of bytes that nothing was decoded of. Raises UserError for what is no image, or a
    too large one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, as in `decode`
        return _opened(data, name).size


def check_room(where: Path, count: int, channels: int, size: tuple[int, int]) -> None:
    """Raises UserError where so many images would take more than LARGEST_SET bytes."""
    needed = count * channels * math.prod(size)
    if needed > LARGEST_SET:
        raise UserError(
            f"{where}: expected at most {LARGEST_SET:,} bytes of pixels; {count:,} images of {size[0]} x {size[1]} "
            f"and {channels} channels take {needed:,}; make them smaller with --size, or take fewer"
        )


def _decoded(
    data: bytes, name: str, channels: int, longest: int | None, enough: int | None
) -> Decoded:
    library: Any = import_optional("PIL.ImageOps", "vision")
    image = _opened(data, name)
    stored = image.size  # drafts change it
    try:
        image.draft(None, _enough(image.size, longest, enough))
        frames = image.format != "MPO" and getattr(image, "is_animated", False)
        image.load()
        # Transposed before anything else: conversions may lose what says how the image lies.
        turned = image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
        library.exif_transpose(image, in_place=True)
        image = _converted(image, name, channels)
        image = _scaled(image, longest)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # damaged images make Pillow raise nearly anything
        raise UserError(
            f"{name}: expected a whole image; got a damaged or cut one ({_told(error)}); fetch or save it again"
        ) from None
    width, height = reversed(stored) if turned else stored
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    pixels = pixels.unsqueeze(0) if channels == 1 else pixels.permute(2, 0, 1).contiguous()
    return Decoded(pixels, height, width, bool(frames))


def _opened(data: bytes, name: str) -> Any:
    """Pillow's image, its header read and found sound; nothing is decoded yet."""
    library: Any = import_optional("PIL.Image", "vision")
    if not data:
        raise UserError(f"{name}: expected an image; got an empty file; fetch or save it again")
    try:
        image = library.open(BytesIO(data), formats=FORMATS)
    except library.UnidentifiedImageError:
        raise UserError(
            f"{name}: expected {_NAMED} with at least one pixel; this begins with {data[:12]!r}: it is no such, or "
            "has a damaged header; convert it, or fetch it again"
        ) from None
    except library.DecompressionBombError:
        raise _too_large(name, "more") from None
    except MemoryError:
        raise
    except Exception as error:  # as below
        raise UserError(
            f"{name}: expected an image; got a damaged header ({_told(error)}); save it again"
        ) from None
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise _too_large(name, f"{width:,} x {height:,}")
    return image


def _enough(size: tuple[int, int], longest: int | None, enough: int | None) -> tuple[int, int]:
    """The width and height below which decoding may not fall; twice what is scaled down to, to have what to average."""
    scales = [2 * longest / max(size)] if longest else []
    scales += [enough / min(size)] if enough else []
    scale = min(1.0, max(scales, default=1.0))
    return math.ceil(size[0] * scale), math.ceil(size[1] * scale)


def _converted(image: Any, name: str, channels: int) -> Any:
    """In mode L or RGB."""
    library: Any = import_optional("PIL.Image", "vision")
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        # The high byte, as Pillow does for colours. A TIFF may have but 12 bits, which Pillow does not spread over 16.
        bits = 12 if 12 in getattr(image, "tag_v2", {}).get(_BITS, ()) else 16
        image = library.fromarray((np.asarray(image) >> (bits - 8)).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise UserError(
            f"{name}: expected 8 or 16 bits a channel; got {'32 bits' if image.mode == 'I' else 'fractions'}, of which "
            "nobody can say what is white; save it as 8 bits"
        )
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = library.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        image = white
    return image.convert("L" if channels == 1 else "RGB")


def _scaled(image: Any, longest: int | None) -> Any:
    if longest is None or max(image.size) <= longest:
        return image
    library: Any = import_optional("PIL.Image", "vision")
    scale = longest / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), library.Resampling.BILINEAR)


def _too_large(name: str, got: str) -> UserError:
    return UserError(
        f"{name}: expected at most {MOST_PIXELS:,} pixels; its header says {got}; make it smaller"
    )


def _told(error: Exception) -> str:
    """What Pillow says, where it says anything."""
    return str(error).partition("\n")[0][:100] or type(error).__name__
