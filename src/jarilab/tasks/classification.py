"""Common parts of tasks on images, and image classification."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, final

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Len
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.options import check_fields
from jarilab.core.shapes import Float, Int
from jarilab.core.storage.files import read_json
from jarilab.data.images import HELD_OUT, augment
from jarilab.data.images.alike import Thumbnails
from jarilab.data.images.labelled import Labelled
from jarilab.data.images.resize import Fit, fitted
from jarilab.positions.patches import Images
from jarilab.tasks.base import Batch, Task, evenly, full_names
from jarilab.tasks.labels import ClassLabel, LabelTask

Side = Annotated[int, Ge(1), Le(4096)]
Colours = Annotated[int, Ge(1), Le(4)]
CLASSES: dict[str, Any] = {"classes": Annotated[list[str], Len(1, 1_000_000)]}
OF_IMAGES: dict[str, Any] = CLASSES | {"shape": tuple[Colours, Side, Side]}
OF_DETECTION: dict[str, Any] = CLASSES | {"channels": Literal[1, 3]}


def read_facts(path: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Read a file's fields, with a mean and a deviation for each channel. Raises UserError naming a bad field.

    fields: the expected types.
    """
    try:
        facts = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; the run cannot answer without it: put back a copy") from None
    if isinstance(facts, dict) and isinstance(facts.get("shape"), list):
        facts["shape"] = tuple(facts["shape"])  # as it was before it was JSON
    check_fields(str(path), fields, facts)
    channels = facts["shape"][0] if "shape" in fields else facts["channels"]
    several = Len(channels, channels)
    level, spread = Annotated[float, Ge(-1e6), Le(1e6)], Annotated[float, Gt(0), Le(1e6)]
    of_pixels = {
        "mean": Annotated[list[level], several],
        "deviation": Annotated[list[spread], several],
    }
    check_fields(str(path), of_pixels, facts)
    return facts


AT_ONCE = 256  # images measured together
MOST_OF_MEAN = 10_000  # images that mean and deviation are taken over


def held_out_number(line: str, count: int) -> int:
    """Return the index that `#5` means among `count` held-out images. Raises UserError."""
    number = line.removeprefix(HELD_OUT)
    digits = number.isascii() and number.isdecimal() and len(number) < 12
    if not digits or int(number) >= count:
        raise UserError(
            f"expected the number of a held-out image, #0 to #{count - 1}, got {line[:80]!r}"
        )
    return int(number)


@dataclass(frozen=True, eq=False)
class LoadedImage:
    """An image at the task's size. size: height and width in the file."""

    pixels: UInt8[Tensor, "C H W"]
    size: tuple[int, int]


class ImageTask(Task):
    """A task whose inputs are images and whose answers are classes.

    metadata_file: a file in the run, with the mean and deviation of the pixels. metadata_fields: its other fields.
    """

    metadata_file: ClassVar[str]
    metadata_fields: ClassVar[Mapping[str, Any]]
    _facts: dict[str, Any]

    @property
    @abstractmethod
    def held_out(self) -> Sized:
        """The held-out images, read on first use."""

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes."""
        return self._facts["classes"]

    @final
    def artifacts(self) -> dict[str, bytes]:
        text = json.dumps(self._facts, ensure_ascii=False, indent=1)
        return {self.metadata_file: f"{text}\n".encode()}

    @final
    def restore(self, folder: Path) -> None:
        self._facts = read_facts(folder / self.metadata_file, self.metadata_fields)

    def held_out_number(self, line: str) -> int | None:
        """Return the index of a held-out image, `#5`, or None for a file. Raises UserError."""
        line = line.strip()
        return held_out_number(line, len(self.held_out)) if line.startswith(HELD_OUT) else None

    def sample_inputs(self) -> list[str]:
        return [f"{HELD_OUT}{number}" for number in range(min(4, len(self.held_out)))]

    @abstractmethod
    def read(self, line: str) -> LoadedImage:
        """Return a file's image, or a held-out one, `#5`. Raises UserError."""

    @abstractmethod
    def sources(self, lines: Sequence[LoadedImage]) -> Images:
        """Return a batch of results of `read`."""

    @abstractmethod
    def interpret(self, outputs: Any, images: Sequence[LoadedImage]) -> list[list[ClassLabel]]:
        """Return the labels of each image from the model's outputs, most probable first."""

    @abstractmethod
    def expected(self, line: str) -> str | None:
        """Return the right answer to an input, if known."""


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images.

    shift: maximal shift in pixels in each direction. flip: mirror half of the images. mixup, cutmix: the parameter of
    the beta distribution for mixing two images, everywhere or in a rectangle; 0 for none.
    """

    shift: int
    flip: bool
    mixup: float
    cutmix: float

    def __call__(
        self,
        pixels: Float[Tensor, "B C H W"],
        labels: Int[Tensor, " B"],
        classes: int,
        generator: torch.Generator,
    ) -> tuple[Float[Tensor, "B C H W"], Float[Tensor, "B V"]]:
        """Return changed images, and the share of each class in them."""
        targets = functional.one_hot(labels, classes).float()
        if self.shift:
            pixels = augment.shift(pixels, self.shift, generator)
        if self.flip:
            pixels = augment.flip(pixels, generator)
        if self.mixup:
            pixels, targets = augment.mixup(pixels, targets, self.mixup, generator)
        if self.cutmix:
            pixels, targets = augment.cutmix(pixels, targets, self.cutmix, generator)
        return pixels, targets


class ClassificationTask(LabelTask, ImageTask):
    """Image classification. A subclass provides the images."""

    predictor = "classes"
    usual_model = "vit"
    model_arguments = ("shape", "classes")
    metadata_file, metadata_fields = "pictures.json", OF_IMAGES
    length_unit = "pixels of the longer side"

    def __init__(self, augmentation: Augmentation, fit: Fit = "stretch"):
        self._augmentation = augmentation
        self._fit: Fit = fit
        self._train: Labelled | None = None
        self._held_out: Labelled | None = None
        self._facts: dict[str, Any] = {}

    @abstractmethod
    def _read_data(self) -> Labelled:
        """Read the training images. Raises UserError."""

    @abstractmethod
    def _read_held_out(self) -> Labelled:
        """Read the held-out images. Raises UserError."""

    @final
    def prepare(self) -> None:
        self._train = self._read_data()
        mean, deviation = _mean_and_deviation(self._train)
        self._facts = {
            "classes": list(self._train.classes),
            "shape": list(self._train.shape),
            "mean": mean,
            "deviation": deviation,
        }

    @property
    def held_out(self) -> Labelled:
        """The held-out images, read on first use. Raises UserError if their classes differ."""
        if self._held_out is None:
            self._held_out = self._read_held_out()
        return self._held_out

    @property
    def trained_length(self) -> int:
        return max(self.shape[1:])

    def _set_length(self, length: int, stride: int | None) -> None:
        channels, *size = self.shape
        scale = length / max(size)
        self._at_once = max(1, min(AT_ONCE, round(AT_ONCE / scale**2)))
        scaled = [max(1, round(scale * side)) for side in size]
        self._facts = {**self._facts, "shape": [channels, *scaled]}
        # Files are read again, since they may have details that the trained size lacks.
        self._held_out = self._read_held_out()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self._facts["shape"]
        return channels, height, width

    # For the model and the training loop ---------------------------------------------------------------------------

    @property
    def model_options(self) -> dict[str, Any]:
        return {"shape": self.shape, "classes": len(self.classes)}

    @property
    def training_size(self) -> int:
        return len(self._training)

    @property
    def _training(self) -> Labelled:
        assert self._train is not None, "prepare comes first"
        return self._train

    def training_batch(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Batch:
        pixels = self._normalised(self._training.images(indices))
        labels = self._training.labels[indices]
        pixels, targets = self._augmentation(pixels, labels, len(self.classes), generator)
        return Batch((Images(pixels), True), targets)  # True: compute the class token only

    def _held_out_batch(self, indices: Int[Tensor, " B"]) -> Batch:
        images = Images(self._normalised(self.held_out.images(indices)))
        return Batch((images,), self.held_out.labels[indices])

    def _normalised(self, pixels: UInt8[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Normalize each channel to mean 0 and deviation 1 over the training images."""
        mean = torch.tensor(self._facts["mean"]).view(-1, 1, 1)
        deviation = torch.tensor(self._facts["deviation"]).view(-1, 1, 1)
        return (pixels.float() / 255 - mean) / deviation

    # For display ----------------------------------------------------------------------------------------------------

    def read(self, line: str) -> LoadedImage:
        number = self.held_out_number(line)
        if number is not None:
            (pixels,) = self.held_out.images(torch.tensor([number]))
            _, height, width = pixels.shape
            return LoadedImage(pixels, (height, width))
        channels, height, width = self.shape
        image = fitted(Path(line.strip()), channels, (height, width), self._fit)
        return LoadedImage(image.pixels, (image.height, image.width))

    def sources(self, lines: Sequence[LoadedImage]) -> Images:
        pixels = torch.stack([image.pixels for image in lines])
        return Images(self._normalised(pixels))

    def expected(self, line: str) -> str | None:
        number = self.held_out_number(line)
        if number is None:
            return None
        label = int(self.held_out.labels[number])
        return self.classes[label]

    def thumbnails(self) -> tuple[Thumbnails, Thumbnails]:
        return self._training.thumbnails(), self.held_out.thumbnails()

    def notices(self) -> list[str]:
        return self._training.notices

    def held_out_notices(self) -> list[str]:
        return [] if self._held_out is None else self._held_out.notices

    @classmethod
    def _training_defaults(cls, **options: Any) -> Mapping[str, Any]:
        """Return settings that suit a Vision Transformer on small images."""
        training = {
            "batch_size": 128,
            "lr": 4e-3,
            "evaluations": 10,
            "label_smoothing": 0.1,
            "warmup": 0.1,
        }
        return full_names(training=training | options)


def _mean_and_deviation(images: Labelled) -> tuple[list[float], list[float]]:
    """Return mean and deviation of each channel, in shares of 255, over MOST_OF_MEAN images at most."""
    # Counted by level, in batches, since the pixels of thousands of images in float64 take gigabytes.
    count_CV = np.zeros((images.shape[0], 256), np.int64)
    for some in evenly(len(images), MOST_OF_MEAN).split(AT_ONCE):
        for channel, pixels in enumerate(images.images(some).transpose(0, 1)):
            count_CV[channel] += np.bincount(pixels.flatten().numpy(), minlength=256)
    total_C1 = count_CV.sum(1, keepdims=True)
    levels_V = np.arange(256) / 255
    mean_C1 = (count_CV * levels_V).sum(1, keepdims=True) / total_C1
    squares_C1 = (count_CV * (levels_V - mean_C1) ** 2).sum(1, keepdims=True)
    deviation_C1 = np.sqrt(squares_C1 / np.maximum(1, total_C1 - 1))
    return mean_C1[:, 0].tolist(), deviation_C1[:, 0].clip(1e-3).tolist()
