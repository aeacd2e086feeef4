"""Labelled images from class folders, MNIST's idx files or a CSV, in memory as uint8."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import UInt8, UInt64

from jarilab.core.errors import UserError, counted, import_optional, printable
from jarilab.core.shapes import Int, Tensor
from jarilab.data.finding import share
from jarilab.data.images import idx
from jarilab.data.images.alike import Thumbnails
from jarilab.data.images.image_files import check_dataset_size, decode, read_bytes
from jarilab.data.images.listing import Listing, list_csv, list_folders, natural
from jarilab.data.images.notices import Notices, digests, few_held_out
from jarilab.data.images.resize import Fit, Size, fitted, resize

_AT_ONCE = 1024

_UNKNOWN = "images left out, of classes that the training data does not have"
_LOST_COLOUR = "in colour and read as gray; --colours colour keeps the colours"
_NOTHING = "classes left out, of which there is no image"
_FITTED = {
    "stretch": "stretched to {0} x {1}",
    "crop": "scaled to {0} x {1} and cut where too long",
    "pad": "scaled to {0} x {1} and padded where too short",
}


@final
class Labelled:
    """Images of one size, each with a class.

    labels: class numbers. marks: the crc32 of each file's bytes, for splitting. notices: messages about reading. rows:
    the index of each image in `pixels`; in order by default. files: the file of each image and its label; empty if one
    file holds all images.
    """

    def __init__(
        self,
        pixels: UInt8[Tensor, "S C H W"],
        labels: Int[Tensor, " N"],
        classes: Sequence[str],
        marks: Int[Tensor, " N"],
        notices: Sequence[str] = (),
        rows: Int[Tensor, " N"] | None = None,
        files: Sequence[tuple[Path, str]] = (),
    ):
        self._pixels, self.labels, self.marks = pixels, labels, marks
        self.classes = list(classes)
        self.notices = list(notices)
        self.files = list(files)
        self._rows = torch.arange(len(labels)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        channels, height, width = self._pixels.shape[1:]
        return channels, height, width

    def images(self, indices: Int[Tensor, " B"]) -> UInt8[Tensor, "B C H W"]:
        """Return the pixels at these indices."""
        return self._pixels[self._rows[indices]]

    def only(self, indices: Int[Tensor, " M"]) -> Labelled:
        """Return some of these images without copying pixels. Classes and notices stay."""
        labels, marks = self.labels[indices], self.marks[indices]
        rows = self._rows[indices]
        files = [self.files[index] for index in indices.tolist()] if self.files else ()
        return Labelled(self._pixels, labels, self.classes, marks, self.notices, rows, files)

    def resized(self, size: Size, fit: Fit) -> Labelled:
        """Return these images at another size."""
        parts = torch.arange(len(self)).split(_AT_ONCE)
        pixels = torch.cat([resize(self.images(some), size, fit) for some in parts])
        return Labelled(pixels, self.labels, self.classes, self.marks, self.notices)

    def split(self, share: float) -> tuple[Labelled, Labelled]:
        """Return the training images, and about `share` held out.

        A hash of the content chooses, so equal files stay together and new images move none. Raises UserError if one
        side would be empty.
        """
        held_out = self.marks < share * 2**32
        if not held_out.any() or held_out.all():
            raise UserError(
                f"{counted(len(self), 'images', 'are')} too few to hold some out; give held-out images with --valid"
            )
        (train_rows,) = (~held_out).nonzero(as_tuple=True)
        (held_out_rows,) = held_out.nonzero(as_tuple=True)
        train, rest = self.only(train_rows), self.only(held_out_rows)
        few = few_held_out(len(rest), len(self))
        train.notices = rest.notices = [*self.notices, *few]
        return train, rest

    def shared(self, train: Labelled) -> list[str]:
        """Return a notice if held-out images have the same pixels as training images."""
        known = np.isin(self._digests(), train._digests())
        if not known.any():
            return []
        images = share(int(known.sum()), len(self), "held-out images", "equal")
        return [
            f"{images} a training image, which makes the score better than it is; hold out others"
        ]

    def thumbnails(self) -> Thumbnails:
        """Return the images as they are compared with others."""
        names = [str(path) for path, _ in self.files] or [f"number {n}" for n in range(len(self))]
        return Thumbnails.of(self._pixels[self._rows], names)

    def _digests(self) -> UInt64[np.ndarray, " N"]:
        parts = torch.arange(len(self)).split(_AT_ONCE)
        return np.concatenate([digests(self.images(some)) for some in parts])

    def fingerprint(self) -> str:
        """Return a sha256 of the files' contents, labels and order."""
        digest = hashlib.sha256(repr(self.classes).encode("utf-8", "backslashreplace"))
        for part in (self.marks, self.labels):
            digest.update(part.long().numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Wanted:
    """The form that images are read into.

    size: height and width; None if all images have one size. classes: those of the training data, for held-out
    datasets.
    """

    channels: int
    size: Size | None = None
    fit: Fit = "stretch"
    classes: Sequence[str] | None = None


def read_labelled(path: Path, wanted: Wanted, *, held_out: bool = False) -> Labelled:
    """Read labelled images from class folders, an idx file beside its labels, or a CSV.

    If a folder has several idx files, those named train-* are taken, and the others with `held_out`. Unusable images
    are omitted and noted in `notices`. Raises UserError if no image or too few are usable, or if the pixels exceed
    `image_files.MAX_DATASET_BYTES`.
    """
    notices = Notices()
    if path.is_dir():
        images = idx.find(path, held_out)
        if images is not None:
            return _from_idx(images, wanted, notices)
        listing = list_folders(path, notices)
    elif idx.holds_images(path):
        return _from_idx(path, wanted, notices)
    elif path.name.lower().endswith((".csv", ".csv.gz")):
        listing = list_csv(path, notices)
    else:
        raise UserError(
            f"{path}: expected a folder of class folders, an idx file of images, or a *.csv of path and label"
        )
    return _from_files(path, listing, wanted, notices)


def read_resized(path: Path, read: Labelled, wanted: Wanted) -> Labelled | None:
    """Read some images of `path` in another size: their files alone; None if one file holds all. Raises UserError."""
    if not read.files:
        return None
    return _from_files(path, Listing(read.files, read.classes), wanted, Notices())


# One image per file ------------------------------------------------------------------------------------------------


class _ImageBuffer:
    """Images read so far, in memory for `count` of them."""

    def __init__(self, where: Path, count: int, channels: int):
        self._where, self._count, self._channels = where, count, channels
        self.labels: list[str] = []
        self.names: list[str] = []
        self.marks: list[int] = []
        self.files: list[tuple[Path, str]] = []
        self.size: Size | None = None
        self._pixels = torch.empty(0)

    @property
    def pixels(self) -> UInt8[Tensor, "N C H W"]:
        return self._pixels[: len(self.labels)]

    def add(self, pixels: UInt8[Tensor, "C H W"], label: str, name: str, mark: int) -> None:
        """Add an image. Raises UserError if its size differs from the first, or the dataset would be too large."""
        height, width = pixels.shape[1:]
        if self.size is None:
            self.size = height, width
            check_dataset_size(self._where, self._count, self._channels, self.size)
            self._pixels = torch.empty(self._count, *pixels.shape, dtype=torch.uint8)
        if (height, width) != self.size:
            raise UserError(
                f"{self._where}: expected images of one size, as {self.size} of the first; got {(height, width)} "
                f"in {printable(name)}; give the height and width to bring them to with --size"
            )
        self._pixels[len(self.labels)] = pixels
        self.labels.append(label)
        self.names.append(name)
        self.marks.append(mark)


def _from_files(where: Path, listing: Listing, wanted: Wanted, notices: Notices) -> Labelled:
    import_optional("PIL.Image", "vision")  # now, and not as the fault of every file
    folder = where if where.is_dir() else where.parent
    names = [path.name for path, _ in listing.files]
    labels = [label for _, label in listing.files]
    rows = _of_known_classes(where, names, labels, wanted, notices)
    known = [listing.files[row] for row in rows]
    buffer = _ImageBuffer(where, len(known), wanted.channels)
    resized: list[str] = []
    coloured: list[str] = []
    for path, label in known:
        name = os.path.relpath(path, folder)
        try:
            data = read_bytes(path)
            if wanted.size is None:
                image = decode(data, wanted.channels, name=name)
            else:
                image = fitted(data, wanted.channels, wanted.size, wanted.fit, name)
        except UserError as error:
            notices.unreadable(name, error, len(known), where)
            continue
        buffer.add(image.pixels, label, name, zlib.crc32(data))
        buffer.files.append((path, label))
        notices.add_each(image.remarks(), name)
        if (image.height, image.width) != buffer.size:
            resized.append(name)
        if image.lost_colour and wanted.classes is None:  # of held-out images this was said
            coloured.append(name)
    labels = buffer.labels
    marks = torch.tensor(buffer.marks)
    _note_sizes(resized, len(labels), wanted, notices)
    notices.among(len(labels), _LOST_COLOUR, coloured)
    notices.disputed(buffer.pixels, labels, buffer.names)
    result = _labelled(where, buffer.pixels, labels, listing.labels, marks, wanted, notices)
    result.files = buffer.files
    return result


def _of_known_classes(
    where: Path, names: Sequence[str], labels: Sequence[str], wanted: Wanted, notices: Notices
) -> list[int]:
    """Return the rows of images whose class the training data have. Raises UserError if there is none."""
    known = set(wanted.classes or labels)
    rows = []
    for row, (name, label) in enumerate(zip(names, labels, strict=True)):
        if label in known:
            rows.append(row)
        else:
            notices.add(_UNKNOWN, f"{name} of {label}")
    if not rows:
        raise _none_usable(where, wanted, notices)
    return rows


def _note_sizes(names: Sequence[str], count: int, wanted: Wanted, notices: Notices) -> None:
    if wanted.size is not None:
        resizing = _FITTED[wanted.fit].format(*wanted.size)
        notices.among(count, resizing, names)


def _labelled(
    where: Path,
    pixels: Tensor,
    labels: Sequence[str],
    expected_labels: Sequence[str],
    marks: Tensor,
    wanted: Wanted,
    notices: Notices,
) -> Labelled:
    """Return the labelled images. Raises UserError for a single class."""
    classes = list(wanted.classes or natural(set(labels)))
    if wanted.classes is None:
        missing = set(expected_labels) - set(labels)
        for name in natural(missing):
            notices.add(_NOTHING, name)
    if len(classes) < 2:
        raise UserError(
            f"{where}: expected images of two classes or more; got only {classes}; add those of another{notices.tail()}"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    of_each = torch.tensor([numbers[label] for label in labels])
    return Labelled(pixels, of_each, classes, marks, notices.lines())


def _none_usable(where: Path, wanted: Wanted, notices: Notices) -> UserError:
    known = ""
    if wanted.classes:
        names = [printable(name) for name in wanted.classes[:8]]
        known = f" of the classes {', '.join(names)}"
    return UserError(
        f"{where}: expected images{known}; got none{notices.tail()}; name another place"
    )


# Many images per file -------------------------------------------------------------------------------------------


def _from_idx(images: Path, wanted: Wanted, notices: Notices) -> Labelled:
    pixels, numbers = idx.read_pair(images)
    pixels = pixels.unsqueeze(1)
    labels = [str(number) for number in numbers.tolist()]
    names = [f"number {row}" for row in range(len(labels))]
    rows = _of_known_classes(images, names, labels, wanted, notices)
    if len(rows) < len(labels):
        pixels = pixels[torch.tensor(rows)]
        labels = [labels[row] for row in rows]
        names = [names[row] for row in rows]
    marks = torch.tensor([zlib.crc32(image.numpy().data) for image in pixels])
    if wanted.size is not None:
        check_dataset_size(images, len(pixels), 1, wanted.size)
        if pixels.shape[-2:] != wanted.size:
            _note_sizes(names, len(pixels), wanted, notices)
        parts = [resize(some, wanted.size, wanted.fit) for some in pixels.split(_AT_ONCE)]
        pixels = torch.cat(parts)
    notices.disputed(pixels, labels, names)
    pixels = pixels.expand(-1, wanted.channels, -1, -1)
    return _labelled(images, pixels, labels, labels, marks, wanted, notices)
