"""Reading of annotated images: COCO's JSON or Pascal VOC's XML.

Unusable annotations are omitted, counted and named in `Notices`.
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
