"""Detection of objects in images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, final

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int
from jarilab.data.captions.digit_images import DigitImages, Part
from jarilab.data.captions.scenes import Scenes, SceneWorld
from jarilab.data.images.alike import Thumbnails
from jarilab.data.images.image_files import decode
from jarilab.data.images.notices import too_crowded
from jarilab.positions.boxes import Detected
from jarilab.positions.patches import Images
from jarilab.tasks.base import Batch, Learner, Losses, evenly, full_names, registry
from jarilab.tasks.classification import OF_DETECTION, ImageTask, LoadedImage
from jarilab.tasks.detection_data import (
    BoxedImages,
    Photographs,
    SceneImages,
    cropped,
    flipped,
    mean_and_deviation,
    normalised,
)
from jarilab.tasks.detection_loss import Objects, loss, loss_counts
from jarilab.tasks.detection_metrics import (
    ImageBoxes,
    average_precision,
    detected_boxes,
    true_boxes,
)
from jarilab.tasks.labels import ClassLabel
from jarilab.tasks.metrics import METRICS

SCENES = "scenes"
CANVAS, LONGEST = 48, 160
"""Default sizes in pixels: the side of a scene, and the longer side of a photograph."""

HELD_OUT_SCENES = 1000
AT_ONCE = 64  # images measured together


@registry.register("detection")
@final
class Detection(ImageTask):
    """Objects and their boxes, in annotated photographs or in scenes of real handwritten digits.

    train: scenes, a COCO file and its folder of images, a YOLO folder, a VOC folder, or one of its lists
    (ImageSets/Main/train.txt). valid: held-out data of the same kind. Without it, scenes are made of held-out digits.
    Of a VOC folder val.txt is used, of a YOLO folder images/val. Of other data about one image in ten is held out.
    digits: a folder of MNIST's idx files for scenes, instead of scikit-learn's scans. size: longer side of an image in
    pixels; 160 for photographs and 48 for scenes by default. min_digits: fewest digits of a scene. max_digits: most
    digits of a scene. smallest: longer side of the smallest digits, in pixels. largest: longer side of the largest
    digits, in pixels. scenes: number of training scenes. flip: mirror half of the training images; not for digits.
    crop: largest share of width and height that half of the training images lose, such as 0.4; 0 for none. The rest is
    enlarged, and objects with less than a quarter left are dropped. nothing: weight of the class "nothing".
    """

    predictor = "detection"
    usual_model = "detector"
    model_arguments = ("channels", "classes")
    metric = METRICS["ap"]
    metadata_file, metadata_fields = "detection.json", OF_DETECTION

    def __init__(
        self,
        *,
        train: tuple[str, ...] = (SCENES,),
        valid: tuple[str, ...] = (),
        digits: str | None = None,
        size: Annotated[int, Ge(16), Le(4096)] | None = None,
        min_digits: Annotated[int, Ge(0), Le(100)] = 1,
        max_digits: Annotated[int, Ge(1), Le(100)] = 3,
        smallest: Annotated[int, Ge(4), Le(4096)] = 12,
        largest: Annotated[int, Ge(4), Le(4096)] = 22,
        scenes: Annotated[int, Ge(1), Le(10_000_000)] = 1_000_000,
        flip: bool = False,
        crop: Annotated[float, Ge(0), Le(0.9)] = 0.0,
        nothing: Annotated[float, Gt(0), Le(1)] = 0.1,
    ):
        self.train, self.valid = tuple(train), tuple(valid)
        self.digits, self.scenes = digits, scenes
        self.flip, self.crop, self.nothing = flip, crop, nothing
        self.size = size or (CANVAS if self._makes_scenes else LONGEST)
        self._world = SceneWorld(self.size, min_digits, max_digits, smallest, largest)
        self._notices: list[str] = []
        self._training: BoxedImages | None = None
        self._held_out: BoxedImages | None = None
        self._facts: dict[str, Any] = {}

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        training = {"examples": 320_000, "batch_size": 32, "lr": 4e-3, "evaluations": 10}
        training |= {"evaluation_examples": 300}
        return full_names(training=training, model={"d_ff": 192})

    # Its data -------------------------------------------------------------------------------------------------------

    @property
    def _makes_scenes(self) -> bool:
        return self.train == (SCENES,)

    def prepare(self) -> None:
        if self._makes_scenes:
            training: BoxedImages = self._scenes("training")
            self._held_out = self._read(self.valid) if self.valid else self._scenes("held_out")
        else:
            training = Photographs.read("train", self.train, self.size, None, part="train")
            if self.valid:
                self._held_out = self._read(self.valid, training.classes)
            else:
                training, self._held_out = training.split(self.train, self.size)
        self._training = training
        mean, deviation = mean_and_deviation(training)
        self._facts = {
            "classes": list(training.classes),
            "channels": training.channels,
            "mean": mean.tolist(),
            "deviation": deviation.clamp_min(1e-3).tolist(),
        }

    def _scenes(self, part: Part) -> SceneImages:
        digits = DigitImages.load(self.digits, part)
        if part == "training":
            return SceneImages(Scenes(self._world, digits, seed=1), self.scenes)
        return SceneImages(Scenes(self._world, digits, seed=2), HELD_OUT_SCENES)

    def _read(self, paths: Sequence[str], classes: Sequence[str] | None = None) -> BoxedImages:
        """Read held-out images. Raises UserError for scenes after training on photographs, and the reverse."""
        if (tuple(paths) == (SCENES,)) != self._makes_scenes:
            raise UserError(
                f"expected images of the same kind as {' '.join(self.train)}, got {' '.join(paths)}; name such "
                "images"
            )
        if self._makes_scenes:
            return self._scenes("held_out")
        return Photographs.read("valid", paths, self.size, classes or self.classes, part="val")

    def hold_out(self, paths: Sequence[str]) -> None:
        self._held_out = self._read(paths)

    @property
    def held_out_of(self) -> tuple[str, ...]:
        return () if self.valid or self._makes_scenes else self.train

    @property
    def held_out(self) -> BoxedImages:
        """The held-out images, read on first use."""
        if self._held_out is None:
            if self._makes_scenes or self.valid:
                self._held_out = self._read(self.valid or self.train)
            else:
                images = Photographs.read(
                    "train", self.train, self.size, self.classes, part="train"
                )
                self._held_out = images.split(self.train, self.size)[1]
        return self._held_out

    def fingerprint(self) -> str:
        if self._training is None:
            self.prepare()
        return self._trained.fingerprint()

    def thumbnails(self) -> tuple[Thumbnails, Thumbnails]:
        return self._trained.thumbnails(), self.held_out.thumbnails()

    @property
    def _trained(self) -> BoxedImages:
        assert self._training is not None, "prepare comes first"
        return self._training

    # For the model and the training loop ----------------------------------------------------------------------------

    @property
    def model_options(self) -> dict[str, Any]:
        return {"channels": self._facts["channels"], "classes": len(self.classes)}

    def check_model(self, options: Mapping[str, Any]) -> None:
        """Note images with more objects than queries. Raises UserError for such scenes."""
        queries = options.get("queries")
        if queries is None or self._training is None:
            return
        if self._makes_scenes and self._world.most > queries:
            raise UserError(
                f"{queries} queries detect {queries} objects at most, and a scene has up to {self._world.most}; use "
                f"model.queries={self._world.most} or more"
            )
        for images in (self._training, self.held_out):
            crowded = images.crowded(queries)
            self._notices += too_crowded(crowded, queries)

    @property
    def training_size(self) -> int:
        return len(self._trained)

    def training_batch(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Batch:
        images, objects = self._batch(self._trained, indices)
        if self.flip:
            images, objects = flipped(images, objects, generator)
        if self.crop:
            images, objects = cropped(images, objects, self.crop, generator)
        return Batch((images,), objects)

    def loss(self, scores: Detected, batch: Batch, smoothing: float = 0.0) -> Float[Tensor, ""]:
        classes, l1, giou = self.loss_terms(scores, batch, smoothing)
        return classes + l1 + giou

    def loss_terms(self, scores: Detected, batch: Batch, smoothing: float = 0.0) -> Losses:
        return tuple(loss(scores, batch.labels, self.nothing, smoothing).values())

    def loss_counts(self, batch: Batch, scores: Detected) -> tuple[float, ...]:
        return loss_counts(scores, batch.labels, self.nothing)

    def evaluate(self, learner: Learner, examples: int | None = None) -> dict[str, Any]:
        """Return COCO's AP of all outputs of the last layer, and the loss: each term is a mean over all images."""
        held_out = self.held_out
        totals, counts = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        detections: list[ImageBoxes] = []
        truth: list[ImageBoxes] = []
        indices = evenly(len(held_out), examples)
        for some in indices.split(AT_ONCE):
            images, objects = self._batch(held_out, some)
            outputs = learner.scores(batch := Batch((images,), objects))
            terms = zip(
                self.loss_terms(outputs, batch), self.loss_counts(batch, outputs), strict=True
            )
            for i, (term, count) in enumerate(terms):
                totals[i] += count * float(term)
                counts[i] += count
            sizes = [held_out.size(number) for number in some.tolist()]
            detections += detected_boxes(outputs, sizes)
            truth += true_boxes(objects, sizes)
        metrics = average_precision(detections, truth, len(self.classes))
        # Without any object, two terms are 0 and count nothing.
        means = [total / (count or 1.0) for total, count in zip(totals, counts, strict=True)]
        return {**metrics, "loss": sum(means), "examples": float(len(indices))}

    def _batch(self, source: BoxedImages, indices: Int[Tensor, " B"]) -> tuple[Images, Objects]:
        return self._normalised(source.pixels(indices)), source.objects(indices)

    def _normalised(self, pixels: Sequence[Tensor]) -> Images:
        """Normalize to mean 0 and deviation 1 over the training images."""
        return normalised(pixels, self._facts["mean"], self._facts["deviation"])

    # For display ----------------------------------------------------------------------------------------------------

    def read(self, line: str) -> LoadedImage:
        number = self.held_out_number(line)
        if number is not None:
            (pixels,) = self.held_out.pixels(torch.tensor([number]))
            return LoadedImage(pixels, self.held_out.size(number))
        image = decode(Path(line.strip()), self._facts["channels"], longest=self.size)
        return LoadedImage(image.pixels, (image.height, image.width))

    def sources(self, lines: Sequence[LoadedImage]) -> Images:
        return self._normalised([image.pixels for image in lines])

    def interpret(self, outputs: Detected, images: Sequence[LoadedImage]) -> list[list[ClassLabel]]:
        """Return the output of each query, most probable first."""
        labels = []
        sizes = [image.size for image in images]
        for boxes in detected_boxes(outputs, sizes):
            of_image = [ClassLabel(*row) for row in boxes.rows()]
            labels.append(sorted(of_image, key=lambda label: -label.probability))
        return labels

    def expected(self, line: str) -> str | None:
        number = self.held_out_number(line)
        if number is None:
            return None
        objects = self.held_out.objects(torch.tensor([number]))
        labels = objects.labels[objects.real].tolist()
        names = [str(self.classes[label]) for label in labels]
        return ", ".join(names)

    def notices(self) -> list[str]:
        training = [] if self._training is None else list(self._training.notices)
        others = [f"held out: {line}" for line in self.held_out_notices() if line not in training]
        return [*training, *others, *self._notices]

    def held_out_notices(self) -> list[str]:
        return [] if self._held_out is None else list(self._held_out.notices)

    def describe(self) -> str:
        return f"{self._trained.describe()}; {len(self.held_out):,} held out"

    def purpose(self) -> tuple[str, str]:
        return (
            "Detects the objects in an image, each with a box.",
            "이미지 속 물체를 찾아 상자를 그립니다.",
        )
