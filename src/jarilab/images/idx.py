"""MNIST's idx files of bytes: "THE IDX FILE FORMAT" on its page. A magic number, the sizes, the bytes; gzip or not."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path

import torch
from jaxtyping import UInt8

from jarilab.errors import UserError
from jarilab.images.files import check_room
from jarilab.shapes import Tensor
from jarilab.text import files

IMAGES = b"\0\0\x08\x03"
LABELS = b"\0\0\x08\x01"
_SAID = {IMAGES: "images", LABELS: "labels"}


def find(folder: Path, held_out: bool) -> Path | None:
    """The idx file of images in a folder, if there is any. Raises UserError where it is not clear which."""
    found = sorted(
        path for path in folder.iterdir() if re.search(r"images.idx3.ubyte(\.gz)?$", path.name)
    )
    if len(found) > 1:
        chosen = [path for path in found if path.name.startswith("train") != held_out]
        if len(chosen) != 1:
            told = ", ".join(path.name for path in found)
            raise UserError(
                f"{folder}: expected one idx file of images to take; got {told}; name the file"
            )
        return chosen[0]
    return found[0] if found else None


def holds_images(path: Path) -> bool:
    """Whether a file is one of images. Raises UserError for labels alone, and for numbers that are no bytes."""
    with files.opened(path) as stream:
        start = stream.read(4)
    if start == LABELS:
        raise UserError(
            f"{path}: expected images; got the labels of an idx pair; name the file of the images"
        )
    if start != IMAGES and len(start) == 4 and start[:2] == b"\0\0" and 0x08 <= start[2] <= 0x0E:
        raise UserError(
            f"{path}: expected idx of bytes in three dimensions (magic 00 00 08 03); got {start.hex(' ')}; convert it"
        )
    return start == IMAGES


def labels_of(images: Path) -> Path:
    """The file of labels that belongs to one of images, by its name."""
    name = images.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    found = [
        path for path in (images.with_name(name), images.with_name(name + ".gz")) if path.exists()
    ]
    if name == images.name.removesuffix(".gz") or not found:
        raise UserError(
            f"{images}: expected its labels beside it, in {name} or {name}.gz; got none; put them there"
        )
    return found[0]


def read(path: Path, magic: bytes) -> UInt8[Tensor, "..."]:
    """The numbers in an idx file of bytes, in as many dimensions as the magic says."""
    with files.opened(path) as stream:
        start = stream.read(4 + 4 * magic[3])
        if len(start) < 4 + 4 * magic[3] or start[:4] != magic:
            raise UserError(
                f"{path}: expected idx of {_SAID[magic]} (magic {magic.hex(' ')}); got "
                f"{start[:4].hex(' ') or 'nothing'}; fetch it again, or name another"
            )
        sizes = struct.unpack(f">{magic[3]}I", start[4:])
        if 0 in sizes:
            raise UserError(
                f"{path}: expected {_SAID[magic]}; its header says {sizes}, which is none; fetch it again"
            )
        check_room(path, sizes[0], 1, (sizes[1], sizes[2]) if magic[3] == 3 else (1, 1))
        found, at = torch.empty(math.prod(sizes), dtype=torch.uint8), 0
        view = memoryview(found.numpy().data)
        while at < len(view) and (count := stream.readinto(view[at:])):
            at += count
        more = stream.read(1)
    if at < len(view) or more:
        got = f"only {at:,}" if at < len(view) else "more"
        raise UserError(
            f"{path}: expected {len(view):,} bytes, as its header says {sizes}; got {got}; fetch it again"
        )
    return found.view(sizes)
