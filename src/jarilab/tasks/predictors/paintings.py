"""Images generated for captions, and images encoded and decoded by the image tokenizer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, final

import torch
from annotated_types import Ge, Le, Lt
from jaxtyping import UInt8

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.core.storage.files import write_bytes
from jarilab.data.images import HELD_OUT
from jarilab.data.images import draw as drawing
from jarilab.data.images.image_files import check_png
from jarilab.data.images.image_tokenizer import decibels
from jarilab.models.base import Paints
from jarilab.positions.patches import PatchedImage
from jarilab.tasks.predictors.base import (
    AT_ONCE,
    Inputs,
    Prediction,
    Predictor,
    Trace,
    TracedSequence,
    expected_of,
    next_tokens,
    registry,
)
from jarilab.tasks.predictors.classes import grid_names

_FILE = re.compile(r"\.[A-Za-z]{3,4}$")
"""Suffixes of image files."""
MOST_SHOWN = 100
"""Maximal images beside their reconstructions in one grid."""
BETWEEN = ("<picture>", "<no caption>")
"""Names of the tokens between words and codes in the common vocabulary: the mark, and the omitted caption."""


@dataclass(frozen=True, kw_only=True)
class PaintingOptions:
    """Options of image generation.

    count: images for one caption. out: PNG file to write. For a caption it has a grid of images; for image files, each
    beside its reconstruction from codes. guidance: strength of the caption: 1 for no guidance, and larger values for
    images closer to the caption (default: that of the run). temperature: divides the scores; the run's by default.
    top_k: draw from this many most likely codes. top_p: draw from the most likely codes with this total probability.
    rerank: generate this many times as many images, and keep those that a second model scores best. seed: seed of the
    random numbers; an image depends on seed and number only.
    """

    count: Annotated[int, Ge(1), Le(10_000)] = 8
    out: str | None = None
    guidance: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    rerank: Annotated[int, Ge(1), Le(1000)] = 1
    seed: Annotated[int, Ge(0), Lt(2**63)] = 1


@final
@dataclass(frozen=True, eq=False)
class Painting(Prediction):
    """The images generated for a caption. images: None if the caption could not be read."""

    input: str
    images: UInt8[torch.Tensor, "n 3 H W"] | None = None
    out: str | None = None
    error: str | None = None

    def record(self) -> dict[str, Any]:
        record = {"prompt": self.input.strip(), "out": self.out}
        return record if self.error is None else record | {"error": self.error}

    def text(self) -> Iterator[str]:
        if self.error is None:
            yield f"{self.out or len(self.images)}\n"  # type: ignore[arg-type]


@final
@dataclass(frozen=True, eq=False)
class Reconstruction(Prediction):
    """An image beside its reconstruction from codes, or the error. decibels: their PSNR."""

    input: str
    images: UInt8[torch.Tensor, "2 3 H W"] | None = None
    decibels: float | None = None
    error: str | None = None

    def record(self) -> dict[str, Any]:
        return {"input": self.input, "psnr": self.decibels, "error": self.error}

    def text(self) -> Iterator[str]:
        if self.decibels is not None:
            yield f"{self.input}\t{self.decibels:.1f} dB\n"


@registry.register("paintings")
@final
class PaintingPredictor(Predictor):
    """Predictor of the task `captions`: generates images for captions, and reconstructs images."""

    needs = Paints
    options = PaintingOptions
    reads_images = True
    writes = frozenset({"out"})
    scores = False
    served_at_most: ClassVar[Mapping[str, int | float]] = {
        "count": 16,
        "rerank": 4,
        "guidance": 1000,
        "temperature": 1000,
    }
    reported = False
    continues = True

    def predict(
        self, sources: Inputs, options: PaintingOptions, *, at_once: int = AT_ONCE
    ) -> Iterator[Painting | Reconstruction]:
        captions = list(sources)
        images = [str(source) for source in captions if is_image(source)]
        if images:
            if len(images) < len(captions):
                raise UserError("expected a caption or images, got both; give one or the other")
            yield from self._reconstructed(images, options)
            return
        if options.out is not None:
            check_png(options.out)
            if len(captions) != 1:
                got = f"{len(captions)} captions" if captions else "nothing"
                raise UserError(f"--out: expected one caption for the file, got {got}; give one")
        for caption in captions:
            yield self._painting(caption, options)

    def names_image(self, source: str) -> bool:
        return is_image(source)

    def _painting(self, caption: str | UserError, options: PaintingOptions) -> Painting:
        if isinstance(caption, UserError):
            return Painting("", error=str(caption))
        try:
            self.task.read(caption)
        except UserError as error:
            return Painting(caption, error=str(error))
        images = None
        for images in self.steps(caption, options):
            if options.out is not None:
                columns = math.ceil(math.sqrt(len(images)))
                grid = drawing.grid(list(images), columns)
                write_bytes(Path(options.out), drawing.png(grid))
        return Painting(caption, images, options.out)

    def steps(
        self, caption: str, options: PaintingOptions
    ) -> Iterator[UInt8[torch.Tensor, "n 3 H W"]]:
        """Yield the images after each row of codes; the last ones are complete. Raises UserError."""
        task = self.task
        sampling = {
            "guidance": task.guidance if options.guidance is None else options.guidance,
            "temperature": task.temperature if options.temperature is None else options.temperature,
            "top_k": options.top_k,
            "top_p": options.top_p,
        }
        drawn = {"rerank": options.rerank, "seed": options.seed}
        return task.images(self.model, caption, options.count, **drawn, **sampling)

    def _reconstructed(
        self, names: Sequence[str], options: PaintingOptions
    ) -> Iterator[Reconstruction]:
        if options.out is not None:
            check_png(options.out, map(Path, names))
            if len(names) > MOST_SHOWN:
                raise UserError(
                    f"expected at most {MOST_SHOWN} images in a grid, got {len(names):,}; name fewer"
                )
        reconstructions = [self._reconstruction(name) for name in names]
        whole = [one for one in reconstructions if one.images is not None]
        if whole and options.out is not None:
            _write_beside(whole, options.out)
        yield from reconstructions

    def _reconstruction(self, name: str) -> Reconstruction:
        """Return the reconstruction of an image: the middle square of a file, or a held-out image."""
        try:
            image = self.task.image(name)
        except UserError as error:
            return Reconstruction(name, error=str(error))
        codes = self.task.codes
        again = codes.decode(codes.encode(image.unsqueeze(0)))[0]
        return Reconstruction(name, torch.stack((image, again)), decibels(image, again))

    @property
    def traced_model(self) -> torch.nn.Module:
        """The model of words and codes in one sequence."""
        return self.model.one_sequence()

    @torch.no_grad()
    def trace(self, line: str, most: int) -> Trace:
        """Trace a caption and the first image generated for it, as one sequence.

        With guidance, the half with the caption is traced. Nothing follows the last code.
        """
        source = self.task.read(line)
        rows, columns = self.task.grid
        length = len(source) + len(BETWEEN) + rows * columns
        if length > most:
            raise UserError(
                f"expected at most {most} words and codes, got {length}; look at a run on smaller images"
            )
        tokens = self.model.joined(self.task.sources([source]), self._codes(source))
        ids = tokens.ids[0].tolist()
        names = [*self.names(ids[: -rows * columns]), *grid_names(rows, columns)]
        image = self._image(ids)
        first = len(names) - rows * columns
        patched = PatchedImage(image, rows, columns, rows, columns, first)
        answer = self.task.judged(image)
        expected = expected_of(self.task, line.strip())
        sequences = {"target": TracedSequence(names, patched)}
        written = next_tokens(tokens.ids)
        return Trace(line.strip(), source, (tokens,), sequences, ids[1:], written, answer, expected)

    def _codes(self, source: list[int]) -> Int[Tensor, "1 N"]:
        """Return the codes of the first image that `predict` generates, with the run's guidance and temperature."""
        task = self.task
        sampling = {
            "guidance": task.guidance,
            "temperature": task.temperature,
            "seed": PaintingOptions().seed,
        }
        return torch.stack(list(self.model.steps(task.sources([source]), **sampling)), 1)

    def _image(self, ids: Sequence[int]) -> UInt8[Tensor, "3 H W"]:
        """Return the image of the codes at the end of a sequence."""
        rows, columns = self.task.grid
        codes = torch.tensor(ids[-rows * columns :]) - len(self.task.words) - len(BETWEEN)
        return self.task.codes.decode(codes.view(1, rows, columns))[0]

    def names(self, numbers: Iterable[int]) -> list[str]:
        words = self.task.words
        names = [*words.names(range(len(words))), *BETWEEN]
        return [
            names[number] if number < len(names) else f"code {number - len(names)}"
            for number in numbers
        ]

    @property
    def vocabulary(self) -> str:
        words = self.task.words
        return "\n".join([*words.names(range(len(words))), self.task.codes.fingerprint])


def is_image(source: str | UserError) -> bool:
    """Whether a source is an image, held out or a file, and not a caption."""
    if isinstance(source, UserError):
        return False
    text = source.strip()
    if text.startswith(HELD_OUT) or _FILE.search(text) is not None:
        return True
    try:
        return Path(text).is_file()
    except OSError:  # too long to be the name of a file
        return False


def _write_beside(reconstructions: Sequence[Reconstruction], out: str) -> None:
    """Write a grid of images, each with its reconstruction to the right."""
    cells: list[Tensor] = []
    labels: list[str] = []
    for one in reconstructions:
        cells += list(one.images)  # type: ignore[arg-type]
        labels += [Path(one.input).name, f"{one.decibels:.1f} dB"]
    columns = 2 * math.ceil(math.sqrt(len(reconstructions)))
    write_bytes(Path(out), drawing.png(drawing.grid(cells, columns, labels)))
