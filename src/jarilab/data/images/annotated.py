"""Annotated images, which of their boxes are usable, and boxes around masks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jarilab.core.errors import UserError
from jarilab.data.images.notices import Notices
from jarilab.data.images.resize import Size

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels from the upper left corner."""

MISSING = "images left out, whose file is missing"
SECOND = "second images of one annotation, left out"
NO_NUMBERS = "boxes left out, which are not four finite numbers"

_INVERTED = "boxes left out, whose right or bottom side lies before the left or top one"
_NO_AREA = "boxes left out, which have no area"
_OUTSIDE = "boxes left out, which lie outside their image"
_SHARES = "boxes left out, which are shares from 0 to 1 and not pixels"
_CUT = "boxes that reach over the rim of their image, cut there"
_OTHER_SIZE = "images left out, of another width and height than annotated, after turning by EXIF's orientation"
_NONE_USABLE = "images left out, none of whose boxes is usable"


@dataclass(frozen=True)
class AnnotatedObject:
    """One object: its class and its box (left, top, right, bottom), not yet checked.

    ignored: a crowd or a difficult object. What a detector reports there is neither right nor wrong. area: as the file
    gives it, NaN if it does not.
    """

    name: str
    box: tuple[Any, Any, Any, Any]
    ignored: bool = False
    area: float = math.nan


@dataclass(frozen=True)
class AnnotatedImage:
    """An image file and its objects.

    sizes: every height and width that the annotation gives. unreadable: how many objects could not be read. shares:
    whether boxes are in shares of width and height, instead of pixels.
    """

    path: Path
    objects: tuple[AnnotatedObject, ...]
    sizes: frozenset[Size] = frozenset()
    unreadable: int = 0
    shares: bool = False

    def usable(self, size: Size, notices: Notices) -> list[AnnotatedObject] | None:
        """Return the usable objects, in pixels of the image of this size.

        None if the image must be left out: the annotation gives another size, or no object is usable of those that it
        has, so that the image would teach that nothing is there.
        """
        name, (height, width) = self.path.name, size
        others = [f"{w} x {h}" for h, w in sorted(self.sizes - {size})]
        if others:
            notices.add(_OTHER_SIZE, f"{name}: {others[0]} for {width} x {height}")
            return None
        objects = usable_boxes(self.in_pixels(size), height, width, name, notices)
        if not objects and (self.objects or self.unreadable):
            notices.add(_NONE_USABLE, name)
            return None
        return objects

    def in_pixels(self, size: Size) -> list[AnnotatedObject]:
        """Return all objects in pixels of the image of this size. Sides that are no numbers become NaN."""
        height, width = size if self.shares else (1, 1)
        objects = []
        for each in self.objects:
            left, top, right, bottom = map(number_of, each.box)
            box = left * width, top * height, right * width, bottom * height
            objects.append(replace(each, box=box))
        return objects


@dataclass(frozen=True)
class Annotations:
    """Images and the names of all classes, in the order of their numbers or sorted."""

    images: list[AnnotatedImage]
    classes: list[str]


def usable_boxes(
    objects: Sequence[AnnotatedObject], height: int, width: int, where: str, notices: Notices
) -> list[AnnotatedObject]:
    """Return the usable objects, boxes cut at the image's edge."""
    usable = []
    for annotated in objects:
        name = f"{annotated.name} in {where}"
        left, top, right, bottom = (number_of(side) for side in annotated.box)
        fault = _fault((left, top, right, bottom), height, width)
        if fault is not None:
            notices.add(fault, name)
            continue
        # Less is rounding, as of shares with four digits.
        if min(left, top, width - right, height - bottom) < -0.1:
            notices.add(_CUT, name)
        inside = max(0.0, left), max(0.0, top), min(float(width), right), min(float(height), bottom)
        usable.append(replace(annotated, box=inside))
    return usable


def _fault(box: Box, height: int, width: int) -> str | None:
    """Return why a box is unusable, or None."""
    left, top, right, bottom = box
    if not all(map(math.isfinite, box)):
        return NO_NUMBERS
    if right < left or bottom < top:
        return _INVERTED
    if right == left or bottom == top:
        return _NO_AREA
    if max(right, bottom) <= 2 < min(height, width) and not all(map(float.is_integer, box)):
        return _SHARES
    if right <= 0 or bottom <= 0 or left >= width or top >= height:
        return _OUTSIDE
    return None


def number_of(value: Any) -> float:
    """Return a value as a float, NaN if it is not a number."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def check_units(where: str, images: Sequence[tuple[AnnotatedImage, Size]]) -> None:
    """Raise UserError for annotations in shares in place of pixels, or with corners in place of width and height.

    images: with their real sizes. One box may look like either; nearly all boxes of a file do not.
    """
    rows = [
        (*annotated.box, *size[::-1], annotated.area)
        for image, size in images
        for annotated in (() if image.shares else image.in_pixels(size))
    ]
    boxes = np.array(rows, dtype=np.float64).reshape(-1, 7)
    boxes = boxes[np.isfinite(boxes[:, :4]).all(1)]
    low, high, size, area = np.split(boxes, [2, 4, 6], axis=1)
    if len(low) and (high <= 2).all() and (size > 4).all():
        raise UserError(
            f"{where}: expected boxes in pixels; got numbers from 0 to 1 only, as shares of the image; multiply them "
            "by its width and height"
        )
    sides = high - low
    like_corners = ((sides > low) & (sides <= size + 1)).all(1)
    products = np.stack([(sides - low).prod(1), sides.prod(1)])
    by_area = np.isclose(area[:, 0], products, rtol=1e-3)
    suspect = (high > size + 1).any(1) | (by_area[0] > by_area[1])
    if len(low) and like_corners.mean() >= 0.95 and suspect.mean() >= 0.05:
        raise UserError(
            f"{where}: expected boxes [left, top, width, height], as COCO has; got what looks like [left, top, right, "
            f"bottom]: otherwise, {suspect.sum():,} boxes reach over the rim or have another `area`; subtract left and "
            "top from the last two numbers"
        )


def is_held_out(image: AnnotatedImage, share: float) -> bool:
    """Whether an image is held out: about `share` of all, by a hash of its name, so new images move none."""
    name = image.path.name.encode("utf-8", "surrogateescape")
    return zlib.crc32(name) < share * 2**32


def mask_box(segmentation: Any) -> tuple[Box, Size | None]:
    """Return the box around a COCO mask, and the height and width that it gives, which polygons do not.

    Raises ValueError, TypeError, KeyError or OverflowError for anything else, and for damaged or empty masks.
    """
    if isinstance(segmentation, dict):
        return _box_of_runs(segmentation)
    nested = all(isinstance(part, list) for part in segmentation)
    parts = [_polygon_box(part) for part in (segmentation if nested else [segmentation])]
    lefts, tops, rights, bottoms = zip(*parts, strict=True)
    return (min(lefts), min(tops), max(rights), max(bottoms)), None


def _polygon_box(numbers: Any) -> Box:
    """Return the box around x, y, x, y, ... of three points or more. Raises ValueError for others."""
    points = np.array(numbers, dtype=np.float64).reshape(-1, 2)
    if len(points) < 3 or not np.isfinite(points).all():
        raise ValueError("no polygon")
    (left, top), (right, bottom) = points.min(0).tolist(), points.max(0).tolist()
    return left, top, right, bottom


def _box_of_runs(mask: dict[str, Any]) -> tuple[Box, Size]:
    """Return the box and the size of a run-length encoded mask, whose pixels stand column by column."""
    height, width = (int(side) for side in mask["size"])
    counts = mask["counts"]
    runs = np.array(_runs(counts) if isinstance(counts, str) else counts, dtype=np.int64)
    ends = runs.cumsum()
    if min(height, width) < 1 or runs.min() < 0 or ends[-1] != height * width:
        raise ValueError("runs that do not fill the mask")
    ones = slice(1, None, 2)  # the first run is of zeros
    some = runs[ones] > 0
    left, top = np.divmod((ends - runs)[ones][some], height)
    right, bottom = np.divmod(ends[ones][some] - 1, height)
    wraps = left < right  # into the next column
    top, bottom = np.where(wraps, 0, top), np.where(wraps, height - 1, bottom)
    low = float(left.min()), float(top.min())
    return (*low, float(right.max() + 1), float(bottom.max() + 1)), (height, width)


def _runs(text: str) -> list[int]:
    """Return the lengths of runs written as text (`rleToString` of pycocotools' maskApi.c).

    Each is of 5 bits a letter, and from the third on a difference.
    """
    runs: list[int] = []
    value = shift = 0
    for letter in text.encode():
        code = letter - 48
        if not 0 <= code < 64 or shift > 60:
            raise ValueError("no run")
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:
            value -= (code & 16) << (shift - 4)
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    if shift:
        raise ValueError("a run is cut")
    return runs
