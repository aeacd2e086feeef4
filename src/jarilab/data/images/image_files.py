"""Reading image files of any name and format in bounded memory."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from jarilab.core.errors import UserError, import_optional
from jarilab.core.shapes import Tensor
from jarilab.data.text import text_files

MAX_PIXELS = 1 << 26
"""An image with more pixels in its header is refused before decoding."""

INLINE_IMAGE = "data:image/"
"""How a text begins that is an image itself."""
IMAGE_END = "\t"
"""Ends the name of the image in the input of a model that reads an image and a text."""
MAX_FILE_BYTES = 1 << 29
"""Larger files are not read."""

MAX_TINT, COLOUR_SAMPLES = 32, 256
"""Channels of gray differ by at most this, as after lossy compression. Places of a side that are looked at."""

MAX_DATASET_BYTES = 2 << 30
"""Maximal bytes of pixels of a dataset."""

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
"""Formats recognised by content, by Pillow's names. None of them starts another program."""

_NAMED = "PNG, JPEG, GIF, BMP, WebP, TIFF or PPM"
_BITS = 258  # of each sample, the tag of a TIFF
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Decoded:
    """An image, and the size of the upright image in the file."""

    pixels: UInt8[Tensor, "C H W"]
    height: int
    width: int
    animated: bool
    """Whether the file has more than the first frame or page, which is the one read."""

    low_bits: int | None = None
    """Bits that the values of a 16-bit image need, if 8, 10 or 12 are enough; they are scaled as such."""

    lost_colour: bool = False
    """Whether the file has colours and was read as gray."""

    def remarks(self) -> list[str]:
        """Return notices for readers of many images."""
        low = f"images of 16 bits whose values need {self.low_bits}, scaled as such"
        first = "animations, of which the first frame is taken"
        return [first] * self.animated + [low] * (self.low_bits is not None)


def read_image(
    source: Path | bytes, channels: int, longest: int | None = None
) -> UInt8[Tensor, "C H W"]:
    """Return the pixels of an image, uint8, see `decode`."""
    return decode(source, channels, longest=longest).pixels


def decode(
    source: Path | bytes,
    channels: int,
    *,
    longest: int | None = None,
    enough: int | None = None,
    name: str = "",
) -> Decoded:
    """Decode an image file, or its bytes, to uint8 with 1 (gray, ITU-R 601) or 3 (RGB) channels.

    Transparent pixels are put on white. 16 bits become 8; gray values that need only 8, 10 or 12 bits, as cameras write
    them, are scaled as such. CMYK becomes RGB without colour management. EXIF's orientation is applied. The first frame
    or page is taken. A side longer than `longest` is scaled down to it. A JPEG may be decoded smaller as long as no
    side falls below `enough` pixels, which saves time on large photographs. `name` stands for bytes in errors. Raises
    UserError for a damaged or too large image.
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
        # Pillow warns of damaged metadata and of sizes that are checked here.
        warnings.simplefilter("ignore")
        return _decoded(data, name, channels, longest, enough)


def read_bytes(path: Path, kind: str = "an image") -> bytes:
    """Return the bytes of a regular file. Raises UserError for any other, and above MAX_FILE_BYTES."""
    with text_files.open_binary(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        # Python allocates all that is asked for, and half a gigabyte for each file would fragment the heap.
        data = stream.read(size + 1) if size <= MAX_FILE_BYTES else b""
        if len(data) > size:  # it grew meanwhile
            data += stream.read(MAX_FILE_BYTES + 1 - len(data))
    if max(size, len(data)) > MAX_FILE_BYTES:
        raise UserError(
            f"{path}: expected {kind} of at most {MAX_FILE_BYTES:,} bytes; got {size:,}; make it smaller"
        )
    return data


def size_of(data: bytes, name: str) -> tuple[int, int]:
    """Return width and height from the header. Raises UserError for other files and large images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, as in `decode`
        return _opened(data, name).size


def check_dataset_size(where: Path, count: int, channels: int, size: tuple[int, int]) -> None:
    """Raise UserError if so many images would take more than MAX_DATASET_BYTES."""
    needed = count * channels * math.prod(size)
    if needed > MAX_DATASET_BYTES:
        raise UserError(
            f"{where}: expected at most {MAX_DATASET_BYTES:,} bytes of pixels; got {count:,} images of "
            f"{size[0]} x {size[1]} and {channels} channels, which take {needed:,}; "
            "make them smaller with --size, or take fewer"
        )


def _decoded(
    data: bytes, name: str, channels: int, longest: int | None, enough: int | None
) -> Decoded:
    library: Any = import_optional("PIL.ImageOps", "vision")
    image = _opened(data, name)
    stored = image.size  # `draft` changes it
    try:
        image.draft(None, _enough(image.size, longest, enough))
        # The further frames of an MPO are previews of one photograph.
        frames = image.format != "MPO" and getattr(image, "is_animated", False)
        image.load()
        # Conversions may lose the orientation, so it is applied first.
        turned = image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
        library.exif_transpose(image, in_place=True)
        image, low_bits = eight_bits(image, data, name)
        lost_colour = channels == 1 and _has_colour(image)
        image = converted(image, channels)
        image = _scaled(image, longest)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # Pillow raises almost any exception for damaged images
        raise UserError(
            f"{name}: expected a whole image; got a damaged or cut one ({_reason(error)}); fetch or save it again"
        ) from None
    width, height = reversed(stored) if turned else stored
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    pixels = pixels.unsqueeze(0) if channels == 1 else pixels.permute(2, 0, 1).contiguous()
    return Decoded(pixels, height, width, bool(frames), low_bits, lost_colour)


def _opened(data: bytes, name: str) -> Any:
    """Open an image with Pillow and check its header, without decoding."""
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
    except Exception as error:  # as in `_decoded`
        raise UserError(
            f"{name}: expected an image; got a damaged header ({_reason(error)}); save it again"
        ) from None
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise _too_large(name, f"{width:,} x {height:,}")
    return image


def _enough(size: tuple[int, int], longest: int | None, enough: int | None) -> tuple[int, int]:
    """Return the smallest width and height for decoding: twice the scaled size, so that pixels are averaged."""
    scales = [2 * longest / max(size)] if longest else []
    scales += [enough / min(size)] if enough else []
    scale = min(1.0, max(scales, default=1.0))
    return math.ceil(size[0] * scale), math.ceil(size[1] * scale)


def eight_bits(image: Any, data: bytes, name: str) -> tuple[Any, int | None]:
    """Reduce gray values of 16 bits to 8, and return `Decoded.low_bits`."""
    library: Any = import_optional("PIL.Image", "vision")
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        # Take the high byte, as Pillow does for colours. Pillow does not spread the 12 bits of some TIFFs over 16.
        values = np.asarray(image)
        brightest = int(values.max())
        needed = next(bits for bits in (8, 10, 12, 16) if brightest < 1 << bits)
        stored = 12 if 12 in getattr(image, "tag_v2", {}).get(_BITS, ()) else 16
        bits = needed if brightest and stored == 16 else stored
        image = library.fromarray((values >> (bits - 8)).astype(np.uint8))
        return image, None if bits == stored else bits
    if image.mode in ("I", "F"):
        raise UserError(
            f"{name}: expected 8 or 16 bits a channel; got {'32 bits' if image.mode == 'I' else 'fractions'}, of which "
            "nobody can say what is white; save it as 8 bits"
        )
    # Pillow keeps only the high byte of colours: at most 15 of values of 12 bits.
    is_deep = data.startswith(b"\x89PNG") and data[24] == 16
    if is_deep and 0 < np.asarray(image.convert("RGB")).max() < 16:
        raise UserError(
            f"{name}: expected colours that use 16 bits; got a brightest value of 15 of 255 or less, as of 10 or 12 "
            "bits stored in 16; multiply the values by 64 or 16, or save it as 8 bits"
        )
    return image, None


def converted(image: Any, channels: int) -> Any:
    """Convert an image to mode L or RGB, transparent pixels on white."""
    library: Any = import_optional("PIL.Image", "vision")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = library.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        image = white
    return image.convert("L" if channels == 1 else "RGB")


def _has_colour(image: Any) -> bool:
    """Whether channels differ by more than MAX_TINT, at about COLOUR_SAMPLES places of each side."""
    if image.mode in ("1", "L", "LA", "La"):
        return False
    step = max(1, max(image.size) // COLOUR_SAMPLES)
    pixels = np.asarray(converted(image, 3))[::step, ::step]
    return bool((np.ptp(pixels, axis=-1) > MAX_TINT).any())


def _scaled(image: Any, longest: int | None) -> Any:
    if longest is None or max(image.size) <= longest:
        return image
    library: Any = import_optional("PIL.Image", "vision")
    scale = longest / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    return image.resize((width, height), library.Resampling.BILINEAR)


def _too_large(name: str, got: str) -> UserError:
    return UserError(
        f"{name}: expected at most {MAX_PIXELS:,} pixels; its header says {got}; make it smaller"
    )


def _reason(error: Exception) -> str:
    """Return Pillow's message, or the name of its exception."""
    return str(error).partition("\n")[0][:100] or type(error).__name__


def check_png(out: str | Path, read: Iterable[Path] = ()) -> None:
    """Raises UserError for a file name that is not a PNG's, and for an input file."""
    if Path(out).suffix.lower() != ".png":
        raise UserError(
            f"{out}: expected a name that ends in .png, since PNG is what is written; choose such a name"
        )
    if Path(out).is_file() and any(path.is_file() and path.samefile(out) for path in read):
        raise UserError(
            f"{out}: expected another file than the image itself, which would be gone; choose another name"
        )
