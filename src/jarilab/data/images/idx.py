"""Reading of MNIST's idx files of bytes, plain or gzip: a magic number, the sizes, the bytes."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path

import torch
from jaxtyping import UInt8

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.data.images.image_files import check_dataset_size
from jarilab.data.text import text_files

IMAGES = b"\0\0\x08\x03"
LABELS = b"\0\0\x08\x01"
_KINDS = {IMAGES: "images", LABELS: "labels"}


def find(folder: Path, held_out: bool) -> Path | None:
    """Return the idx file of images in a folder, or None. Raises UserError if the choice is ambiguous."""
    pattern = re.compile(r"images.idx3.ubyte(\.gz)?$")
    candidates = sorted(path for path in folder.iterdir() if pattern.search(path.name))
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    chosen = [path for path in candidates if path.name.startswith("train") != held_out]
    if len(chosen) != 1:
        names = ", ".join(path.name for path in candidates)
        raise UserError(
            f"{folder}: expected one idx file of images to take; got {names}; name the file"
        )
    return chosen[0]


def holds_images(path: Path) -> bool:
    """Whether a file is an idx file of images. Raises UserError for labels, and for numbers other than bytes."""
    with text_files.open_text(path) as stream:
        start = stream.read(4)
    if start == LABELS:
        raise UserError(
            f"{path}: expected images; got the labels of an idx pair; name the file of the images"
        )
    # The third byte is the type, from unsigned bytes to float64.
    is_idx = len(start) == 4 and start[:2] == b"\0\0" and 0x08 <= start[2] <= 0x0E
    if is_idx and start != IMAGES:
        raise UserError(
            f"{path}: expected idx of bytes in three dimensions (magic 00 00 08 03); got {start.hex(' ')}; convert it"
        )
    return start == IMAGES


def labels_of(images: Path) -> Path:
    """The file of labels that belongs to one of images, by its name."""
    own_name = images.name.removesuffix(".gz")
    name = own_name.replace("images", "labels").replace("idx3", "idx1")
    both = (images.with_name(name), images.with_name(name + ".gz"))
    existing = [path for path in both if path.exists()]
    if name == own_name or not existing:
        raise UserError(
            f"{images}: expected its labels beside it, in {name} or {name}.gz; got none; put them there"
        )
    return existing[0]


def read(path: Path, magic: bytes) -> UInt8[Tensor, "..."]:
    """Read an idx file of bytes, with as many dimensions as its magic number says."""
    with text_files.open_text(path) as stream:
        sizes = _sizes(path, stream, magic)
        values = torch.empty(math.prod(sizes), dtype=torch.uint8)
        view = memoryview(values.numpy().data)
        got = _fill(view, stream)
        more = stream.read(1)
    if got < len(view) or more:
        amount = "more" if more else f"only {got:,}"
        raise UserError(
            f"{path}: expected {len(view):,} bytes, as its header says {sizes}; got {amount}; fetch it again"
        )
    return values.view(sizes)


def read_pair(images: Path) -> tuple[UInt8[Tensor, "N H W"], UInt8[Tensor, " N"]]:
    """Read the images of a file, and the labels in the file beside it. Raises UserError for another number of them."""
    labels, pixels = read(labels_of(images), LABELS), read(images, IMAGES)
    if len(labels) != len(pixels):
        raise UserError(
            f"{images}: expected as many labels as images; got {len(labels):,} and {len(pixels):,}; fetch both again"
        )
    return pixels, labels


def _sizes(path: Path, stream: text_files.Stream, magic: bytes) -> tuple[int, ...]:
    """Return the size of each dimension. Raises UserError for another magic number, and for too much data."""
    kind, dimensions = _KINDS[magic], magic[3]
    length = 4 + 4 * dimensions
    header = stream.read(length)
    if len(header) < length or header[:4] != magic:
        start = header[:4].hex(" ") or "nothing"
        raise UserError(
            f"{path}: expected idx of {kind} (magic {magic.hex(' ')}); got {start}; fetch it again, or name another"
        )
    sizes = struct.unpack(f">{dimensions}I", header[4:])
    if 0 in sizes:
        raise UserError(
            f"{path}: expected {kind}; its header says {sizes}, which is none; fetch it again"
        )
    height, width = sizes[1:] if dimensions == 3 else (1, 1)
    check_dataset_size(path, sizes[0], 1, (height, width))
    return sizes


def _fill(view: memoryview, stream: text_files.Stream) -> int:
    """Read until the view is full or the stream ends. Returns the number of bytes read."""
    filled = 0
    while filled < len(view) and (count := stream.readinto(view[filled:])):  # type: ignore[attr-defined]
        filled += count
    return filled
