"""Reading of annotated images: COCO's JSON or Pascal VOC's XML.

Unusable annotations are omitted, counted and named in `Notices`.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path, PureWindowsPath
from typing import Any
from xml.etree import ElementTree

from jarilab.core.errors import UserError, printable
from jarilab.data.images.annotated import (
    MISSING,
    NO_NUMBERS,
    SECOND,
    AnnotatedImage,
    AnnotatedObject,
    Annotations,
    Box,
    mask_box,
    number_of,
)
from jarilab.data.images.image_files import read_bytes
from jarilab.data.images.listing import natural, slashed
from jarilab.data.images.notices import Notices
from jarilab.data.images.resize import Size
from jarilab.data.images.yolo import read_yolo, yolo_folders
from jarilab.data.text import text_files

INCOMPLETE = "entries left out, which lack an id, a name or an image_id"
NOT_XML = "annotations left out, which are no complete XML"

SETS = ("train", "val")
"""The lists of a VOC folder for training and validation: ImageSets/Main/train.txt and val.txt."""

_EMPTY = "images without any thing, kept as such"
_IGNORED = "crowds and difficult objects, which count neither in the loss nor in AP"


def read_annotations(
    option: str, paths: Sequence[str], notices: Notices, *, part: str | None = None
) -> Annotations:
    """Read annotations from `coco.json images/`, a YOLO or VOC folder, or a list of VOC, ImageSets/Main/NAME.txt.

    part: the list of a VOC folder, or the part of a YOLO folder, to use if it exists. Raises UserError if nothing is
    usable.
    """
    if len(paths) == 2:
        annotations = read_coco(Path(paths[0]), Path(paths[1]), notices)
    elif len(paths) == 1 and Path(paths[0]).is_dir():
        folder = Path(paths[0])
        listed = _list(folder, part)
        if (folders := yolo_folders(folder, part)) is not None:
            annotations = read_yolo(folder, *folders, notices)
        else:
            annotations = read_voc(folder, listed if listed.is_file() else None, notices)
    elif len(paths) == 1 and Path(paths[0]).match("ImageSets/*/*.txt"):
        listed = Path(paths[0])
        annotations = read_voc(listed.parent.parent.parent, listed, notices)
    else:
        raise UserError(
            f"--{option} expects scenes, a COCO file and its folder of images, a VOC folder, or one of its lists, or a "
            f"YOLO folder; got {' '.join(paths)!r}: write --{option} instances.json images/, --{option} folder/ or "
            f"--{option} voc/ImageSets/Main/train.txt"
        )
    if not annotations.images:
        raise UserError(
            f"{Path(paths[0])}: expected images with boxes; got none{notices.tail()}; name another place"
        )
    for image in annotations.images:
        if not image.objects and not image.unreadable:
            notices.add(_EMPTY, image.path.name)
        for annotated in image.objects:
            if annotated.ignored:
                notices.add(_IGNORED, f"{annotated.name} in {image.path.name}")
    return annotations


def has_lists(paths: Sequence[str]) -> bool:
    """Whether a VOC or YOLO folder has its own training and validation lists."""
    if len(paths) != 1:
        return False
    folder = Path(paths[0])
    parts = [yolo_folders(folder, part) for part in SETS]
    if yolo_folders(folder, None) not in parts:
        return True
    return all(_list(folder, part).is_file() for part in SETS)


def _list(folder: Path, part: str | None) -> Path:
    return folder / "ImageSets" / "Main" / f"{part}.txt"


# Pascal VOC's XML ----------------------------------------------------------------------------------------------------


_NO_ANNOTATION = "images left out, for which there is no annotation"
_FROM_ZERO = "boxes that begin at 0, where Pascal VOC begins at 1 (files that count from 0 are read a pixel too large)"
_NO_CLASS = "boxes left out, without the name of a class"
_COLUMN = re.compile(r"\s+(-1|0|1)$")


def read_voc(folder: Path, listed: Path | None, notices: Notices) -> Annotations:
    """Read a VOC folder, or only the names in a list. Raises UserError for any other folder."""
    texts, photographs = folder / "Annotations", folder / "JPEGImages"
    if not texts.is_dir() or not photographs.is_dir():
        raise UserError(
            f"{folder}: expected the folders Annotations and JPEGImages of Pascal VOC, or images and labels of YOLO; "
            "got others; see --help for the forms"
        )
    files: dict[str, list[Path]] = {}
    for path in sorted(photographs.iterdir()):
        if not path.name.startswith("."):
            files.setdefault(path.stem, []).append(path)
    annotated = {
        path.stem: path
        for path in sorted(texts.iterdir())
        if path.suffix.lower() == ".xml" and not path.name.startswith(".")
    }
    known = annotated.keys() | files.keys()
    names = natural(known) if listed is None else _listed(listed, known)
    images: list[AnnotatedImage] = []
    for name in names:
        if name not in annotated:
            notices.add(_NO_ANNOTATION, name)
        elif name not in files:
            notices.add(MISSING, name)
        else:
            for other in files[name][1:]:
                notices.add(SECOND, other.name)
            image = _voc_image(files[name][0], annotated[name], notices)
            if image is not None:
                images.append(image)
    classes: set[str] = set()
    for image in images:
        classes |= {annotated_object.name for annotated_object in image.objects}
    return Annotations(images, natural(classes))


def _listed(path: Path, known: Set[str]) -> list[str]:
    """Return the names in a list, once each, as they are in `known`.

    A name may have blanks, and the ending of its file. The second column of lists of one class (1, -1, 0) is dropped.
    """
    names = []
    for line in text_files.lines(path):
        whole = line.strip()
        first = _COLUMN.sub("", whole)
        forms = [form for name in (whole, first) for form in (name, PureWindowsPath(name).stem)]
        if whole:
            names.append(next((form for form in forms if form in known), first))
    return list(dict.fromkeys(names))


def _voc_image(photograph: Path, path: Path, notices: Notices) -> AnnotatedImage | None:
    """Return an image with the objects of its XML file, or None if that is not usable."""
    data = read_bytes(path)
    fault = None
    # Entities can expand to gigabytes or name other files. A DOCTYPE alone is harmless: no parser here fetches it.
    if b"<!ENTITY" in data:
        fault = "annotations left out, which declare entities; remove those"
    elif b"\0" in data or data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        fault = "annotations left out, which are UTF-16, where entities would not be seen; save them as UTF-8"
    try:
        root = ElementTree.fromstring(b"" if fault else data)
    except (ElementTree.ParseError, ValueError, LookupError):
        notices.add(fault or NOT_XML, path.name)
        return None
    objects = []
    items = root.findall("object")
    for item in items:
        name = printable((item.findtext("name") or "").strip())
        if not name:
            notices.add(_NO_CLASS, path.name)
            continue
        ignored = (item.findtext("difficult") or "").strip() not in ("", "0")
        objects.append(AnnotatedObject(name, _voc_box(item, path.name, notices), ignored))
    sizes = _sizes(root.findtext("size/height"), root.findtext("size/width"))
    return AnnotatedImage(photograph, tuple(objects), sizes, len(items) - len(objects))


def _voc_box(item: ElementTree.Element, name: str, notices: Notices) -> Box:
    """Return the box of pixels that are counted from 1, the last included, as one that starts at 0 and ends behind."""
    left, top, right, bottom = (
        number_of(item.findtext(f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")
    )
    if 0 in (left, top):
        notices.add(_FROM_ZERO, name)
    return left - (left != 0), top - (top != 0), right, bottom


def _sizes(height: Any, width: Any) -> frozenset[Size]:
    """Return the size that an annotation gives, nothing if it gives none."""
    sides = number_of(height), number_of(width)
    if not all(0 < side < math.inf for side in sides):
        return frozenset()
    return frozenset([(int(sides[0]), int(sides[1]))])


# COCO's JSON ---------------------------------------------------------------------------------------------------------


_IGNORE = "objects marked `ignore`, which count as others, as in pycocotools; iscrowd leaves them out of loss and AP"
_NUMBER = re.compile(r"(0|-?[1-9][0-9]{0,14})(\.0+)?", re.ASCII)
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
    annotations: dict[Any, list[Any]] = {}
    for annotation in lists["annotations"]:
        number = _id_of(annotation, "image_id")
        if number is None:
            notices.add(INCOMPLETE, f"annotation {str(annotation)[:40]}")
        else:
            annotations.setdefault(number, []).append(annotation)
    files = _files(lists["images"], folder, notices)
    images = [
        _coco_image(folder, image, annotations.get(number, ()), names, notices)
        for number, image in files.items()
    ]
    listed = {_id_of(image) for image in lists["images"]}
    for number, some in annotations.items():
        if number not in listed:
            notices.add(_UNLISTED, f"image_id {number}", len(some))
    numbers = sorted(names, key=lambda number: (isinstance(number, str), number))
    classes = dict.fromkeys(names[number] for number in numbers)
    return Annotations(images, list(classes))


def _lists(path: Path) -> dict[str, list[Any]]:
    """Return the lists images, annotations and categories of a COCO file. Raises UserError."""
    data = read_bytes(path)
    try:
        lists = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: expected COCO's JSON; got a file that is no JSON ({error}); export it again"
        ) from None
    parts = ("images", "annotations", "categories")
    if not isinstance(lists, dict) or not all(isinstance(lists.get(part), list) for part in parts):
        raise UserError(
            f"{path}: expected an object with the lists {', '.join(parts)}; export it as COCO instances"
        )
    return lists


def _files(images: Sequence[Any], folder: Path, notices: Notices) -> dict[Any, dict[str, Any]]:
    """Return the records of existing images by their ids, once each."""
    records: dict[Any, dict[str, Any]] = {}
    for image in images:
        number = _id_of(image)
        name = None if number is None else image.get("file_name")
        if not isinstance(name, str):
            notices.add(INCOMPLETE, f"image {str(image)[:40]}")
        elif number in records:
            notices.add(_TWICE, name)
        elif (fault := _fault_of_name(folder, slashed(folder, name))) is not None:
            notices.add(fault, name)
        else:
            records[number] = image
    return records


def _categories(path: Path, listed: list[Any], notices: Notices) -> dict[Any, str]:
    """Return class names by id. Raises UserError for an empty name or a duplicate id."""
    names: dict[Any, str] = {}
    for category in listed:
        number = _id_of(category)
        if number is None or not isinstance(category.get("name"), str):
            notices.add(INCOMPLETE, f"category {str(category)[:40]}")
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


def _coco_image(
    folder: Path,
    image: Mapping[str, Any],
    annotations: Sequence[Any],
    names: Mapping[Any, str],
    notices: Notices,
) -> AnnotatedImage:
    sizes = set(_sizes(image.get("height"), image.get("width")))
    objects = []
    for annotation in annotations:
        where = f"annotation {annotation.get('id')}"
        category = _id_of(annotation, "category_id")
        box = _corners(annotation, sizes)
        if category not in names:
            notices.add(_UNKNOWN, f"{where}, category {annotation.get('category_id')}")
        elif box is None:
            notices.add(NO_NUMBERS, where)
        else:
            is_crowd = number_of(annotation.get("iscrowd") or 0) != 0
            if annotation.get("ignore") and not is_crowd:
                notices.add(_IGNORE, where)
            area = number_of(annotation.get("area"))
            objects.append(AnnotatedObject(names[category], box, is_crowd, area))
    path = folder / slashed(folder, image["file_name"])
    unreadable = len(annotations) - len(objects)
    return AnnotatedImage(path, tuple(objects), frozenset(sizes), unreadable)


def _corners(annotation: Mapping[str, Any], sizes: set[Size]) -> Box | None:
    """Return the box of an annotation, or the one around its mask if it has no box. Adds the size of the mask."""
    box = annotation.get("bbox")
    if box is None or box == []:
        try:
            corners, size = mask_box(annotation.get("segmentation"))
        except (ValueError, TypeError, KeyError, IndexError, OverflowError):
            return None
        if size is not None:
            sizes.add(size)
        return corners
    if not isinstance(box, list) or len(box) != 4:
        return None
    left, top, width, height = map(number_of, box)
    return left, top, left + width, top + height


def _id_of(record: Any, key: str = "id") -> int | str | None:
    """Return the id of a record, or None. 1, 1.0, "1" and "1.0" are one id: tables write any of them."""
    value = record.get(key) if isinstance(record, dict) else None
    if isinstance(value, str):
        return int(float(value)) if _NUMBER.fullmatch(value) else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
