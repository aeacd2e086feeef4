"""Images with labels, from class folders, MNIST's idx files or a CSV, held in memory as bytes."""

from __future__ import annotations

import csv
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch
from jaxtyping import UInt8, UInt64
from torch.nn import functional

from jarilab.errors import UserError, needs
from jarilab.images import idx
from jarilab.images.augment import background
from jarilab.images.files import Decoded, check_room, decode, read_bytes
from jarilab.images.notices import Notices, digests, few, shown
from jarilab.shapes import Int, Tensor
from jarilab.text import files

_AT_ONCE = 1024
_PATHS = {"path", "file", "filename", "image", "picture"}
_LABELS = {"label", "class", "target", "category"}

_UNKNOWN = "images left out, of classes that the training data does not have"
_BESIDE = "files left out, which lie beside the class folders"
_NOTHING = "classes left out, of which there is no image"
_LINKS = "links to folders inside the class folders, not followed"
_UNLABELLED = "lines left out, without a path or without a label"
_ANIMATED = "animations, of which the first frame is taken"
_FITTED = {
    "stretch": "stretched to {0} x {1}",
    "crop": "scaled to {0} x {1} and cut where too long",
    "pad": "scaled to {0} x {1} and padded where too short",
}

Fit = Literal["stretch", "crop", "pad"]
Size = tuple[int, int]


@final
class Labelled:
    """Images of one size, each of one class.

    labels: the number of the class of each. marks: what tells them apart, the crc32 of their bytes. notices: what a
    person should know of the reading. rows: where in `pixels` each is; as they come by default.
    """

    def __init__(
        self,
        pixels: UInt8[Tensor, "S C H W"],
        labels: Int[Tensor, " N"],
        classes: Sequence[str],
        marks: Int[Tensor, " N"],
        notices: Sequence[str] = (),
        rows: Int[Tensor, " N"] | None = None,
    ):
        self._pixels, self.labels, self.classes, self.marks = pixels, labels, list(classes), marks
        self.notices = list(notices)
        self._rows = torch.arange(len(labels)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""
        channels, height, width = self._pixels.shape[1:]
        return channels, height, width

    def images(self, indices: Int[Tensor, " B"]) -> UInt8[Tensor, "B C H W"]:
        """The pixels of these."""
        return self._pixels[self._rows[indices]]

    def only(self, indices: Int[Tensor, " M"]) -> Labelled:
        """Some of these images, whose pixels are not copied; the classes and notices are those of all."""
        labels, marks, rows = (part[indices] for part in (self.labels, self.marks, self._rows))
        return Labelled(self._pixels, labels, self.classes, marks, self.notices, rows)

    def split(self, share: float) -> tuple[Labelled, Labelled]:
        """What to train on, and about `share` to hold out: chosen by content, so that equal files stay together, and a
        image stays where it is when others come. Raises UserError where one side would be empty."""
        held_out = self.marks < share * 2**32
        if not held_out.any() or held_out.all():
            raise UserError(
                f"{len(self)} images are too few to hold some out; give held-out images with --valid"
            )
        train, rest = self.only((~held_out).nonzero()[:, 0]), self.only(held_out.nonzero()[:, 0])
        train.notices = rest.notices = [*self.notices, *few(len(rest), len(self))]
        return train, rest

    def shared(self, train: Labelled) -> list[str]:
        """What to say where some of these held-out images have the pixels of one to train on."""
        known = np.isin(self._digests(), train._digests())
        if not known.any():
            return []
        return [
            f"{known.sum():,} of {len(self):,} held-out images are training images too, which makes the score "
            "better than it is; hold out others"
        ]

    def _digests(self) -> UInt64[np.ndarray, " N"]:
        return np.concatenate(
            [digests(self.images(some)) for some in torch.arange(len(self)).split(_AT_ONCE)]
        )

    def fingerprint(self) -> str:
        """Of the files' contents, their labels and their order."""
        whole = hashlib.sha256(repr(self.classes).encode("utf-8", "backslashreplace"))
        for part in (self.marks, self.labels):
            whole.update(part.long().numpy().tobytes())
        return whole.hexdigest()


@dataclass(frozen=True)
class Wanted:
    """What images are made into. size: height and width; None where all have the same. classes: those of the training
    data, where other data are read."""

    channels: int
    size: Size | None = None
    fit: Fit = "stretch"
    classes: Sequence[str] | None = None


def read_labelled(path: Path, wanted: Wanted, *, held_out: bool = False) -> Labelled:
    """The labelled images of a folder of class folders, of an idx file beside its labels, or of a CSV.

    A folder may hold idx files: where it holds several, those named train-* are taken, and those not so named with
    `held_out`. What cannot be used is left out and told in `notices`. Raises UserError where nothing can, where too
    much cannot, and where the pixels would be more than files.LARGEST_SET bytes.
    """
    notes = Notices()
    if path.is_dir():
        images = idx.find(path, held_out)
        if images is not None:
            return _from_idx(images, wanted, notes)
        listed, names = _in_folders(path, notes)
    elif idx.holds_images(path):
        return _from_idx(path, wanted, notes)
    elif path.name.lower().endswith((".csv", ".csv.gz")):
        listed, names = _in_csv(path, notes)
    else:
        raise UserError(
            f"{path}: expected a folder of class folders, an idx file of images, or a *.csv of path and label"
        )
    return _from_files(path, listed, names, wanted, notes)


def fitted(source: Path | bytes, channels: int, size: Size, fit: Fit, name: str = "") -> Decoded:
    """An image as `read_labelled` gives it; `name` is what errors call bytes. Raises UserError as `decode` does."""
    found = decode(source, channels, enough=2 * max(size), name=name)
    return Decoded(
        resize(found.pixels[None], size, fit)[0], found.height, found.width, found.animated
    )


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
        top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
        pixels = pixels[..., top : top + inner[0], left : left + inner[1]]
    inner = _within(size, (height, width)) if fit == "pad" else size
    if pixels.shape[-2:] != inner:
        pixels = functional.interpolate(pixels, size=inner, mode="bilinear", antialias=True)
    if inner == size:
        return pixels
    whole = background(pixels).expand(-1, -1, *size).clone()
    top, left = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    whole[..., top : top + inner[0], left : left + inner[1]] = pixels
    return whole


def natural(names: Iterable[str]) -> list[str]:
    """Sorted as people sort: 2 before 10."""
    return sorted(names, key=lambda name: (_key(name), name))


def _key(name: str) -> list[tuple[int, str]]:
    parts = re.split(r"([0-9]+)", name)
    numbers = [part.lstrip("0") if i % 2 else part for i, part in enumerate(parts)]
    return [(len(part) if i % 2 else 0, part) for i, part in enumerate(numbers)]


def _within(outer: Size, shape: Size) -> Size:
    """The largest height and width of the proportions of `shape` that lie in `outer`."""
    scale = min(outer[0] / shape[0], outer[1] / shape[1])
    height, width = (
        min(most, max(1, round(side * scale))) for most, side in zip(outer, shape, strict=True)
    )
    return height, width


# Files, each an image ------------------------------------------------------------------------------------------------


def _in_folders(folder: Path, notes: Notices) -> tuple[list[tuple[Path, str]], list[str]]:
    """The files in class folders with the names of their classes; and the names of all class folders."""
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    for path in sorted(path for path in inside if not path.is_dir()):
        notes.add(_BESIDE, path.name)
    names = natural(path.name for path in inside if path.is_dir())
    if not names:
        raise UserError(
            f"{folder}: expected a folder for each class, or idx files; got neither; see --help for the forms"
        )
    listed = [
        (path, shown(name)) for name in names for path in _below(folder / name, folder, notes)
    ]
    return listed, [shown(name) for name in names]


def _below(folder: Path, root: Path, notes: Notices) -> list[Path]:
    """All files of a folder and its folders, but hidden ones."""
    found = []
    for here, inner, names in os.walk(folder, onerror=files.unreadable):
        for name in inner:
            if not name.startswith(".") and Path(here, name).is_symlink():
                notes.add(_LINKS, str(Path(here, name).relative_to(root)))
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [str(Path(here, name)) for name in names if not name.startswith(".")]
    return [Path(path) for path in natural(found)]


def _in_csv(path: Path, notes: Notices) -> tuple[list[tuple[Path, str]], list[str]]:
    """The files that a CSV names, beside itself or absolutely, with their labels; and all labels."""
    listed, columns = [], (0, 1)
    for number, row in _rows(path):
        if (
            not number
            and (header := [cell.strip().lower() for cell in row])
            and _PATHS & {*header}
            and _LABELS & {*header}
        ):
            columns = tuple(
                next(i for i, cell in enumerate(header) if cell in known)
                for known in (_PATHS, _LABELS)
            )
            continue
        if len(row) <= max(columns) or (columns == (0, 1) and len(row) > 2 and not listed):
            raise UserError(
                f"{path}:{number + 1}: expected a path and a label with a comma between, or a first line that names "
                f"such columns (path,label); got {len(row)} columns: {','.join(row)[:60]!r}; mend the line"
            )
        file, label = (row[column].strip() for column in columns)
        if file and label:
            listed.append((path.parent / file, shown(label)))
        else:
            notes.add(_UNLABELLED, f"line {number + 1}")
    return listed, natural({label for _, label in listed})


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines of a CSV that are not blank, numbered from 0 as in the file."""
    reader = csv.reader(files.lines(path), strict=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num - 1, row
    except csv.Error as error:
        raise UserError(
            f"{path}:{reader.line_num}: expected CSV; got: {error}; mend the line"
        ) from None


def _from_files(
    where: Path,
    listed: list[tuple[Path, str]],
    names: Sequence[str],
    wanted: Wanted,
    notes: Notices,
) -> Labelled:
    needs("PIL.Image", "vision")  # now, and not as the fault of every file
    listed = list(_known(listed, wanted, notes, where))
    size, pixels, used = wanted.size, torch.empty(0), []
    marks: list[int] = []
    named: list[str] = []
    others: list[str] = []
    for path, label in listed:
        name = os.path.relpath(path, where if where.is_dir() else where.parent)
        try:
            data = read_bytes(path)
            found = (
                fitted(data, wanted.channels, wanted.size, wanted.fit, name)
                if wanted.size
                else decode(data, wanted.channels, name=name)
            )
        except UserError as error:
            notes.unreadable(name, error, len(listed), where)
            continue
        if not used:
            size = (found.pixels.shape[1], found.pixels.shape[2])
            check_room(where, len(listed), wanted.channels, size)
            pixels = torch.empty(len(listed), wanted.channels, *size, dtype=torch.uint8)
        if found.pixels.shape != pixels.shape[1:]:
            raise UserError(
                f"{where}: expected images of one size, as {size} of the first; got {tuple(found.pixels.shape[1:])} "
                f"in {shown(name)}; give the height and width to bring them to with --size"
            )
        if found.animated:
            notes.add(_ANIMATED, name)
        if (found.height, found.width) != size:
            others.append(name)
        pixels[len(used)] = found.pixels
        used.append(label)
        named.append(name)
        marks.append(zlib.crc32(data))
    _note_sizes(others, len(used), wanted, notes)
    pixels = pixels[: len(used)]
    notes.disputed(pixels, used, named)
    return _labelled(where, pixels, used, names, torch.tensor(marks), wanted, notes)


def _known(
    listed: Iterable[tuple[Path, str]], wanted: Wanted, notes: Notices, where: Path
) -> Iterator[tuple[Path, str]]:
    """Those of classes that are known, if that is asked."""
    known, any_left = wanted.classes and set(wanted.classes), False
    for path, label in listed:
        if known and label not in known:
            notes.add(_UNKNOWN, f"{path.name} of {label}")
        else:
            any_left = True
            yield path, label
    if not any_left:
        raise _none_usable(where, wanted, notes)


def _note_sizes(others: Sequence[str], count: int, wanted: Wanted, notes: Notices) -> None:
    """Tell which, of so many images, had another size than is wanted."""
    if wanted.size is not None:
        notes.among(count, _FITTED[wanted.fit].format(*wanted.size), others)


def _labelled(
    where: Path,
    pixels: Tensor,
    used: Sequence[str],
    names: Sequence[str],
    marks: Tensor,
    wanted: Wanted,
    notes: Notices,
) -> Labelled:
    """The set of images whose classes are `used`; `names` are those that were looked for."""
    classes = list(wanted.classes or natural(set(used)))
    if wanted.classes is None:
        for name in natural(set(names) - set(used)):
            notes.add(_NOTHING, name)
    if len(classes) < 2:
        raise UserError(
            f"{where}: expected images of two classes or more; got only {classes}; add those of another"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    return Labelled(
        pixels, torch.tensor([numbers[name] for name in used]), classes, marks, notes.told()
    )


def _none_usable(where: Path, wanted: Wanted, notes: Notices) -> UserError:
    known = f" of the classes {', '.join(map(shown, wanted.classes[:8]))}" if wanted.classes else ""
    said = "".join(f"; {line}" for line in notes.told())
    return UserError(f"{where}: expected images{known}; got none{said}; name another place")


# Files of many images -------------------------------------------------------------------------------------------


def _from_idx(images: Path, wanted: Wanted, notes: Notices) -> Labelled:
    """The images of an idx file, with the labels of the file beside it."""
    labels = idx.read(idx.labels_of(images), idx.LABELS)
    pixels = idx.read(images, idx.IMAGES).unsqueeze(1)
    if len(labels) != len(pixels):
        raise UserError(
            f"{images}: expected as many labels as images; got {len(labels):,} and {len(pixels):,}; fetch both again"
        )
    rows = torch.arange(len(labels))
    used = [str(label) for label in labels.tolist()]
    if wanted.classes is not None:
        names = set(wanted.classes)
        known = torch.tensor([label in names for label in used])
        for row in rows[~known].tolist():
            notes.add(_UNKNOWN, f"number {row} of {used[row]}")
        rows = rows[known]
    if not len(rows):
        raise _none_usable(images, wanted, notes)
    used, pixels = (
        [used[row] for row in rows.tolist()],
        pixels if len(rows) == len(pixels) else pixels[rows],
    )
    named = [f"number {row}" for row in rows.tolist()]
    marks = torch.tensor([zlib.crc32(image.numpy().data) for image in pixels])
    if wanted.size is not None:
        check_room(images, len(pixels), 1, wanted.size)
        if pixels.shape[-2:] != wanted.size:
            _note_sizes(named, len(pixels), wanted, notes)
        pixels = torch.cat(
            [resize(some, wanted.size, wanted.fit) for some in pixels.split(_AT_ONCE)]
        )
    notes.disputed(pixels, used, named)
    return _labelled(
        images, pixels.expand(-1, wanted.channels, -1, -1), used, used, marks, wanted, notes
    )
