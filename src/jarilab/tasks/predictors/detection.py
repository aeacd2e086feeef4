"""Objects in images and their boxes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, final

import torch
from annotated_types import Ge, Le

from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_bytes
from jarilab.data.images import HELD_OUT
from jarilab.data.images import draw as drawing
from jarilab.data.images.image_files import check_png, read_image
from jarilab.inspect.record.model_io import scores_of
from jarilab.positions.boxes import Detected, to_xyxy
from jarilab.tasks.predictors.base import (
    AT_ONCE,
    Inputs,
    Prediction,
    Source,
    Trace,
    TracedSequence,
    expected_of,
    read_each,
    registry,
)
from jarilab.tasks.predictors.classes import ImagePredictor, check_patches, image_sequence

DEFAULT_THRESHOLD = 0.5
"""Probability from which an object counts as detected."""
NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True)
class DetectionOptions:
    """Options of detection. threshold: minimal probability of an object. draw: PNG file to write, with boxes."""

    threshold: Annotated[float, Ge(0), Le(1)] = DEFAULT_THRESHOLD
    draw: str | None = None


@dataclass(frozen=True)
class DetectedObject:
    """An object in an image. box: left, top, right, bottom in pixels of the file."""

    label: str
    probability: float
    box: tuple[float, float, float, float]

    def __str__(self) -> str:
        sides = " ".join(f"{side:.1f}" for side in self.box)
        return f"{self.label}\t{self.probability:.3f}\t{sides}"


@final
@dataclass(frozen=True)
class DetectionResult(Prediction):
    """The objects of one image, most probable first, or the error."""

    input: str
    objects: tuple[DetectedObject, ...] = ()
    error: str | None = None

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> Iterator[str]:
        for detected in self.objects:
            yield f"{self.input}\t{detected}\n"

    @property
    def messages(self) -> list[str]:
        if self.error is not None:
            return [self.error]
        if not self.objects:
            return [f"{self.input}: no object is as probable as --threshold; lower it to see more"]
        return []


@registry.register("detection")
@final
class DetectionPredictor(ImagePredictor):
    """Predictor of object detection, an `ImageTask` whose answers have boxes."""

    options = DetectionOptions
    writes = frozenset({"draw"})
    scores = False
    reported = False  # its attention is for the explorer, where boxes are drawn

    def predict(
        self, sources: Inputs, options: DetectionOptions, *, at_once: int = AT_ONCE
    ) -> Iterator[DetectionResult]:
        if options.draw is not None:
            sources = list(sources)
            self._check_draw(options.draw, sources)
        for source in read_each(sources, self.task.read):
            if source.error is not None:
                yield DetectionResult(source.text, error=source.error)
                continue
            result = self._result(source, options.threshold)
            if options.draw is not None:
                self._draw(result, source, options.draw)
            yield result

    @torch.no_grad()
    def _result(self, source: Source, threshold: float) -> DetectionResult:
        objects = [
            DetectedObject(self.task.classes[label.number], label.probability, label.box)
            for label in self.labels([source.read])[0]
            if label.probability >= threshold and label.box is not None
        ]
        return DetectionResult(source.text, tuple(objects))

    def _check_draw(self, out: str, sources: Sequence[str | UserError]) -> None:
        if len(sources) != 1:
            raise UserError(f"--draw: expected one image, got {len(sources)}; give one")
        check_png(out, [Path(str(source)) for source in sources])

    def _draw(self, result: DetectionResult, source: Source, out: str) -> None:
        """Write the image with its detected boxes."""
        held_out = source.text.startswith(HELD_OUT)
        pixels = source.read.pixels if held_out else read_image(Path(source.text), 3)
        labelled_boxes = [
            (each.box, f"{each.label} {each.probability:.0%}") for each in result.objects
        ]
        write_bytes(Path(out), drawing.png(drawing.boxes(pixels, labelled_boxes)))

    @torch.no_grad()
    def trace(self, line: str, most: int) -> Trace:
        source = self.task.read(line)
        images = self.task.sources([source])
        check_patches(self.model, images, most)
        outputs = self.says(images)
        numbers = scores_of(outputs)[0].argmax(-1).tolist()
        queries = [f"q{number}" for number in range(len(numbers))]
        sequences = {
            "source": image_sequence(self.model, images, source.pixels),
            "target": TracedSequence(queries, boxes=_boxes(outputs)),
        }
        answer, expected = self.answer(source), self._expected(line.strip())
        written = torch.tensor([numbers])
        return Trace(line.strip(), source, (images,), sequences, numbers, written, answer, expected)

    def answer(self, source: Any) -> str:
        """Return the classes of all detections, in the classes' order."""
        (labels,) = self.labels([source])
        numbers = [label.number for label in labels if label.probability >= DEFAULT_THRESHOLD]
        return ", ".join(self.names(sorted(numbers)))

    def _expected(self, line: str) -> str | None:
        """Return the right answer in the form of an answer."""
        expected = expected_of(self.task, line)
        if not expected:
            return expected
        order = {name: number for number, name in enumerate(self.task.classes)}
        names = expected.split(", ")
        return ", ".join(sorted(names, key=lambda name: order.get(name, len(order))))

    def names(self, numbers: Iterable[int]) -> list[str]:
        """The names of classes, and of "nothing"."""
        classes = [*self.task.classes, NOTHING]
        return [classes[number] for number in numbers]


def _boxes(outputs: Detected) -> list[list[float]]:
    """Return left, top, right and bottom of each query's box, in shares of the image."""
    return to_xyxy(outputs.boxes[-1][0].double()).clamp(0, 1).tolist()
