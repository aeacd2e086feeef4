"""Images annotated with boxes, as read from files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jarilab.data.images.notices import Notices

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels from the upper left corner."""

NO_NUMBERS = "boxes left out, which are not four finite numbers"
MISSING = "images left out, whose file is missing"
BROKEN = "annotations left out, which are not as they should be"

_INVERTED = "boxes left out, whose right or bottom side lies before the left or top one"
_NO_AREA = "boxes left out, which have no area"
_OUTSIDE = "boxes left out, which lie outside their image"
_CUT = "boxes that reach over the rim of their image, cut there"


@dataclass(frozen=True)
class AnnotatedObject:
    """One object: its class and its box (left, top, right, bottom) as written in the file."""

    name: str
    box: tuple[Any, Any, Any, Any]


@dataclass(frozen=True)
class AnnotatedImage:
    """An image file and its objects."""

    path: Path
    objects: tuple[AnnotatedObject, ...]


@dataclass(frozen=True)
class Annotations:
    """Images and the names of all classes, in the order of their numbers or sorted."""

    images: list[AnnotatedImage]
    classes: list[str]


def usable_boxes(
    objects: Sequence[AnnotatedObject], height: int, width: int, where: str, notices: Notices
) -> list[tuple[str, Box]]:
    """Return the classes and boxes of usable objects, boxes cut at the image's edge."""
    usable = []
    for annotated in objects:
        name = f"{annotated.name} in {where}"
        left, top, right, bottom = (number_of(side) for side in annotated.box)
        fault = _fault((left, top, right, bottom), height, width)
        if fault is not None:
            notices.add(fault, name)
            continue
        inside = max(0.0, left), max(0.0, top), min(float(width), right), min(float(height), bottom)
        if inside != (left, top, right, bottom):
            notices.add(_CUT, name)
        usable.append((annotated.name, inside))
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
    if right <= 0 or bottom <= 0 or left >= width or top >= height:
        return _OUTSIDE
    return None


def number_of(value: Any) -> float:
    """Return a value as a float, NaN if it is not a number."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
