"""Captioned images: a folder of images, each with a text file of the same name."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.data.images.image_files import check_dataset_size
from jarilab.data.images.listing import natural
from jarilab.data.images.notices import Notices
from jarilab.data.images.resize import fitted

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm")
MAX_CAPTION_BYTES = 10_000


@dataclass(frozen=True, eq=False)
class Captioned:
    """Images `(N, 3, H, W)`, uint8, with a caption each. keys: hashes of file names, which choose the held-out
    images. notices: omitted files, counted and named."""

    captions: list[str]
    images: UInt8[Tensor, "N 3 H W"]
    keys: list[int]
    notices: list[str]

    def split(self, share: float) -> tuple[list[int], list[int]]:
        """Return the indices for training, and those of about `share` held out. Raises UserError."""
        train, held_out = [], []
        for number, key in enumerate(self.keys):
            (held_out if key < share * 2**32 else train).append(number)
        if not held_out or not train:
            raise UserError(
                f"{len(self.keys)} captioned images are too few to hold some out; give more"
            )
        return train, held_out


def read_captioned(folder: Path, size: int) -> Captioned:
    """Read the captioned images of a folder, the middle square of each at `size` pixels.

    Captions without an image, images without a caption, and empty or unreadable files are omitted and noted. Raises
    UserError if no image is left, or too many are unreadable.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder} is no folder: expected one of images with a *.txt of the same name beside each"
        )
    names = natural(path.name for path in folder.iterdir() if not path.name.startswith("."))
    texts = {Path(name).stem: name for name in names if name.lower().endswith(".txt")}
    images_of: dict[str, str] = {}
    notices = Notices()
    for name in (name for name in names if name.lower().endswith(SUFFIXES)):
        if Path(name).stem not in texts:
            notices.add("images without a caption, left out", name)
        elif images_of.setdefault(Path(name).stem, name) != name:
            notices.add("second images of one caption, left out", name)
    for stem in natural(texts.keys() - images_of.keys()):
        notices.add("captions without an image, left out", texts[stem])
    check_dataset_size(folder, len(images_of), 3, (size, size))
    captions, images, keys = [], [], []
    for stem, name in images_of.items():
        caption = _caption(folder / texts[stem])
        if caption is None:
            notices.add(
                "captions that are empty, too long or no UTF-8, left out with their images",
                texts[stem],
            )
            continue
        try:
            images.append(fitted(folder / name, 3, (size, size), "crop").pixels)
        except UserError as error:
            notices.unreadable(name, error, len(images_of), folder)
            continue
        captions.append(caption)
        keys.append(zlib.crc32(name.encode("utf-8", "surrogateescape")))
    if not images:
        omitted = "; ".join(notices.lines()) or "no image at all"
        raise UserError(
            f"{folder}: expected images with a *.txt of the same name beside each; got none: {omitted}"
        )
    return Captioned(captions, torch.stack(images), keys, notices.lines())


def _caption(path: Path) -> str | None:
    """Return a caption on one line, or None if it is unusable."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_CAPTION_BYTES + 1)
        text = " ".join(data.decode("utf-8-sig").split())
    except (OSError, UnicodeDecodeError):
        return None
    return text if text and len(data) <= MAX_CAPTION_BYTES else None
