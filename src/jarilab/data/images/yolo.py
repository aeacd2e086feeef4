"""Reading of YOLO folders: images, and a text file for each with `class cx cy w h` in shares of the image."""

from __future__ import annotations

import math
import re
from pathlib import Path

from jarilab.core.errors import UserError, printable
from jarilab.data.images.annotated import (
    MISSING,
    SECOND,
    AnnotatedImage,
    AnnotatedObject,
    Annotations,
    number_of,
)
from jarilab.data.images.listing import SUFFIXES, natural
from jarilab.data.images.notices import Notices
from jarilab.data.text import text_files

_PARTS = {"train": ("train",), "val": ("val", "valid")}
_CLASSES = "classes.txt"
_UNLABELLED = "images without a label file, taken as images without objects"
_NO_NAMES = "no data.yaml or classes.txt names the classes, so they are numbers"
_NO_LINE = "lines left out, which are not `class cx cy w h` or a polygon, `class x y x y x y ...`"
_NO_SHARES = "boxes left out, whose numbers are not shares of the image from 0 to 1"
_NO_CLASS = "boxes left out, of a class that has no name"


def yolo_folders(folder: Path, part: str | None) -> tuple[Path, Path] | None:
    """Return the folders of images and labels of a YOLO folder, or of a part of it that it has, or None.

    The parts are `images/train` and `labels/train`, or `train/images` and `train/labels`; `valid` is a name of `val`.
    """
    pairs = [(folder / "images", folder / "labels")]
    for name in _PARTS.get(part or "", ()):
        pairs.insert(0, (folder / name / "images", folder / name / "labels"))
        pairs.insert(0, (folder / "images" / name, folder / "labels" / name))
    return next((pair for pair in pairs if pair[0].is_dir() and pair[1].is_dir()), None)


def read_yolo(folder: Path, images: Path, labels: Path, notices: Notices) -> Annotations:
    """Read the images below one folder, and the label files at the same places below another.

    Classes are named by `data.yaml` or `classes.txt` in `folder`, in the folder above it, or in `labels`. Raises
    UserError for damaged names and text.
    """
    names = _class_names((folder, folder.parent, labels))
    files = (path for path in images.rglob("*") if path.suffix.lower() in SUFFIXES)
    paths = {str(path.relative_to(images)): path for path in files}
    texts = {path.relative_to(labels): path for path in labels.rglob("*.txt")}
    texts = {place: path for place, path in texts.items() if path.name != _CLASSES}
    found: dict[Path, AnnotatedImage] = {}
    for place in natural(paths):
        text = Path(place).with_suffix(".txt")
        if text in found:
            notices.add(SECOND, place)
            continue
        if text not in texts:
            notices.add(_UNLABELLED, place)
        found[text] = _image(paths[place], texts.get(text), names, notices)
    for place in natural(map(str, texts.keys() - found.keys())):
        notices.add(MISSING, place)
    if names is None:
        notices.add(_NO_NAMES, str(folder))
        names = natural({each.name for image in found.values() for each in image.objects})
    return Annotations(list(found.values()), names)


def _image(
    path: Path, text: Path | None, names: list[str] | None, notices: Notices
) -> AnnotatedImage:
    """Return an image with an object for each line of its label file."""
    lines = [] if text is None else [line for line in text_files.lines(text) if line.strip()]
    objects = []
    for line in lines:
        try:
            objects.append(_object(line, names))
        except ValueError as error:
            notices.add(str(error), f"{line.strip()[:40]!r} in {path.name}")
    return AnnotatedImage(path, tuple(objects), unreadable=len(lines) - len(objects), shares=True)


def _object(line: str, names: list[str] | None) -> AnnotatedObject:
    """Return the object of a line, its box in shares of the image. Raises ValueError with why it has none."""
    number, *rest = map(number_of, line.split())
    is_class = number.is_integer() and number >= 0
    if not is_class or len(rest) < 4 or len(rest) % 2 or not all(map(math.isfinite, rest)):
        raise ValueError(_NO_LINE)
    if max(rest) > 1.01:  # 1 and a rounding error
        raise ValueError(_NO_SHARES)
    if names is not None and number >= len(names):
        raise ValueError(_NO_CLASS)
    name = str(int(number)) if names is None else names[int(number)]
    if len(rest) > 4:
        xs, ys = rest[::2], rest[1::2]
        return AnnotatedObject(name, (min(xs), min(ys), max(xs), max(ys)))
    x, y, width, height = rest
    half, tall = width / 2, height / 2
    return AnnotatedObject(name, (x - half, y - tall, x + half, y + tall))


def _class_names(folders: tuple[Path, ...]) -> list[str] | None:
    """Return the names of classes from the first file that there is, or None. Raises UserError for an empty name."""
    known = [folder / name for folder in folders for name in ("data.yaml", "data.yml", _CLASSES)]
    for path in filter(Path.is_file, known):
        text = "\n".join(text_files.lines(path)).rstrip()
        names = text.split("\n") if path.name == _CLASSES else _of_yaml(text)
        if not all(name.strip() for name in names or [""]):
            raise UserError(
                f"{path}: expected a name for each class, one a line of {_CLASSES}, or `nc` names in a list at "
                f"`names:` in data.yaml; got {names[:3]}; write them so"
            )
        return [printable(name.strip()) for name in names]
    return None


def _of_yaml(text: str) -> list[str]:
    """Return the names of classes of a data.yaml, a list or numbered entries. Empty if they are unclear."""
    text = re.sub(r"(^|\s)#.*", "", text, flags=re.MULTILINE)
    block = re.search(r"^names\s*:(.*?)(?=^\w|\Z)", text, re.MULTILINE | re.DOTALL)
    count = re.search(r"^nc\s*:\s*(\d+)", text, re.MULTILINE)
    entry = r"""(?:-\s+)?(?:(\d+)\s*:\s*)?('[^']*'|"[^"]*"|[^\s,'"\[\]{}][^,\[\]{}\n]*)"""
    entries = re.findall(entry, block[1]) if block else []
    numbers = [int(number) for number, _ in entries if number]
    if numbers not in ([], list(range(len(entries)))) or (count and int(count[1]) != len(entries)):
        return []
    return [name.strip().strip("'\"") for _, name in entries]
