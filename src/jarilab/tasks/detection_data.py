"""Images with boxes, drawn or read, in the form that training and judging want, and COCO's average precision."""

from __future__ import annotations

import contextlib
import hashlib
import io
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import UInt8

from jarilab.boxes import to_cxcywh
from jarilab.captions.scenes import Plan, Scenes
from jarilab.errors import UserError, needs
from jarilab.images.annotations import (
    SETS,
    Annotated,
    Box,
    has_lists,
    is_held_out,
    read_annotations,
    usable,
)
from jarilab.images.files import LARGEST_SET, decode
from jarilab.images.notices import Notices, few
from jarilab.patches import Images
from jarilab.shapes import Float, Int, Tensor
from jarilab.tasks.detection_loss import Objects

_UNKNOWN = "boxes left out, of classes that the training data do not have"
_HELD_OUT = 0.1  # the share of photographs that is held out where nobody says which


class BoxedImages(ABC):
    """Images whose things are known. classes: their names. channels: of the pixels. notices: what a person should
    know of the reading."""

    classes: Sequence[str]
    channels: int
    notices: Sequence[str] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def pixels(self, indices: Int[Tensor, " B"]) -> Sequence[UInt8[Tensor, "C _ _"]]:
        """Those of these images, uint8."""

    @abstractmethod
    def objects(self, indices: Int[Tensor, " B"]) -> Objects:
        """What is in these images."""

    @abstractmethod
    def size(self, number: int) -> tuple[int, int]:
        """Height and width that the image has in its file."""

    @abstractmethod
    def describe(self) -> str:
        """In a few words."""

    @abstractmethod
    def fingerprint(self) -> str:
        """What the data are, so that a run is not continued on others."""


@final
class Drawn(BoxedImages):
    """The first `count` of an endless row of scenes."""

    def __init__(self, scenes: Scenes, count: int):
        self._scenes, self._count = scenes, count
        self.classes = [str(digit) for digit in range(10)]
        self.channels = scenes.channels
        self._last: tuple[Tensor, Plan] | None = None

    def __len__(self) -> int:
        return self._count

    def _plan(self, indices: Int[Tensor, " B"]) -> Plan:
        if self._last is None or not torch.equal(self._last[0], indices):
            self._last = indices, self._scenes.plan(indices)
        return self._last[1]

    def pixels(self, indices: Int[Tensor, " B"]) -> Sequence[UInt8[Tensor, "C _ _"]]:
        return list(self._scenes.draw(self._plan(indices)))

    def objects(self, indices: Int[Tensor, " B"]) -> Objects:
        plan = self._plan(indices)
        return Objects(
            plan.labels * plan.real, to_cxcywh(plan.boxes) / self._scenes.world.canvas, plan.real
        )

    def size(self, number: int) -> tuple[int, int]:
        return self._scenes.world.canvas, self._scenes.world.canvas

    def describe(self) -> str:
        return f"{self._count:,} scenes of {self._scenes.describe()}"

    def fingerprint(self) -> str:
        return f"{self.describe()}; {self._scenes.fingerprint()}"


@dataclass(frozen=True, eq=False)
class _Photograph:
    """One, scaled down; size: height and width in the file. boxes: shares of the image."""

    name: str
    pixels: UInt8[Tensor, "C H W"]
    size: tuple[int, int]
    boxes: Float[Tensor, "N 4"]
    labels: Int[Tensor, " N"]
    held_out: bool


@final
class Photographs(BoxedImages):
    """Annotated images, held in memory as bytes."""

    channels = 3

    def __init__(
        self, images: Sequence[_Photograph], classes: Sequence[str], notices: Sequence[str]
    ):
        self._images, self.classes, self.notices = list(images), list(classes), list(notices)

    @staticmethod
    def read(
        option: str,
        paths: Sequence[str],
        longest: int,
        classes: Sequence[str] | None,
        *,
        part: str | None = None,
    ) -> Photographs:
        """Those of files as `read_annotations` wants them, the longer side scaled down to `longest`. classes: those of
        the training data, where other data are read. Raises UserError where nothing can be used, or too much is there.
        """
        notes = Notices()
        annotations = read_annotations(option, paths, notes, part=part)
        names = list(classes or annotations.classes)
        numbers = {name: number for number, name in enumerate(names)}
        found: list[_Photograph] = []
        taken = 0
        for annotated in annotations.images:
            try:
                found.append(_photograph(annotated, longest, numbers, notes))
            except UserError as error:
                notes.unreadable(
                    annotated.path.name, error, len(annotations.images), Path(paths[-1])
                )
                continue
            taken += found[-1].pixels.numel()
            if taken > LARGEST_SET:
                raise UserError(
                    f"{paths[-1]}: {len(annotations.images):,} images of {longest} pixels take more than "
                    f"{LARGEST_SET:,} bytes; use a smaller task.size, or fewer of them"
                )
        if not any(len(photograph.labels) for photograph in found):
            said = "".join(f"; {line}" for line in notes.told())
            raise UserError(
                f"{paths[0]}: expected things with boxes; got none that can be used{said}; mend them"
            )
        return Photographs(found, names, notes.told())

    def split(self, paths: Sequence[str], longest: int) -> tuple[Photographs, Photographs]:
        """What to train on and what to hold out: as a VOC folder's lists say, or by the names of the files. paths,
        longest: those it was read with. Raises UserError where one side would be empty."""
        if has_lists(paths):
            return self, Photographs.read("train", paths, longest, self.classes, part=SETS[1])
        parts = [[p for p in self._images if p.held_out is held_out] for held_out in (False, True)]
        if not all(any(len(p.labels) for p in part) for part in parts):
            raise UserError(
                f"{len(self)} images are too few to hold some out; give held-out images with --valid"
            )
        told = [*self.notices, *few(len(parts[1]), len(self))]
        train, held_out = (Photographs(part, self.classes, told) for part in parts)
        return train, held_out

    def __len__(self) -> int:
        return len(self._images)

    def pixels(self, indices: Int[Tensor, " B"]) -> Sequence[UInt8[Tensor, "C _ _"]]:
        return [self._images[i].pixels for i in indices.tolist()]

    def objects(self, indices: Int[Tensor, " B"]) -> Objects:
        chosen = [self._images[i] for i in indices.tolist()]
        most = max(1, max(len(photograph.labels) for photograph in chosen))
        labels, boxes = (
            torch.zeros(len(chosen), most, dtype=torch.int64),
            torch.zeros(len(chosen), most, 4),
        )
        real = torch.zeros(len(chosen), most, dtype=torch.bool)
        for row, photograph in enumerate(chosen):
            count = len(photograph.labels)
            labels[row, :count], boxes[row, :count], real[row, :count] = (
                photograph.labels,
                photograph.boxes,
                True,
            )
        return Objects(labels, boxes, real)

    def size(self, number: int) -> tuple[int, int]:
        return self._images[number].size

    def crowded(self, queries: int) -> dict[str, int]:
        """The names of images with more things than `queries`, and how many these are."""
        return {p.name: len(p.labels) for p in self._images if len(p.labels) > queries}

    def describe(self) -> str:
        things = sum(len(photograph.labels) for photograph in self._images)
        return f"{len(self):,} images with {things:,} things of {len(self.classes)} classes"

    def fingerprint(self) -> str:
        whole = hashlib.sha256(repr(self.classes).encode("utf-8", "backslashreplace"))
        for p in self._images:
            marks = torch.tensor(
                [zlib.crc32(p.pixels.numpy().tobytes()), *p.size, *p.labels.tolist()]
            )
            whole.update(marks.numpy().tobytes() + p.boxes.numpy().tobytes())
        return f"sha256 {whole.hexdigest()}"


def _photograph(
    annotated: Annotated, longest: int, numbers: Mapping[str, int], notes: Notices
) -> _Photograph:
    """One, with those of its things whose class has a number. Raises UserError where it cannot be read."""
    where = annotated.path.name
    image = decode(annotated.path, Photographs.channels, longest=longest)
    things = usable(annotated.things, image.height, image.width, where, notes)
    for name, _ in things:
        if name not in numbers:
            notes.add(_UNKNOWN, f"{name} in {where}")
    known = [(numbers[name], box) for name, box in things if name in numbers]
    boxes, labels = _shares(known, image.height, image.width)
    held_out = is_held_out(annotated, _HELD_OUT)
    return _Photograph(where, image.pixels, (image.height, image.width), boxes, labels, held_out)


def together(pixels: Sequence[UInt8[Tensor, "C _ _"]]) -> Images:
    """Images in one tensor of numbers from 0 to 255, smaller ones padded below and to the right."""
    height, width = (max(one.shape[axis] for one in pixels) for axis in (1, 2))
    if all(one.shape[1:] == (height, width) for one in pixels):
        return Images(torch.stack(list(pixels)).float())
    whole = torch.zeros(len(pixels), pixels[0].shape[0], height, width)
    keep = torch.zeros(len(pixels), height, width, dtype=torch.bool)
    for row, one in enumerate(pixels):
        whole[row, :, : one.shape[1], : one.shape[2]] = one
        keep[row, : one.shape[1], : one.shape[2]] = True
    return Images(whole, keep)


def _shares(things: Sequence[tuple[int, Box]], height: int, width: int) -> tuple[Tensor, Tensor]:
    """Boxes as shares of the image, and the numbers of their classes."""
    boxes = torch.tensor([box for _, box in things], dtype=torch.float64).view(-1, 4)
    shares = to_cxcywh(boxes / torch.tensor([width, height] * 2))
    return shares.float(), torch.tensor([number for number, _ in things], dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Boxed:
    """Boxes in one image: left, top, right, bottom in its pixels `(N, 4)`, classes `(N,)`, and how sure they are."""

    boxes: Float[Tensor, "N 4"]
    labels: Int[Tensor, " N"]
    probabilities: Float[Tensor, " N"] | None = None


def average_precision(
    found: Sequence[Boxed], there: Sequence[Boxed], classes: int
) -> dict[str, float]:
    """COCO's `ap`, the mean over classes and over IoU 0.50, 0.55 ... 0.95, and `ap50` and `ap75`, by pycocotools.

    found: everything a model says, however unsure, of the same images as `there`. 0 where there is no object at all.
    """
    coco: Any = needs("pycocotools.coco", "vision").COCO
    judge: Any = needs("pycocotools.cocoeval", "vision").COCOeval
    truth = _as_coco(there)
    if not truth:
        return {"ap": 0.0, "ap50": 0.0, "ap75": 0.0}
    with contextlib.redirect_stdout(
        io.StringIO()
    ):  # it tells its progress to whoever reads standard output
        right, said = coco(), coco()
        images = [{"id": number + 1} for number in range(len(there))]
        categories = [{"id": number} for number in range(classes)]
        for held, annotations in ((right, truth), (said, _as_coco(found))):
            held.dataset = {"images": images, "categories": categories, "annotations": annotations}
            held.createIndex()
        judged = judge(right, said, "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return {name: max(0.0, float(judged.stats[i])) for i, name in enumerate(("ap", "ap50", "ap75"))}


def _as_coco(images: Sequence[Boxed]) -> list[dict[str, Any]]:
    annotations = []
    for number, boxed in enumerate(images):
        probabilities = (
            [1.0] * len(boxed.labels)
            if boxed.probabilities is None
            else boxed.probabilities.tolist()
        )
        for box, label, probability in zip(
            boxed.boxes.tolist(), boxed.labels.tolist(), probabilities, strict=True
        ):
            left, top, right, bottom = box
            annotation = {
                "id": len(annotations) + 1,
                "image_id": number + 1,
                "category_id": label,
                "iscrowd": 0,
            }
            annotation |= {"bbox": [left, top, right - left, bottom - top], "score": probability}
            annotations.append(annotation | {"area": (right - left) * (bottom - top)})
    return annotations
