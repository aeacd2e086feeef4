"""Annotations in COCO's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.data.images.annotated import (
    BROKEN,
    MISSING,
    NO_NUMBERS,
    AnnotatedImage,
    AnnotatedObject,
    Annotations,
    number_of,
)
from jarilab.data.images.image_files import read_bytes
from jarilab.data.images.notices import Notices, printable

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
        elif (fault := _fault(folder, name)) is not None:
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


def _fault(folder: Path, name: str) -> str | None:
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
