"""MNIST's idx files of bytes: "THE IDX FILE FORMAT" on its page. A magic number, the sizes, the bytes; gzip or not."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path

import torch
from jaxtyping import UInt8

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.data.images.files import check_room
from jarilab.data.text import files

IMAGES = b"\0\0\x08\x03"
LABELS = b"\0\0\x08\x01"
_KINDS = {IMAGES: "images", LABELS: "labels"}


def find(folder: Path, held_out: bool) -> Path | None:
    """The idx file of images in a folder, if there is any. Raises UserError where it is not clear which."""
    pattern = re.compile(r"images.idx3.ubyte(\.gz)?$")
    found = sorted(path for path in folder.iterdir() if pattern.search(path.name))
    if len(found) < 2:
        return found[0] if found else None
    chosen = [path for path in found if path.name.startswith("train") != held_out]
    if len(chosen) != 1:
        names = ", ".join(path.name for path in found)
        raise UserError(
            f"{folder}: expected one idx file of images to take; got {names}; name the file"
        )
    return chosen[0]


def holds_images(path: Path) -> bool:
    """Whether a file is one of images. Raises UserError for labels alone, and for numbers that are no bytes."""
    with files.open_text(path) as stream:
        start = stream.read(4)
    if start == LABELS:
        raise UserError(
            f"{path}: expected images; got the labels of an idx pair; name the file of the images"
        )
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
    found = [path for path in both if path.exists()]
    if name == own_name or not found:
        raise UserError(
            f"{images}: expected its labels beside it, in {name} or {name}.gz; got none; put them there"
        )
    return found[0]


def read(path: Path, magic: bytes) -> UInt8[Tensor, "..."]:
    """The numbers in an idx file of bytes, in as many dimensions as the magic says."""
    with files.open_text(path) as stream:
        sizes = _sizes(path, stream, magic)
        found = torch.empty(math.prod(sizes), dtype=torch.uint8)
        view = memoryview(found.numpy().data)
        got = _fill(view, stream)
        more = stream.read(1)
    if got < len(view) or more:
        amount = "more" if more else f"only {got:,}"
        raise UserError(
            f"{path}: expected {len(view):,} bytes, as its header says {sizes}; got {amount}; fetch it again"
        )
    return found.view(sizes)


def _sizes(path: Path, stream: files.Stream, magic: bytes) -> tuple[int, ...]:
    """How long each dimension is, of a header with this magic. Raises UserError for another, and for far too much."""
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
    check_room(path, sizes[0], 1, (height, width))
    return sizes


def _fill(view: memoryview, stream: files.Stream) -> int:
    """Read until the view is full or nothing is left; how many bytes were read."""
    at = 0
    while at < len(view) and (count := stream.readinto(view[at:])):  # type: ignore[attr-defined]
        at += count
    return at
