"""A person's captioned images: a folder of images, each with a text of the same name beside it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.data.images.files import check_room
from jarilab.data.images.listing import natural
from jarilab.data.images.notices import Notices
from jarilab.data.images.resize import fitted

ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm")
LONGEST_CAPTION = 10_000  # bytes


@dataclass(frozen=True, eq=False)
class Captioned:
    """captions: of each image. images: `(N, 3, H, W)` uint8. keys: of each file name, by which some are
    held out. notices: what was left out, counted and named."""

    captions: list[str]
    images: UInt8[Tensor, "N 3 H W"]
    keys: list[int]
    notices: list[str]

    def split(self, share: float) -> tuple[list[int], list[int]]:
        """The numbers of the images to train on, and of about `share` of them to hold out. Raises UserError."""
        train, held_out = [], []
        for number, key in enumerate(self.keys):
            (held_out if key < share * 2**32 else train).append(number)
        if not held_out or not train:
            raise UserError(
                f"{len(self.keys)} captioned images are too few to hold some out; give more"
            )
        return train, held_out


def read_captioned(folder: Path, size: int) -> Captioned:
    """The images of a folder that have a caption, the middle square of each at `size` pixels.

    A caption without an image, an image without a caption, an empty or unreadable one of either is left out and told.
    Raises UserError where none is left, or too many cannot be read.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder} is no folder: expected one of images with a *.txt of the same name beside each"
        )
    names = natural(path.name for path in folder.iterdir() if not path.name.startswith("."))
    texts = {Path(name).stem: name for name in names if name.lower().endswith(".txt")}
    drawn: dict[str, str] = {}
    notices = Notices()
    for name in (name for name in names if name.lower().endswith(ENDINGS)):
        if Path(name).stem not in texts:
            notices.add("images without a caption, left out", name)
        elif drawn.setdefault(Path(name).stem, name) != name:
            notices.add("second images of one caption, left out", name)
    for stem in natural(texts.keys() - drawn.keys()):
        notices.add("captions without an image, left out", texts[stem])
    check_room(folder, len(drawn), 3, (size, size))
    captions, images, keys = [], [], []
    for stem, name in drawn.items():
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
            notices.unreadable(name, error, len(drawn), folder)
            continue
        captions.append(caption)
        keys.append(zlib.crc32(name.encode("utf-8", "surrogateescape")))
    if not images:
        found = "; ".join(notices.lines()) or "no image at all"
        raise UserError(
            f"{folder}: expected images with a *.txt of the same name beside each; got none: {found}"
        )
    return Captioned(captions, torch.stack(images), keys, notices.lines())


def _caption(path: Path) -> str | None:
    """The text of a caption in one line, or None where there is none."""
    try:
        with path.open("rb") as stream:
            data = stream.read(LONGEST_CAPTION + 1)
        text = " ".join(data.decode("utf-8-sig").split())
    except (OSError, UnicodeDecodeError):
        return None
    return text if text and len(data) <= LONGEST_CAPTION else None
