"""Classes of images and texts."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, final

import torch
from annotated_types import Ge

from jarilab.core.errors import UserError
from jarilab.inspect.intervene.interventions import operate
from jarilab.models.base import ReadsImages
from jarilab.positions.coordinates import Positions
from jarilab.positions.patches import Images, PatchedImage, patch_names
from jarilab.tasks.predictors.base import (
    AT_ONCE,
    Inputs,
    Intervention,
    Predictor,
    Source,
    Trace,
    TracedSequence,
    expected_of,
    registry,
)
from jarilab.tasks.predictors.sequences import Answer, answer_each

SMALLEST = 1e-45
"""Smaller probabilities are raised to this one before taking a logarithm."""


@dataclass(frozen=True, kw_only=True)
class ClassOptions:
    """n_best: answers to each image, most likely first, with their scores."""

    n_best: Annotated[int, Ge(1)] = 1


class LabelPredictor(Predictor):
    """What predictors of classes share."""

    @abstractmethod
    def answer(self, source: Any) -> str:
        """Return the answer to an input that the task read."""

    def labels(self, sources: Sequence[Any]) -> list[list[Any]]:
        """Return each `ClassLabel` of inputs that the task read, most probable first."""
        return self.task.interpret(self.says(self.task.sources(sources)), sources)

    @property
    def vocabulary(self) -> str:
        return "\n".join(self.task.classes)

    @torch.no_grad()
    def edited(self, trace: Trace, intervention: Intervention) -> str:
        with intervention.moving(self.model, trace.inputs), operate(self.model, intervention.edits):
            return self.answer(trace.read)


class ImagePredictor(LabelPredictor):
    """What predictors of an `ImageTask` share."""

    needs = ReadsImages
    reads_files = True
    reads_images = True


class ClassPredictor(LabelPredictor):
    """Predictor of a `LabelTask`. A class is an answer of one token."""

    options = ClassOptions

    @abstractmethod
    def _sequence(self, source: Any, sources: Any, most: int) -> TracedSequence:
        """Return the tokens of an input. Raises UserError for more than `most`."""

    @torch.no_grad()
    def predict(
        self, sources: Inputs, options: ClassOptions, *, at_once: int = AT_ONCE
    ) -> Iterator[Answer]:
        yield from answer_each(
            sources, self.task.read, at_once, lambda some: self._answers(some, options)
        )

    def _answers(self, sources: Sequence[Source], options: ClassOptions) -> dict[int, list[Answer]]:
        ranked = self.labels([source.read for source in sources])
        answers: dict[int, list[Answer]] = {}
        for source, of_image in zip(sources, ranked, strict=True):
            best = enumerate(of_image[: options.n_best], 1)
            several = options.n_best > 1
            answers[source.number] = [self._answer(source, n, one, several) for n, one in best]
        return answers

    def _answer(self, source: Source, rank: int, label: Any, ranked: bool) -> Answer:
        name = self.task.classes[label.number]
        log = math.log(max(label.probability, SMALLEST))
        # Through float32, as the scores of other predictors.
        probability = float(torch.tensor([log]).exp())
        tokens = ((name, probability),)
        line = source.text.strip()
        return Answer(source.number, line, name, rank, log, log, tokens, ranked=ranked)

    @torch.no_grad()
    def trace(self, line: str, most: int) -> Trace:
        line = line.strip()
        source = self.task.read(line)
        inputs = self.task.sources([source])
        sequences = {"source": self._sequence(source, inputs, most)}
        number = self._likeliest(source)
        answer, expected = self.task.classes[number], expected_of(self.task, line)
        labels, written = [number], torch.tensor([[number]])
        is_text = not self.reads_images
        return Trace(line, source, (inputs,), sequences, labels, written, answer, expected, is_text)

    def answer(self, source: Any) -> str:
        return self.task.classes[self._likeliest(source)]

    def _likeliest(self, source: Any) -> int:
        (ranked,) = self.labels([source])
        return ranked[0].number

    def names(self, numbers: Iterable[int]) -> list[str]:
        return [self.task.classes[number] for number in numbers]


@registry.register("classes")
@final
class ImageClassPredictor(ClassPredictor, ImagePredictor):
    """Predictor of image classification."""

    def _sequence(self, source: Any, sources: Any, most: int) -> TracedSequence:
        check_patches(self.model, sources, most)
        return image_sequence(self.model, sources, source.pixels)

    def text_of_page(self) -> dict[str, Any]:
        return {"kind": "classes", "tokens": {"target": list(self.task.classes)}}


@registry.register("text_classes")
@final
class TextClassPredictor(ClassPredictor):
    """Predictor of the classes of texts."""

    def _sequence(self, source: Any, sources: Any, most: int) -> TracedSequence:
        if len(source) > most:
            raise UserError(
                f"expected at most {most} tokens, got {len(source)}; look at a shorter text"
            )
        return TracedSequence(self.task.show_source(source))


def check_patches(model: Any, images: Images, most: int) -> None:
    """Raises UserError for an image of more than `most` patches."""
    length = model.places(images).length
    if length > most:
        raise UserError(f"expected at most {most} patches, got {length}; look at a smaller image")


def image_sequence(model: Any, images: Images, pixels: Any) -> TracedSequence:
    """Return the tokens of an image. Patches are named by row and column, whatever the encoding uses."""
    positions = model.places(images)
    first, rows, columns = patch_grid(model, positions)
    names = patch_names(positions)[:first] + grid_names(rows, columns)
    height, width = _extent(positions, rows, columns)
    pool = getattr(model, "pool", None)
    return TracedSequence(names, PatchedImage(pixels, rows, columns, height, width, first, pool))


def grid_names(rows: int, columns: int) -> list[str]:
    """Return the patches of a grid as `row,column`, in row-major order."""
    return [f"{row},{column}" for row in range(rows) for column in range(columns)]


def patch_grid(model: Any, positions: Positions) -> tuple[int, int, int]:
    """Return the number of tokens without a position, and the rows and columns of the others."""
    first = 0
    if positions.unplaced is not None:
        first = int(positions.unplaced.reshape(-1, positions.length)[0].sum())
    coordinates = positions.coordinates.reshape(-1, positions.length, len(positions.axes))
    places = coordinates[0, first:]
    if places.shape[1] != 2:
        rows, columns = model.grid
        return first, rows, columns
    rows, columns = (len(side.unique()) for side in places.unbind(1))
    return first, rows, columns


def _extent(positions: Positions, rows: int, columns: int) -> tuple[int | float, int | float]:
    """Return height and width of the image in patches, without padding."""
    extent = positions.extent
    if extent is None or extent.shape[-1] != 2:
        return rows, columns
    height, width = extent.reshape(-1, 2)[0].tolist()
    return _within(height, rows), _within(width, columns)


def _within(side: int | float, count: int) -> int | float:
    return side if count - 1 < side <= count else count
