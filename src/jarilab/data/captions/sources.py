"""Sources of captioned images: drawn scenes, or a folder of files."""

from __future__ import annotations

import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import torch
from jaxtyping import UInt8

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.data.captions.digit_images import DigitImages, Part
from jarilab.data.captions.styles import Painter, Style
from jarilab.data.images.alike import Thumbnails
from jarilab.data.images.image_files import check_dataset_size
from jarilab.data.images.listing import SUFFIXES, natural
from jarilab.data.images.notices import Notices, few_held_out
from jarilab.data.images.resize import fitted
from jarilab.nn.init import generator_for

MAX_CAPTION_BYTES = 10_000


@dataclass(frozen=True, eq=False)
class Captioned:
    """Images `(N, 3, H, W)`, uint8, with a caption each. names: of the files, whose hashes choose the held-out
    images. notices: omitted files, counted and named."""

    captions: list[str]
    images: UInt8[Tensor, "N 3 H W"]
    names: list[str]
    notices: list[str]

    def split(self, share: float) -> tuple[list[int], list[int]]:
        """Return the indices for training, and those of about `share` held out. Raises UserError."""
        train, held_out = [], []
        for number, name in enumerate(self.names):
            key = zlib.crc32(name.encode("utf-8", "surrogateescape"))
            (held_out if key < share * 2**32 else train).append(number)
        if not held_out or not train:
            raise UserError(
                f"{len(self.names)} captioned images are too few to hold some out; give more"
            )
        return train, held_out


def read_captioned(folder: Path, size: int) -> Captioned:
    """Read the captioned images of a folder, the middle square of each at `size` pixels.

    Captions without an image, images without a caption, and empty or unreadable files are omitted and noted. Raises
    UserError if no image is left, or too many are unreadable.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder: expected one of images with a *.txt of the same name beside each"
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
    captions, images, used = [], [], []
    for stem, name in images_of.items():
        caption = _caption(folder / texts[stem])
        if caption is None:
            notices.add(
                "captions that are empty, too long or no UTF-8, left out with their images",
                texts[stem],
            )
            continue
        try:
            image = fitted(folder / name, 3, (size, size), "crop")
        except UserError as error:
            notices.unreadable(name, error, len(images_of), folder)
            continue
        images.append(image.pixels)
        notices.add_each(image.remarks(), name)
        captions.append(caption)
        used.append(name)
    if not images:
        omitted = "; ".join(notices.lines()) or "no image at all"
        raise UserError(
            f"{folder}: expected images with a *.txt of the same name beside each; got none: {omitted}"
        )
    return Captioned(captions, torch.stack(images), used, notices.lines())


def _caption(path: Path) -> str | None:
    """Return a caption on one line, or None if it is unusable."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_CAPTION_BYTES + 1)
        text = " ".join(data.decode("utf-8-sig").split())
    except (OSError, UnicodeDecodeError):
        return None
    return text if text and len(data) <= MAX_CAPTION_BYTES else None


SEED = 1  # of scenes; independent of the seed of a run, so that all runs have the same data
HELD_OUT = 640  # number of held-out scenes
SHARE = 0.05  # fraction of a folder's images that is held out


@dataclass(frozen=True, eq=False)
class CaptionedBatch:
    """Captions and images `(B, 3, H, W)`. values: `(B, P)`, word indices of a style, or None without a style."""

    captions: list[str]
    images: UInt8[Tensor, "B 3 H W"]
    values: Int[Tensor, "B P"] | None


class CaptionSource(ABC):
    """Captions with images, read on first use."""

    notices: Sequence[str] = ()

    @property
    @abstractmethod
    def captions(self) -> list[str]:
        """Return all training captions."""

    @abstractmethod
    def images(self, numbers: Int[Tensor, " B"]) -> UInt8[Tensor, "B 3 H W"]:
        """Return the images of the captions with these numbers."""

    @property
    @abstractmethod
    def held_out_size(self) -> int:
        """The number of held-out captions."""

    @abstractmethod
    def held_out(self, numbers: Int[Tensor, " B"]) -> CaptionedBatch:
        """Return held-out captions with these numbers. No image of theirs is used for training."""

    def thumbnails(self) -> tuple[Thumbnails, Thumbnails]:
        """Return those of the training images and of the held-out ones, for files."""
        raise NotImplementedError

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Return a record that identifies the data."""


@final
class SceneSource(CaptionSource):
    """Scenes of a style. Held-out scenes show digits that no training scene shows.

    folder: of MNIST's files, or empty for scikit-learn's scans. scenes: number of training scenes. unseen: fraction of
    the combinations of words that only held-out scenes have; with 0, both have all. Raises UserError if it leaves none.
    """

    def __init__(self, style: Style, folder: str, scenes: int, unseen: float):
        self.style, self._folder, self._scenes = style, folder, scenes
        shuffled = torch.randperm(style.combinations, generator=torch.Generator().manual_seed(SEED))
        held = round(unseen * len(shuffled))
        if held == len(shuffled):
            raise UserError(
                f"unseen={unseen:g} leaves none of {held} combinations to train on; hold out fewer"
            )
        self.seen, self.to_measure = shuffled[held:], shuffled[:held] if held else shuffled

    def digits(self, part: Part) -> DigitImages:
        """Return single digits for training, or held-out ones."""
        return DigitImages.load(self._folder, part)

    @cached_property
    def _values(self) -> Int[Tensor, "N P"]:
        drawn = torch.randint(
            len(self.seen), (self._scenes,), generator=torch.Generator().manual_seed(SEED)
        )
        return self.style.values(self.seen[drawn])

    @property
    def captions(self) -> list[str]:
        return self._captions

    @cached_property
    def _captions(self) -> list[str]:
        return [self.style.caption(values) for values in self._values]

    @cached_property
    def _painter(self) -> Painter:
        return Painter(self.style, self.digits("training"), seed=SEED)

    @cached_property
    def _painter_of_held_out(self) -> Painter:
        return Painter(self.style, self.digits("held_out"), seed=SEED + 1)

    def images(self, numbers: Int[Tensor, " B"]) -> UInt8[Tensor, "B 3 H W"]:
        return self._painter.paint(self._values[numbers], numbers)

    @property
    def held_out_size(self) -> int:
        return HELD_OUT

    def _of_held_out(self, numbers: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Return the combination of words of each number.

        After the last combination they repeat, each time in another order. Otherwise numbers at even distances would
        meet the same few combinations.
        """
        count, combinations = len(self.to_measure), torch.empty_like(numbers)
        for turn in (numbers // count).unique().tolist():
            here = numbers // count == turn
            order = torch.randperm(count, generator=generator_for(SEED, f"held out/{turn}"))
            order = order if turn else torch.arange(count)  # `to_measure` is already shuffled
            combinations[here] = self.to_measure[order[numbers[here] % count]]
        return combinations

    def held_out(self, numbers: Int[Tensor, " B"]) -> CaptionedBatch:
        values = self.style.values(self._of_held_out(numbers))
        captions = [self.style.caption(v) for v in values]
        return CaptionedBatch(captions, self._painter_of_held_out.paint(values, numbers), values)

    @property
    def fingerprint(self) -> str:
        digits = self._painter.digits
        held = digits.ink.numpy().tobytes() + digits.labels.numpy().tobytes()
        return f"{self.style.name} of digits {hashlib.sha256(held).hexdigest()}"


@final
class FolderSource(CaptionSource):
    """A folder of images, each with a *.txt of the same name."""

    def __init__(self, folder: str, size: int):
        self._path, self._size = folder, size

    @cached_property
    def _captioned(self) -> Captioned:
        return read_captioned(Path(self._path), self._size)

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor]:
        train, held = self._captioned.split(SHARE)
        self.notices = [
            *self._captioned.notices,
            *few_held_out(len(held), len(train) + len(held), "give more images"),
        ]
        return torch.tensor(train), torch.tensor(held)

    @property
    def captions(self) -> list[str]:
        return [self._captioned.captions[int(i)] for i in self._parts[0]]

    def images(self, numbers: Int[Tensor, " B"]) -> UInt8[Tensor, "B 3 H W"]:
        return self._captioned.images[self._parts[0][numbers]]

    @property
    def held_out_size(self) -> int:
        return len(self._parts[1])

    def held_out(self, numbers: Int[Tensor, " B"]) -> CaptionedBatch:
        chosen = self._parts[1][numbers]
        return CaptionedBatch(
            [self._captioned.captions[int(i)] for i in chosen], self._captioned.images[chosen], None
        )

    def thumbnails(self) -> tuple[Thumbnails, Thumbnails]:
        train, held_out = self._parts
        return self._thumbnails_of(train), self._thumbnails_of(held_out)

    def _thumbnails_of(self, rows: Int[Tensor, " N"]) -> Thumbnails:
        names = [self._captioned.names[row] for row in rows.tolist()]
        return Thumbnails.of(self._captioned.images[rows], names)

    @property
    def fingerprint(self) -> str:
        held = self._captioned.images.numpy().tobytes()
        held += "\n".join(self._captioned.captions).encode()
        return f"sha256 {hashlib.sha256(held).hexdigest()}"
