"""Boxes that people drew around objects in images: COCO's JSON or Pascal VOC's XML, whichever is given.

What cannot be used is left out, counted and named in `Notices`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

from jarilab.core.errors import UserError
from jarilab.data.images.annotated import AnnotatedImage, Annotations
from jarilab.data.images.coco import read_coco
from jarilab.data.images.notices import Notices
from jarilab.data.images.voc import read_voc

SETS = ("train", "val")
"""The lists of a VOC folder, ImageSets/Main/train.txt and val.txt: what to train on, what is held out."""

_EMPTY = "images without any thing, kept as such"


def read_annotations(
    option: str, paths: Sequence[str], notices: Notices, *, part: str | None = None
) -> Annotations:
    """Of `coco.json images/`, of a VOC folder, or of a list of names in such a folder, ImageSets/Main/NAME.txt.

    part: of a VOC folder, the list to use if it is there. Raises UserError where nothing can be used.
    """
    if len(paths) == 2:
        found = read_coco(Path(paths[0]), Path(paths[1]), notices)
    elif len(paths) == 1 and Path(paths[0]).is_dir():
        folder = Path(paths[0])
        listed = _list(folder, part)
        found = read_voc(folder, listed if listed.is_file() else None, notices)
    elif len(paths) == 1 and _is_list(Path(paths[0])):
        listed = Path(paths[0])
        found = read_voc(listed.parent.parent.parent, listed, notices)
    else:
        raise UserError(
            f"--{option} expects scenes, a COCO file and its folder of images, a VOC folder, or one of its lists; "
            f"got {' '.join(paths)!r}: write --{option} instances.json images/, --{option} voc/ or "
            f"--{option} voc/ImageSets/Main/train.txt"
        )
    if not found.images:
        raise UserError(
            f"{Path(paths[0])}: expected images with boxes; got none{notices.tail()}; name another place"
        )
    for image in found.images:
        if not image.objects:
            notices.add(_EMPTY, image.path.name)
    return found


def has_lists(paths: Sequence[str]) -> bool:
    """Whether a VOC folder says itself what is held out."""
    return len(paths) == 1 and all(_list(Path(paths[0]), part).is_file() for part in SETS)


def _list(folder: Path, part: str | None) -> Path:
    return folder / "ImageSets" / "Main" / f"{part}.txt"


def _is_list(path: Path) -> bool:
    return path.suffix == ".txt" and path.parent.parent.name == "ImageSets"


def is_held_out(image: AnnotatedImage, share: float) -> bool:
    """About `share` of all images, by their names, so that an image stays where it is when others come."""
    name = image.path.name.encode("utf-8", "surrogateescape")
    return zlib.crc32(name) < share * 2**32
