"""Images with boxes, drawn or read, for training and measuring."""

from __future__ import annotations

import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from jaxtyping import UInt8
from torch.nn.utils.rnn import pad_sequence

from jarilab.core.errors import UserError, counted
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.data.captions.scenes import Plan, Scenes
from jarilab.data.images.alike import MAX_IMAGES, Thumbnails
from jarilab.data.images.annotated import AnnotatedImage, AnnotatedObject, check_units, is_held_out
from jarilab.data.images.annotations import SETS, has_lists, read_annotations
from jarilab.data.images.augment import CropWindows
from jarilab.data.images.image_files import MAX_DATASET_BYTES, Decoded, decode
from jarilab.data.images.notices import Notices, few_held_out
from jarilab.data.images.resize import Size
from jarilab.positions.boxes import to_cxcywh
from jarilab.positions.patches import Images
from jarilab.tasks.base import evenly
from jarilab.tasks.detection_loss import Objects

_UNKNOWN = "boxes left out, of classes that the training data do not have"
_HELD_OUT = 0.1  # fraction of photographs held out if the data have no lists


class BoxedImages(ABC):
    """Images with known objects. classes: their names. channels: of the pixels. notices: messages about reading."""

    classes: Sequence[str]
    channels: int
    notices: Sequence[str] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def pixels(self, indices: Int[Tensor, " B"]) -> Sequence[UInt8[Tensor, "C _ _"]]:
        """Return the pixels of these images, uint8."""

    @abstractmethod
    def objects(self, indices: Int[Tensor, " B"]) -> Objects:
        """Return the objects of these images."""

    @final
    def thumbnails(self) -> Thumbnails:
        """Return the images as they are compared with others."""
        numbers = torch.arange(min(len(self), MAX_IMAGES))
        images = (self.pixels(number.unsqueeze(0))[0] for number in numbers)
        return Thumbnails.of(images, [self.name(number) for number in numbers.tolist()])

    def name(self, number: int) -> str:
        """Return what an image is called."""
        return f"number {number}"

    @abstractmethod
    def size(self, number: int) -> tuple[int, int]:
        """Return the image's height and width in its file."""

    def crowded(self, queries: int) -> dict[str, int]:
        """Return the names of images with more objects than `queries`, and their numbers of objects."""
        return {}

    @abstractmethod
    def describe(self) -> str:
        """Return a short description."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return an identifier of the data, so that a run does not continue on others."""


@final
class SceneImages(BoxedImages):
    """The first `count` scenes of an endless sequence."""

    def __init__(self, scenes: Scenes, count: int):
        self._scenes, self._count = scenes, count
        self.classes = [str(digit) for digit in range(10)]
        self.channels = scenes.channels
        self._last: tuple[Tensor, Plan] | None = None

    def __len__(self) -> int:
        return self._count

    def _plan(self, indices: Int[Tensor, " B"]) -> Plan:
        # A batch asks for the pixels and the objects of the same scenes.
        if self._last is None or not torch.equal(self._last[0], indices):
            self._last = indices, self._scenes.plan(indices)
        return self._last[1]

    def pixels(self, indices: Int[Tensor, " B"]) -> Sequence[UInt8[Tensor, "C _ _"]]:
        return list(self._scenes.draw(self._plan(indices)))

    def objects(self, indices: Int[Tensor, " B"]) -> Objects:
        plan = self._plan(indices)
        labels = plan.labels * plan.real
        boxes = to_cxcywh(plan.boxes) / self._scenes.world.canvas
        return Objects(labels, boxes, plan.real)

    def size(self, number: int) -> tuple[int, int]:
        canvas = self._scenes.world.canvas
        return canvas, canvas

    def describe(self) -> str:
        return f"{self._count:,} scenes of {self._scenes.describe()}"

    def fingerprint(self) -> str:
        return f"{self.describe()}; {self._scenes.fingerprint()}"


@dataclass(frozen=True, eq=False)
class _Photograph:
    """A scaled photograph. size: height and width in the file. boxes: in shares of the image, ignored ones last."""

    name: str
    pixels: UInt8[Tensor, "C H W"]
    size: tuple[int, int]
    boxes: Float[Tensor, "N 4"]
    labels: Int[Tensor, " N"]
    ignored: Bool[Tensor, " N"]
    held_out: bool

    @property
    def n_objects(self) -> int:
        return int((~self.ignored).sum())


@final
class Photographs(BoxedImages):
    """Annotated images in memory as uint8."""

    channels = 3

    def __init__(
        self, images: Sequence[_Photograph], classes: Sequence[str], notices: Sequence[str]
    ):
        self._images = list(images)
        self.classes = list(classes)
        self.notices = list(notices)

    @staticmethod
    def read(
        option: str,
        paths: Sequence[str],
        longest: int,
        classes: Sequence[str] | None,
        *,
        part: str | None = None,
    ) -> Photographs:
        """Read files as `read_annotations` does, the longer side scaled down to `longest`.

        classes: those of the training data, for other datasets. Raises UserError if nothing is usable, or too much.
        """
        notices = Notices()
        annotations = read_annotations(option, paths, notices, part=part)
        names = list(classes or annotations.classes)
        numbers = {name: number for number, name in enumerate(names)}
        photographs: list[_Photograph] = []
        folder, count, n_bytes = paths[-1], len(annotations.images), 0
        read: list[tuple[AnnotatedImage, Size]] = []
        for annotated in annotations.images:
            try:
                image = decode(annotated.path, Photographs.channels, longest=longest)
            except UserError as error:
                notices.unreadable(annotated.path.name, error, count, Path(folder))
                continue
            read.append((annotated, (image.height, image.width)))
            photograph = _photograph(annotated, image, numbers, notices)
            if photograph is None:
                continue
            photographs.append(photograph)
            n_bytes += photograph.pixels.numel()
            if n_bytes > MAX_DATASET_BYTES:
                raise UserError(
                    f"{folder}: {count:,} images of {longest} pixels take more than {MAX_DATASET_BYTES:,} bytes; use a "
                    "smaller task.size, or fewer of them"
                )
        check_units(paths[0], read)
        if not _any_object(photographs):
            raise UserError(
                f"{paths[0]}: expected objects with boxes; got none that can be used{notices.tail()}; correct them"
            )
        return Photographs(photographs, names, notices.lines())

    def split(self, paths: Sequence[str], longest: int) -> tuple[Photographs, Photographs]:
        """Split into training and held-out images, by a VOC folder's lists or by file names.

        paths, longest: as in `read`. Raises UserError if one side would be empty.
        """
        if has_lists(paths):
            return self, Photographs.read("train", paths, longest, self.classes, part=SETS[1])
        training = [photograph for photograph in self._images if not photograph.held_out]
        held_out = [photograph for photograph in self._images if photograph.held_out]
        if not _any_object(training) or not _any_object(held_out):
            raise UserError(
                f"{counted(len(self), 'images', 'are')} too few to hold some out; give held-out images with --valid"
            )
        notices = [*self.notices, *few_held_out(len(held_out), len(self))]
        train = Photographs(training, self.classes, notices)
        return train, Photographs(held_out, self.classes, notices)

    def __len__(self) -> int:
        return len(self._images)

    def pixels(self, indices: Int[Tensor, " B"]) -> Sequence[UInt8[Tensor, "C _ _"]]:
        return [photograph.pixels for photograph in self._chosen(indices)]

    def _chosen(self, indices: Int[Tensor, " B"]) -> list[_Photograph]:
        return [self._images[number] for number in indices.tolist()]

    def objects(self, indices: Int[Tensor, " B"]) -> Objects:
        chosen = self._chosen(indices)
        labels = pad_sequence([photograph.labels for photograph in chosen], batch_first=True)
        boxes = pad_sequence([photograph.boxes for photograph in chosen], batch_first=True)
        real = pad_sequence([~photograph.ignored for photograph in chosen], batch_first=True)
        ignored = pad_sequence([photograph.ignored for photograph in chosen], batch_first=True)
        return Objects(labels, boxes, real, ignored if ignored.any() else None)

    def name(self, number: int) -> str:
        return self._images[number].name

    def size(self, number: int) -> tuple[int, int]:
        return self._images[number].size

    def crowded(self, queries: int) -> dict[str, int]:
        counts = {photograph.name: photograph.n_objects for photograph in self._images}
        return {name: count for name, count in counts.items() if count > queries}

    def describe(self) -> str:
        n_objects = sum(photograph.n_objects for photograph in self._images)
        objects = counted(n_objects, "objects")
        return f"{counted(len(self), 'images')} with {objects} of {counted(len(self.classes), 'classes')}"

    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr(self.classes).encode("utf-8", "backslashreplace"))
        for photograph in self._images:
            pixels = zlib.crc32(photograph.pixels.numpy().tobytes())
            numbers = torch.tensor([pixels, *photograph.size, *photograph.labels.tolist()])
            digest.update(numbers.numpy().tobytes())
            digest.update(photograph.boxes.numpy().tobytes())
            if photograph.ignored.any():
                digest.update(photograph.ignored.numpy().tobytes())
        return f"sha256 {digest.hexdigest()}"


def _any_object(photographs: Sequence[_Photograph]) -> bool:
    return any(photograph.n_objects for photograph in photographs)


def _photograph(
    annotated: AnnotatedImage, image: Decoded, numbers: Mapping[str, int], notices: Notices
) -> _Photograph | None:
    """Return a photograph with the objects of known classes, None if its annotation is unusable."""
    where = annotated.path.name
    size = (image.height, image.width)
    usable = annotated.usable(size, notices)
    if usable is None:
        return None
    notices.add_each(image.remarks(), where)
    known = []
    for each in sorted(usable, key=lambda each: each.ignored):
        if each.name in numbers:
            known.append(each)
        else:
            notices.add(_UNKNOWN, f"{each.name} in {where}")
    labels = torch.tensor([numbers[each.name] for each in known], dtype=torch.int64)
    ignored = torch.tensor([each.ignored for each in known], dtype=torch.bool)
    held_out = is_held_out(annotated, _HELD_OUT)
    return _Photograph(where, image.pixels, size, _shares(known, size), labels, ignored, held_out)


def padded_batch(pixels: Sequence[UInt8[Tensor, "C _ _"]]) -> Images:
    """Return images in one tensor with values from 0 to 255, smaller ones padded below and to the right."""
    batch, channels = len(pixels), len(pixels[0])
    height = max(image.shape[1] for image in pixels)
    width = max(image.shape[2] for image in pixels)
    if all(image.shape[1:] == (height, width) for image in pixels):
        return Images(torch.stack(list(pixels)).float())
    padded = torch.zeros(batch, channels, height, width)
    keep = torch.zeros(batch, height, width, dtype=torch.bool)
    for row, image in enumerate(pixels):
        _, image_height, image_width = image.shape
        padded[row, :, :image_height, :image_width] = image
        keep[row, :image_height, :image_width] = True
    return Images(padded, keep)


def normalised(
    pixels: Sequence[UInt8[Tensor, "C _ _"]], mean: Sequence[float], deviation: Sequence[float]
) -> Images:
    """Normalize a batch by the mean and deviation of each channel; padding becomes 0."""
    images = padded_batch(pixels)
    mean_C11 = torch.tensor(mean).view(-1, 1, 1)
    deviation_C11 = torch.tensor(deviation).view(-1, 1, 1)
    values = (images.pixels / 255 - mean_C11) / deviation_C11
    if images.keep is not None:
        values = values * images.keep.unsqueeze(1)
    return Images(values, images.keep)


def _shares(objects: Sequence[AnnotatedObject], size: Size) -> Float[Tensor, "N 4"]:
    height, width = size
    corners = torch.tensor([each.box for each in objects], dtype=torch.float64)
    sides = torch.tensor([width, height, width, height])
    return to_cxcywh(corners.view(-1, 4) / sides).float()


def mean_and_deviation(images: BoxedImages) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]]:
    """Return mean and deviation of each channel over some images, one in memory at a time."""
    count = 0
    total, squares = torch.zeros(()), torch.zeros(())
    for number in evenly(len(images), 500):
        (pixels,) = images.pixels(number.unsqueeze(0))
        values = pixels.flatten(1).double() / 255
        count += values.shape[1]
        total = total + values.sum(1)
        squares = squares + values.square().sum(1)
    mean = total / count
    # Rounding may make the variance of one colour negative.
    variance = (squares / count - mean.square()).clamp_min(0)
    return mean, variance.sqrt()


LEFT = 0.25
"""Objects with a smaller share of their box's area in a cropped image are dropped; DETR keeps all."""


def flipped(images: Images, objects: Objects, generator: torch.Generator) -> tuple[Images, Objects]:
    """Mirror half of the images with their boxes. Padding stays."""
    mirrored_B = torch.rand(len(objects), generator=generator) < 0.5
    _, channels, height, _ = images.pixels.shape
    source_BW = _mirrored_columns(images, mirrored_B)
    index_BCHW = source_BW[:, None, None].expand(-1, channels, height, -1)
    pixels = images.pixels.gather(3, index_BCHW)
    boxes = objects.boxes.clone()
    boxes[mirrored_B, :, 0] = 1 - boxes[mirrored_B, :, 0]
    return Images(pixels, images.keep), replace(objects, boxes=boxes)


def _mirrored_columns(images: Images, mirrored_B: Tensor) -> Int[Tensor, "B W"]:
    """Return the source column of each column: real columns are reversed."""
    width = images.size[1]
    columns_W = torch.arange(width)
    real_B = torch.full((len(mirrored_B),), width)
    if images.keep is not None:
        real_B = images.keep[:, 0].sum(1)
    back_BW = real_B.unsqueeze(1) - 1 - columns_W
    return torch.where(mirrored_B.unsqueeze(1) & (back_BW >= 0), back_BW, columns_W)


def cropped(
    images: Images, objects: Objects, most: float, generator: torch.Generator
) -> tuple[Images, Objects]:
    """Cut half of the images to a window and enlarge it, with the objects that keep a share of at least LEFT.

    Of ignored regions, any rest stays.
    """
    windows = CropWindows.draw(len(objects), most, generator)
    boxes_BM4, left_BM = windows.boxes(objects.boxes)
    real_BM = objects.real & (left_BM >= LEFT)
    ignored_BM = None if objects.ignored is None else objects.ignored & (left_BM > 0)
    there_BM = real_BM if ignored_BM is None else real_BM | ignored_BM
    labels_BM = objects.labels * there_BM
    boxes_BM4 = boxes_BM4 * there_BM.unsqueeze(-1)
    return windows.pixels(images), Objects(labels_BM, boxes_BM4, real_BM, ignored_BM)
