"""Reading of annotated images: COCO's JSON or Pascal VOC's XML.

Unusable annotations are omitted, counted and named in `Notices`.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from jarilab.core.errors import UserError
from jarilab.data.images.annotated import (
    BROKEN,
    MISSING,
    AnnotatedImage,
    AnnotatedObject,
    Annotations,
)
from jarilab.data.images.coco import read_coco
from jarilab.data.images.image_files import read_bytes
from jarilab.data.images.listing import natural
from jarilab.data.images.notices import Notices, printable

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
