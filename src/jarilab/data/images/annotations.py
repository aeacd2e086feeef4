"""Reading of annotated images: COCO's JSON or Pascal VOC's XML.

Unusable annotations are omitted, counted and named in `Notices`.
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

from jarilab.core.errors import UserError, printable
from jarilab.data.images.image_files import read_bytes
from jarilab.data.images.listing import natural
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


SETS = ("train", "val")
"""The lists of a VOC folder for training and validation: ImageSets/Main/train.txt and val.txt."""

_EMPTY = "images without any thing, kept as such"


def read_annotations(
    option: str, paths: Sequence[str], notices: Notices, *, part: str | None = None
) -> Annotations:
    """Read annotations from `coco.json images/`, a VOC folder, or one of its lists, ImageSets/Main/NAME.txt.

    part: the list of a VOC folder to use, if it exists. Raises UserError if nothing is usable.
    """
    if len(paths) == 2:
        annotations = read_coco(Path(paths[0]), Path(paths[1]), notices)
    elif len(paths) == 1 and Path(paths[0]).is_dir():
        folder = Path(paths[0])
        listed = _list(folder, part)
        annotations = read_voc(folder, listed if listed.is_file() else None, notices)
    elif len(paths) == 1 and Path(paths[0]).match("ImageSets/*/*.txt"):
        listed = Path(paths[0])
        annotations = read_voc(listed.parent.parent.parent, listed, notices)
    else:
        raise UserError(
            f"--{option} expects scenes, a COCO file and its folder of images, a VOC folder, or one of its lists; "
            f"got {' '.join(paths)!r}: write --{option} instances.json images/, --{option} voc/ or "
            f"--{option} voc/ImageSets/Main/train.txt"
        )
    if not annotations.images:
        raise UserError(
            f"{Path(paths[0])}: expected images with boxes; got none{notices.tail()}; name another place"
        )
    for image in annotations.images:
        if not image.objects:
            notices.add(_EMPTY, image.path.name)
    return annotations


def has_lists(paths: Sequence[str]) -> bool:
    """Whether a VOC folder has its own training and validation lists."""
    return len(paths) == 1 and all(_list(Path(paths[0]), part).is_file() for part in SETS)


def _list(folder: Path, part: str | None) -> Path:
    return folder / "ImageSets" / "Main" / f"{part}.txt"


def is_held_out(image: AnnotatedImage, share: float) -> bool:
    """Whether an image is held out: about `share` of all, by a hash of its name, so new images move none."""
    name = image.path.name.encode("utf-8", "surrogateescape")
    return zlib.crc32(name) < share * 2**32


# Pascal VOC's XML ----------------------------------------------------------------------------------------------------


_NO_ANNOTATION = "images left out, for which there is no annotation"
_SECOND = "second images of one annotation, left out"
_NO_CLASS = "boxes left out, without the name of a class"


def read_voc(folder: Path, listed: Path | None, notices: Notices) -> Annotations:
    """Read a VOC folder, or only the names in a list. Raises UserError for any other folder."""
    texts, photographs = folder / "Annotations", folder / "JPEGImages"
    if not texts.is_dir() or not photographs.is_dir():
        raise UserError(
            f"{folder}: expected the folders Annotations and JPEGImages of Pascal VOC; got others"
        )
    files: dict[str, list[Path]] = {}
    for path in sorted(photographs.iterdir()):
        if not path.name.startswith("."):
            files.setdefault(path.stem, []).append(path)
    annotated = {path.stem: path for path in texts.glob("*.xml") if not path.name.startswith(".")}
    names = natural(annotated.keys() | files.keys()) if listed is None else _listed(listed)
    images: list[AnnotatedImage] = []
    for name in names:
        if name not in annotated:
            notices.add(_NO_ANNOTATION, name)
        elif name not in files:
            notices.add(MISSING, name)
        else:
            for other in files[name][1:]:
                notices.add(_SECOND, other.name)
            objects = _objects(annotated[name], notices)
            if objects is not None:
                images.append(AnnotatedImage(files[name][0], objects))
    classes: set[str] = set()
    for image in images:
        classes |= {annotated_object.name for annotated_object in image.objects}
    return Annotations(images, natural(classes))


def _listed(path: Path) -> list[str]:
    """Return the names in a list, once each. A second column, in lists of one class, is ignored."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def _objects(path: Path, notices: Notices) -> tuple[AnnotatedObject, ...] | None:
    """Return the objects of an XML file, or None if it is not usable."""
    data = read_bytes(path)
    try:
        # Entities can expand to gigabytes or name other files.
        if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
            raise ValueError("it declares entities")
        if b"\0" in data or data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ValueError("it is UTF-16, in which such declarations would not be seen")
        items = ElementTree.fromstring(data).findall("object")
    except (ElementTree.ParseError, ValueError, LookupError):
        notices.add(BROKEN, path.name)
        return None
    objects = []
    for item in items:
        name = printable((item.findtext("name") or "").strip())
        if not name:
            notices.add(_NO_CLASS, path.name)
            continue
        left, top = item.findtext("bndbox/xmin"), item.findtext("bndbox/ymin")
        right, bottom = item.findtext("bndbox/xmax"), item.findtext("bndbox/ymax")
        objects.append(AnnotatedObject(name, (left, top, right, bottom)))
    return tuple(objects)


# COCO's JSON ---------------------------------------------------------------------------------------------------------


_CROWDS = "crowds left out, which are no single things"
_NO_NAME = "images left out, whose name no file can have"
_ELSEWHERE = "images left out, whose file would lie outside the folder"
_TWICE = "images listed again, left out"
_UNLISTED = "boxes left out, of images that are not listed"
_UNKNOWN = "boxes left out, of a category that is not listed"


def read_coco(path: Path, folder: Path, notices: Notices) -> Annotations:
    """Read a COCO file and its folder of images. Raises UserError for other files."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: expected the folder of the images that {path} is about; got no folder"
        )
    lists = _lists(path)
    names = _categories(path, lists["categories"], notices)
    objects: dict[Any, list[AnnotatedObject]] = {}
    for annotation in lists["annotations"]:
        _add_annotation(annotation, names, objects, notices)
    images = _images(lists["images"], folder, objects, notices)
    listed = {_id_of(image) for image in lists["images"]}
    for number, of_image in objects.items():
        if number not in listed:
            notices.add(_UNLISTED, f"image_id {number}", len(of_image))
    numbers = sorted(names, key=lambda number: (isinstance(number, str), number))
    classes = dict.fromkeys(names[number] for number in numbers)
    return Annotations(images, list(classes))


def _lists(path: Path) -> dict[str, list[Any]]:
    """Return the lists images, annotations and categories of a COCO file. Raises UserError."""
    try:
        lists = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: expected COCO's JSON; got what is none ({error}); export it again"
        ) from None
    parts = ("images", "annotations", "categories")
    if not isinstance(lists, dict) or not all(isinstance(lists.get(part), list) for part in parts):
        raise UserError(
            f"{path}: expected an object with the lists {', '.join(parts)}; export it as COCO instances"
        )
    return lists


def _images(
    images: Sequence[Any],
    folder: Path,
    objects: Mapping[Any, Sequence[AnnotatedObject]],
    notices: Notices,
) -> list[AnnotatedImage]:
    """Return the existing images, once each, with their objects."""
    images_of: dict[Any, AnnotatedImage] = {}
    for image in images:
        number = _id_of(image)
        name = None if number is None else image.get("file_name")
        if not isinstance(name, str):
            notices.add(BROKEN, f"image {str(image)[:40]}")
        elif number in images_of:
            notices.add(_TWICE, name)
        elif (fault := _fault_of_name(folder, name)) is not None:
            notices.add(fault, name)
        else:
            images_of[number] = AnnotatedImage(folder / name, tuple(objects.get(number, ())))
    return list(images_of.values())


def _categories(path: Path, listed: list[Any], notices: Notices) -> dict[Any, str]:
    """Return class names by id. Raises UserError for an empty name or a duplicate id."""
    names: dict[Any, str] = {}
    for category in listed:
        number = _id_of(category)
        if number is None or not isinstance(category.get("name"), str):
            notices.add(BROKEN, f"category {str(category)[:40]}")
            continue
        name = printable(category["name"])
        if not name.strip():
            raise UserError(
                f"{path}: expected a name for category {printable(str(number))}; got {name!r}; give it one"
            )
        if number in names:
            raise UserError(
                f"{path}: expected an id for each category; got {printable(str(number))} for {names[number]!r} and for "
                f"{name!r}; give each its own"
            )
        names[number] = name
    return names


def _fault_of_name(folder: Path, name: str) -> str | None:
    """Return why a folder has no image of this name, or None."""
    try:
        # A COCO file may come from anywhere, and must not read files outside the folder.
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            return _ELSEWHERE
        return None if (folder / name).is_file() else MISSING
    except (OSError, ValueError):  # too long, a NUL, or a surrogate alone
        return _NO_NAME


def _add_annotation(
    annotation: Any,
    names: dict[Any, str],
    objects: dict[Any, list[AnnotatedObject]],
    notices: Notices,
) -> None:
    """Add one annotation to the objects of its image."""
    image = _id_of(annotation, "image_id")
    if image is None:
        notices.add(BROKEN, f"annotation {str(annotation)[:40]}")
        return
    where = f"annotation {annotation.get('id')}"
    category, box = annotation.get("category_id"), annotation.get("bbox")
    if annotation.get("iscrowd"):
        notices.add(_CROWDS, where)
    elif not _is_id(category) or category not in names:
        notices.add(_UNKNOWN, f"{where}, category {category}")
    elif not isinstance(box, list) or len(box) != 4:
        notices.add(NO_NUMBERS, where)
    else:
        left, top, width, height = (number_of(side) for side in box)
        corners = (left, top, left + width, top + height)
        objects.setdefault(image, []).append(AnnotatedObject(names[category], corners))


def _id_of(record: Any, key: str = "id") -> int | str | None:
    """Return the id of a record, or None."""
    value = record.get(key) if isinstance(record, dict) else None
    return value if _is_id(value) else None


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)
