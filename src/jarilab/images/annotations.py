"""Boxes that people drew around things in images: COCO's JSON and Pascal VOC's XML.

What cannot be used is left out, counted and named in `Notes`. Boxes are in pixels, from the left and top rim.
"""

from __future__ import annotations

import codecs
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from jarilab.errors import UserError
from jarilab.images.files import read_bytes
from jarilab.images.labelled import natural
from jarilab.images.notices import Notices, shown

Box = tuple[float, float, float, float]

SETS = ("train", "val")
"""The lists of a VOC folder, ImageSets/Main/train.txt and val.txt: what to train on, what is held out."""

_NO_NUMBERS = "boxes left out, which are not four finite numbers"
_INVERTED = "boxes left out, whose right or bottom side lies before the left or top one"
_NO_AREA = "boxes left out, which have no area"
_OUTSIDE = "boxes left out, which lie outside their image"
_CUT = "boxes that reach over the rim of their image, cut there"
_CROWDS = "crowds left out, which are no single things"
_MISSING = "images left out, whose file is missing"
_NO_NAME = "images left out, whose name no file can have"
_ELSEWHERE = "images left out, whose file would lie outside the folder"
_NO_ANNOTATION = "images left out, for which there is no annotation"
_EMPTY = "images without any thing, kept as such"
_BROKEN = "annotations left out, which are not as they should be"
_SECOND = "second images of one annotation, left out"
_TWICE = "images listed again, left out"


@dataclass(frozen=True)
class Thing:
    """One object: the name of its class and its box, left, top, right, bottom, as somebody wrote it."""

    name: str
    box: tuple[Any, Any, Any, Any]


@dataclass(frozen=True)
class Annotated:
    """An image file and what is in it."""

    path: Path
    things: tuple[Thing, ...]


@dataclass(frozen=True)
class Annotations:
    """Images, and the names of all classes: in the order of their numbers, or sorted where they have none."""

    images: list[Annotated]
    classes: list[str]


def read_annotations(
    option: str, paths: Sequence[str], notes: Notices, *, part: str | None = None
) -> Annotations:
    """Of `coco.json images/`, of a VOC folder, or of a list of names in such a folder, ImageSets/Main/NAME.txt.

    part: of a VOC folder, the list to use if it is there. Raises UserError where nothing can be used.
    """
    given = [Path(path) for path in paths]
    if len(given) == 2:
        found = _coco(given[0], given[1], notes)
    elif len(given) == 1 and given[0].is_dir():
        listed = given[0] / "ImageSets" / "Main" / f"{part}.txt"
        found = _voc(given[0], listed if listed.is_file() else None, notes)
    elif (
        len(given) == 1 and given[0].suffix == ".txt" and given[0].parent.parent.name == "ImageSets"
    ):
        found = _voc(given[0].parent.parent.parent, given[0], notes)
    else:
        raise UserError(
            f"--{option} expects scenes, a COCO file and its folder of images, a VOC folder, or one of its lists; "
            f"got {' '.join(paths)!r}: write --{option} instances.json images/, --{option} voc/ or "
            f"--{option} voc/ImageSets/Main/train.txt"
        )
    if not found.images:
        raise UserError(
            f"{given[0]}: expected images with boxes; got none{_said(notes)}; name another place"
        )
    for image in found.images:
        if not image.things:
            notes.add(_EMPTY, image.path.name)
    return found


def has_lists(paths: Sequence[str]) -> bool:
    """Whether a VOC folder says itself what is held out."""
    return len(paths) == 1 and all(
        (Path(paths[0]) / "ImageSets" / "Main" / f"{part}.txt").is_file() for part in SETS
    )


def is_held_out(image: Annotated, share: float) -> bool:
    """About `share` of all images, by their names, so that an image stays where it is when others come."""
    return zlib.crc32(image.path.name.encode("utf-8", "surrogateescape")) < share * 2**32


def usable(
    things: Sequence[Thing], height: int, width: int, where: str, notes: Notices
) -> list[tuple[str, Box]]:
    """The things whose boxes can be in an image of this size, cut at its rim."""
    found = []
    for thing in things:
        numbers = [_number(side) for side in thing.box]
        left, top, right, bottom = numbers
        said = None
        if not all(math.isfinite(side) for side in numbers):
            said = _NO_NUMBERS
        elif right < left or bottom < top:
            said = _INVERTED
        elif right == left or bottom == top:
            said = _NO_AREA
        elif right <= 0 or bottom <= 0 or left >= width or top >= height:
            said = _OUTSIDE
        if said is not None:
            notes.add(said, f"{thing.name} in {where}")
            continue
        cut = max(0.0, left), max(0.0, top), min(float(width), right), min(float(height), bottom)
        if cut != (left, top, right, bottom):
            notes.add(_CUT, f"{thing.name} in {where}")
        found.append((thing.name, cut))
    return found


# COCO -----------------------------------------------------------------------------------------------------------------


def _coco(path: Path, folder: Path, notes: Notices) -> Annotations:
    if not folder.is_dir():
        raise UserError(
            f"{folder}: expected the folder of the images that {path} is about; got no folder"
        )
    held = _lists(path)
    names = _categories(path, held["categories"], notes)
    things: dict[Any, list[Thing]] = {}
    for annotation in held["annotations"]:
        _take(annotation, names, things, notes)
    images = _images(held["images"], folder, things, notes)
    listed = {
        image.get("id")
        for image in held["images"]
        if isinstance(image, dict) and _is_id(image.get("id"))
    }
    for number in [number for number in things if number not in listed]:
        notes.add(
            "boxes left out, of images that are not listed",
            f"image_id {number}",
            len(things[number]),
        )
    classes = [names[number] for number in sorted(names, key=lambda n: (isinstance(n, str), n))]
    return Annotations(images, list(dict.fromkeys(classes)))


def _lists(path: Path) -> dict[str, list[Any]]:
    """The three lists of a file in COCO's form. Raises UserError."""
    try:
        held = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: expected COCO's JSON; got what is none ({error}); export it again"
        ) from None
    parts = ("images", "annotations", "categories")
    if not isinstance(held, dict) or any(not isinstance(held.get(part), list) for part in parts):
        raise UserError(
            f"{path}: expected an object with the lists {', '.join(parts)}; export it as COCO instances"
        )
    return held


def _images(
    images: Sequence[Any], folder: Path, things: Mapping[Any, Sequence[Thing]], notes: Notices
) -> list[Annotated]:
    """Those that are there, once each, with their things."""
    found: dict[Any, Annotated] = {}
    for image in images:
        name, number = (
            (image.get("file_name"), image.get("id")) if isinstance(image, dict) else (None, None)
        )
        if not isinstance(name, str) or not _is_id(number):
            notes.add(_BROKEN, f"image {str(image)[:40]}")
        elif number in found:
            notes.add(_TWICE, name)
        elif (fault := _fault(folder, name)) is not None:
            notes.add(fault, name)
        else:
            found[number] = Annotated(folder / name, tuple(things.get(number, ())))
    return list(found.values())


def _categories(path: Path, listed: list[Any], notes: Notices) -> dict[Any, str]:
    """The names of classes by their ids. Raises UserError where one is empty or an id is given twice."""
    names: dict[Any, str] = {}
    for category in listed:
        if not (
            isinstance(category, dict)
            and isinstance(category.get("name"), str)
            and _is_id(category.get("id"))
        ):
            notes.add(_BROKEN, f"category {str(category)[:40]}")
            continue
        number, name = category["id"], shown(category["name"])
        if not name.strip():
            raise UserError(
                f"{path}: expected a name for category {shown(str(number))}; got {name!r}; give it one"
            )
        if number in names:
            raise UserError(
                f"{path}: expected an id for each category; got {shown(str(number))} for {names[number]!r} and for "
                f"{name!r}; give each its own"
            )
        names[number] = name
    return names


def _fault(folder: Path, name: str) -> str | None:
    """Why there is no image of this name in a folder; None where there is one."""
    try:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            return _ELSEWHERE
        return None if (folder / name).is_file() else _MISSING
    except (OSError, ValueError):  # too long, a NUL, or a surrogate alone
        return _NO_NAME


def _take(
    annotation: Any, names: dict[Any, str], things: dict[Any, list[Thing]], notes: Notices
) -> None:
    """Note one annotation under its image."""
    if not isinstance(annotation, dict) or not _is_id(annotation.get("image_id")):
        notes.add(_BROKEN, f"annotation {str(annotation)[:40]}")
        return
    where = f"annotation {annotation.get('id')}"
    category, box = annotation.get("category_id"), annotation.get("bbox")
    if annotation.get("iscrowd"):
        notes.add(_CROWDS, where)
    elif not _is_id(category) or category not in names:
        notes.add(
            "boxes left out, of a category that is not listed", f"{where}, category {category}"
        )
    elif not isinstance(box, list) or len(box) != 4:
        notes.add(_NO_NUMBERS, where)
    else:
        left, top, width, height = (_number(side) for side in box)
        corners = (left, top, left + width, top + height)
        things.setdefault(annotation["image_id"], []).append(Thing(names[category], corners))


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


# Pascal VOC -----------------------------------------------------------------------------------------------------------


def _voc(folder: Path, listed: Path | None, notes: Notices) -> Annotations:
    texts, photographs = folder / "Annotations", folder / "JPEGImages"
    if not texts.is_dir() or not photographs.is_dir():
        raise UserError(
            f"{folder}: expected the folders Annotations and JPEGImages of Pascal VOC; got others"
        )
    files: dict[str, list[Path]] = {}
    for path in sorted(path for path in photographs.iterdir() if not path.name.startswith(".")):
        files.setdefault(path.stem, []).append(path)
    annotated = {path.stem: path for path in texts.glob("*.xml") if not path.name.startswith(".")}
    names = natural(annotated.keys() | files.keys())
    if listed is not None:
        lines = listed.read_text(encoding="utf-8", errors="replace").splitlines()
        # A second column, in the lists of one class, says whether it is there.
        names = list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))
    found: list[Annotated] = []
    for name in names:
        if name not in annotated:
            notes.add(_NO_ANNOTATION, name)
        elif name not in files:
            notes.add(_MISSING, name)
        else:
            for other in files[name][1:]:
                notes.add(_SECOND, other.name)
            things = _things(annotated[name], notes)
            if things is not None:
                found.append(Annotated(files[name][0], things))
    classes = {thing.name for annotated_image in found for thing in annotated_image.things}
    return Annotations(found, natural(classes))


def _things(path: Path, notes: Notices) -> tuple[Thing, ...] | None:
    """Those of one XML file; None where it is none."""
    data = read_bytes(path)
    try:
        if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
            raise ValueError("it declares entities")
        if b"\0" in data or data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ValueError("it is UTF-16, in which such declarations would not be seen")
        objects = ElementTree.fromstring(data).findall("object")
    except (ElementTree.ParseError, ValueError, LookupError):
        notes.add(_BROKEN, path.name)
        return None
    found = []
    for item in objects:
        name = shown((item.findtext("name") or "").strip())
        if not name:
            notes.add("boxes left out, without the name of a class", path.name)
            continue
        left, top, right, bottom = (
            item.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")
        )
        found.append(Thing(name, (left, top, right, bottom)))
    return tuple(found)


def _number(value: Any) -> float:
    """Not a number where it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _said(notes: Notices) -> str:
    return "".join(f"; {line}" for line in notes.told())
