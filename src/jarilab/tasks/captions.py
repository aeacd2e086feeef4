"""Text to image: captions, and images that match them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, cast, final

import torch
from annotated_types import Ge, Le, Lt
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional

from jarilab.core.errors import UserError, counted, printable
from jarilab.core.options import check_fields
from jarilab.core.shapes import Float, Int
from jarilab.data.captions.judges import Judges
from jarilab.data.captions.sources import (
    MAX_CAPTION_BYTES,
    CaptionSource,
    FolderSource,
    SceneSource,
)
from jarilab.data.captions.styles import STYLES
from jarilab.data.finding import Finding
from jarilab.data.images import HELD_OUT
from jarilab.data.images.alike import find_alike
from jarilab.data.images.image_tokenizer import FILE as CODES
from jarilab.data.images.image_tokenizer import (
    STRIDE,
    ImageTokenizer,
    QuantizerName,
    cached_image_tokenizer,
)
from jarilab.data.images.resize import fitted
from jarilab.data.text import FIRST, PADDING, tokenizers
from jarilab.data.text.tokenizers import Tokenizer
from jarilab.nn.loss import cross_entropy
from jarilab.tasks.base import (
    Batch,
    Learner,
    Losses,
    Task,
    evenly,
    full_names,
    registry,
    right_padded,
)
from jarilab.tasks.classification import held_out_number
from jarilab.tasks.metrics import METRICS

AT_ONCE = 256  # images in a batch
MOST = 10_000  # largest count * rerank of one request
SEED = 1  # of the image tokenizer and of measured images; independent of the seed of a run
_VOCABULARY = 8000  # words of captions at most
WORDS, FACTS = "vocabulary.json", "captions.json"

Pixels = UInt8[Tensor, "B 3 H W"]


@registry.register("captions")
@final
class Captions(Task):
    """Captions and images: generated scenes of real handwritten digits, or a folder of images with texts.

    train: scenes, or a folder of images, each with a *.txt of the same name. captions: style of scenes, row ("three one
    seven") or attributes ("a small red 3 top left"). digits: a folder of MNIST's files for scenes, instead of
    scikit-learn's scans. scenes: number of training scenes. unseen: share of word combinations that no training scene
    has; these are then measured. size: height and width of a folder's images, in pixels. codes: a run whose image
    tokenizer is used; by default one is trained first. quantizer: quantizer of the image tokenizer. code_steps:
    training steps of the image tokenizer. judge_steps: training steps of the judge and the scorer. caption_dropout:
    share of captions omitted in training, which guidance needs. image_weight: weight of the loss of image codes; words
    have 1. guidance: guidance of the images that are measured. temperature: temperature of the images that are
    measured. rerank: images drawn for each measured one; the scorer chooses one, and the judge measures it.
    """

    predictor = "paintings"
    usual_model = "text_to_image"
    model_arguments = ("vocab_size", "codes", "caption", "rows", "columns")

    def __init__(
        self,
        *,
        train: str = "scenes",
        captions: Literal["row", "attributes"] = "row",
        digits: str = "",
        scenes: Annotated[int, Ge(1), Le(10_000_000)] = 30_000,
        unseen: Annotated[float, Ge(0), Lt(1)] = 0.0,
        size: Annotated[int, Ge(8), Le(512)] = 32,
        codes: str = "",
        quantizer: QuantizerName = "fsq",
        code_steps: Annotated[int, Ge(1), Le(10_000_000)] = 1500,
        judge_steps: Annotated[int, Ge(1), Le(10_000_000)] = 2000,
        caption_dropout: Annotated[float, Ge(0), Lt(1)] = 0.1,
        image_weight: Annotated[float, Ge(0)] = 7.0,
        guidance: Annotated[float, Ge(0), Le(1000)] = 2.0,
        temperature: Annotated[float, Ge(0), Le(1000)] = 0.7,
        rerank: Annotated[int, Ge(1), Le(1000)] = 1,
    ):
        if size % STRIDE:
            raise UserError(
                f"size: a code stands for {STRIDE} x {STRIDE} pixels: expected a multiple of {STRIDE}, got {size}"
            )
        self.train, self.style = train, STYLES[captions] if train == "scenes" else None
        self.digits, self.unseen, self.size = digits, unseen, size
        self._codes_of, self._quantizer, self._steps = codes, quantizer, (code_steps, judge_steps)
        self.caption_dropout, self.image_weight = caption_dropout, image_weight
        self.guidance, self.temperature, self.rerank = guidance, temperature, rerank
        self.metric = METRICS["exact_match" if self.style else "loss"]
        self._known: tuple[Tokenizer, ImageTokenizer] | None = None
        self._judges: Judges | None = None
        self._facts: dict[str, Any] = {}
        self._training: tuple[Tensor, Tensor] | None = None
        self._source: CaptionSource = (
            FolderSource(train, size)
            if self.style is None
            else SceneSource(self.style, digits, scenes, unseen)
        )

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        training = {"examples": 150_000, "batch_size": 48, "lr": 4e-3, "evaluations": 5}
        return full_names(training={**training, "evaluation_examples": 128})

    # Preparation --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        source = self._source
        words, rows_BT = self._training_words()
        codes = self._tokenizer_of_images()
        self._known = words, codes
        every = torch.arange(len(rows_BT)).split(AT_ONCE)
        ids = torch.cat([codes.encode(source.images(some)) for some in every])
        self._training = rows_BT, ids.flatten(1).int()
        (height, width), empty = ids.shape[1:], int(torch.bincount(ids.flatten()).argmax())
        self._facts = {
            "height": height,
            "width": width,
            "empty": empty,
            "longest": rows_BT.shape[1],
            "ceiling": {},
        }
        if isinstance(source, SceneSource):
            self._judges = Judges.train(source, self._steps[1])
            self._facts["ceiling"] = self._judges.ceiling(source, codes)

    def _training_words(self) -> tuple[Tokenizer, Int[Tensor, "N T"]]:
        """Return the tokenizer of captions, and the training captions as the model's input."""
        spaced = list(map(_spaced, self._source.captions))
        words = tokenizers.train("words", spaced, size=_VOCABULARY, lowercase=True)
        return words, self.sources(words.encode_batch(spaced))

    def check(self) -> list[Finding]:
        """Read the captions; prepare would train the tokenizer of images."""
        text = f"{len(self._source.captions):,} captions to train on; {self._source.held_out_size:,} are held out"
        words, rows_BT = self._training_words()
        lines = [*self._source.notices, *self._unlike_training(words, rows_BT.shape[1] - 1)]
        return [
            Finding("note", "data", text),
            *(Finding("warning", "notice", line) for line in lines),
            *(find_alike(*self._source.thumbnails()) if self.style is None else ()),
        ]

    def _tokenizer_of_images(self) -> ImageTokenizer:
        if self._codes_of:
            return ImageTokenizer.read(Path(self._codes_of) / CODES)
        source, options = self._source, {"quantizer": self._quantizer}
        count = len(source.captions)
        data = {
            "data": source.fingerprint,
            "count": count,
            "unseen": self.unseen,
            "size": self.size,
        }
        steps = self._steps[0]
        return cached_image_tokenizer(
            source.images, count, options, seed=SEED, steps=steps, data=data
        )

    def artifacts(self) -> dict[str, bytes]:
        files = {WORDS: self.words.to_json().encode(), CODES: self.codes.to_bytes()}
        if self._judges is not None:
            files |= self._judges.artifacts()
        return files | {FACTS: json.dumps(self._facts).encode()}

    def restore(self, folder: Path) -> None:
        self._known = Tokenizer.read(folder / WORDS), ImageTokenizer.read(folder / CODES)
        if self.style is not None:
            self._judges = Judges.read(self.style, folder)
        try:
            facts = json.loads((folder / FACTS).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(
                f"{folder / FACTS} cannot be read: {error}; the run cannot answer without it: put back a copy"
            ) from None
        rows, columns = (side // STRIDE for side in self._size)
        fields = {
            "height": Annotated[int, Ge(rows), Le(rows)],
            "width": Annotated[int, Ge(columns), Le(columns)],
            "empty": Annotated[int, Ge(0), Lt(len(self.codes))],
            "longest": Annotated[int, Ge(2), Le(1 + MAX_CAPTION_BYTES)],
            "ceiling": dict[str, float],
        }
        check_fields(str(folder / FACTS), fields, facts)
        self._facts = facts

    @property
    def words(self) -> Tokenizer:
        """The tokenizer of captions."""
        assert self._known is not None, "prepare or restore comes first"
        return self._known[0]

    @property
    def codes(self) -> ImageTokenizer:
        """The tokenizer of images."""
        assert self._known is not None, "prepare or restore comes first"
        return self._known[1]

    # For the model and the training loop ---------------------------------------------------------------------------

    @property
    def model_options(self) -> dict[str, Any]:
        return {
            "vocab_size": len(self.words),
            "codes": len(self.codes),
            "caption": self._facts["longest"],
            "rows": self._facts["height"],
            "columns": self._facts["width"],
        }

    @property
    def training_size(self) -> int:
        return len(self._rows[0])

    @property
    def _rows(self) -> tuple[Tensor, Tensor]:
        assert self._training is not None, "prepare comes first"
        return self._training

    def training_batch(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Batch:
        without = torch.rand(len(indices), generator=generator) < self.caption_dropout
        return _batch(self._rows[0][indices], self._rows[1][indices].long(), without)

    def loss(self, scores: Any, batch: Batch, smoothing: float = 0.0) -> Float[Tensor, ""]:
        """Return the mean cross-entropy of codes and that of words, weighted `image_weight` to 1, in nats."""
        of_words, of_codes = self.loss_terms(scores, batch, smoothing)
        return of_words + of_codes

    def loss_terms(self, scores: Any, batch: Batch, smoothing: float = 0.0) -> Losses:
        text = batch.inputs[0].shape[1]
        words, codes = batch.labels[:, :text].flatten(), batch.labels[:, text:].flatten()
        of_words = cross_entropy(
            scores.text.flatten(0, 1), words, ignore=PADDING, smoothing=smoothing
        )
        of_codes = functional.cross_entropy(
            scores.image.flatten(0, 1), codes, label_smoothing=smoothing
        )
        both = 1 + self.image_weight
        return of_words / both, of_codes * (self.image_weight / both)

    def loss_counts(self, batch: Batch, scores: Any) -> tuple[float, ...]:
        """Return the number of words without padding, and of codes."""
        text = batch.inputs[0].shape[1]
        words, codes = batch.labels[:, :text], batch.labels[:, text:]
        return float((words != PADDING).sum()), float(codes.numel())

    # Evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self, learner: Learner, examples: int | None = None) -> dict[str, Any]:
        """Return the loss in nats per code, of all codes and of all but the background's.

        For scenes, also the shares of images that match their captions: exactly, by digit and by attribute, beside the
        judge's accuracy on real images.
        """
        held_out = self._source.held_out(evenly(self._source.held_out_size, examples))
        captions, values = held_out.captions, held_out.values
        codes_BN = self.codes.encode(held_out.images).flatten(1)
        nats_BN = self._nats(learner, captions, codes_BN)
        outcomes_B = nats_BN.mean(1)
        metrics: dict[str, Any] = {
            "loss": float(nats_BN.mean()),
            "loss_of_ink": float(nats_BN[codes_BN != self._facts["empty"]].mean()),
            "psnr": self.codes.measured["psnr"],
            "codes_used": self.codes.measured["codes_used"],
        }
        if self._judges is not None and values is not None:
            drawn = self._draw(learner.model, captions, values)
            right = self._judges.right(drawn, values)
            outcomes_B = right["exact_match"]
            metrics |= {name: float(value_B.mean()) for name, value_B in right.items()}
            metrics |= self._facts["ceiling"]
        if examples is None:
            metrics["outcomes"] = outcomes_B.tolist()
        return {**metrics, "examples": len(captions)}

    def _nats(
        self, learner: Learner, captions: Sequence[str], codes_BN: Int[Tensor, "B N"]
    ) -> Float[Tensor, "B N"]:
        """Return the loss of each code of these captions."""
        rows_BT = self.sources(self._held_out_words(captions))
        nats = []
        for some in torch.arange(len(captions)).split(AT_ONCE):
            batch = _batch(rows_BT[some], codes_BN[some], torch.zeros(len(some), dtype=torch.bool))
            log_p_BNC = learner.scores(batch).image.float().log_softmax(-1)
            nats.append(-log_p_BNC.gather(-1, codes_BN[some].unsqueeze(-1)).squeeze(-1))
        return torch.cat(nats)

    def _held_out_words(self, captions: Sequence[str]) -> list[list[int]]:
        """Return the words of held-out captions, cut to the longest training caption; words may be unknown."""
        most = self._facts["longest"] - 1
        return [ids[:most] for ids in self.words.encode_batch(list(map(_spaced, captions)))]

    def _draw(self, model: Any, captions: Sequence[str], values: Tensor) -> Pixels:
        """Draw one image for each caption. Captions of a style have one length."""
        parts = []
        rows_BT = self.sources(self._held_out_words(captions))
        for chunk, some in enumerate(torch.arange(len(captions)).split(AT_ONCE)):
            steps = model.steps(
                rows_BT[some].repeat_interleave(self.rerank, 0),
                guidance=self.guidance,
                temperature=self.temperature,
                seed=SEED + chunk,
            )
            images = self.codes.decode(torch.stack(list(steps), 1).unflatten(1, self.grid))
            parts.append(self._chosen(images, values[some], 1))
        return torch.cat(parts)

    def _chosen(self, images: Pixels, values: Tensor, count: int) -> UInt8[Tensor, "N 3 H W"]:
        """Return the `count` most likely images of each caption, or all if no more were drawn."""
        if len(images) == count * len(values):
            return images
        return self.judges.best(images, values, count)

    @property
    def judges(self) -> Judges:
        """The judge and the scorer of scenes. Raises UserError if there are none."""
        if self._judges is None:
            raise UserError("rerank needs the judge of scenes, got images of a folder; omit rerank")
        return self._judges

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of codes."""
        return self._facts["height"], self._facts["width"]

    # For display ----------------------------------------------------------------------------------------------------

    def read(self, line: str) -> list[int]:
        """Return a caption's words. Raises UserError for an empty or too long caption, and for unknown words."""
        spaced = _spaced(line)
        strange = self.words.unknown(spaced)
        if strange:
            names = self.words.names(list(range(4, min(44, len(self.words)))))
            known = ", ".join(name.strip() for name in names)
            named = ", ".join(printable(word[:40]) for word in strange[:5])
            raise UserError(f"expected words of the training captions, got {named}; known: {known}")
        ids = self.words.encode(spaced)
        if not 1 <= len(ids) < self._facts["longest"]:
            raise UserError(
                f"expected a caption of 1 to {self._facts['longest'] - 1} words, got {len(ids)}: {line[:80]!r}"
            )
        return ids

    def sources(self, lines: Sequence[list[int]]) -> Int[Tensor, "B T"]:
        """Return captions as the model's input, padded at the end."""
        return right_padded([[FIRST, *line] for line in lines])

    def images(
        self, model: Any, prompt: str, count: int, *, rerank: int = 1, seed: int = 1, **drawing: Any
    ) -> Iterator[Pixels]:
        """Yield `count` images for a caption after each row of codes; missing codes are empty.

        The last ones are chosen from `rerank` times as many. drawing: guidance, temperature, top_k, top_p. Raises
        UserError.
        """
        if count < 1 or rerank < 1 or count * rerank > MOST:
            rule = f"count and rerank are 1 or more, and {MOST:,} at most when multiplied"
            raise UserError(f"{rule}; got count {count:,} and rerank {rerank:,}")
        words, values = self.read(prompt), None
        if rerank > 1:
            values = self.judges.style.understand(prompt.lower()).unsqueeze(0)
        rows = torch.tensor([[FIRST, *words]]).repeat(count * rerank, 1)
        height, width = self.grid
        ids = torch.full((len(rows), height * width), self._facts["empty"])
        for number, drawn in enumerate(model.steps(rows, seed=seed, **drawing)):
            ids[:, number] = drawn
            if (number + 1) % width == 0:
                images = self.codes.decode(ids.unflatten(1, self.grid))
                done = number + 1 == height * width and values is not None
                yield self._chosen(images, cast(Tensor, values), count) if done else images[:count]

    def judged(self, image: UInt8[Tensor, "3 H W"]) -> str | None:
        """Describe an image as a caption, by judge and rules; None without a judge."""
        return None if self._judges is None else self._judges.caption(image)

    def expected(self, line: str) -> str | None:
        """Return a caption in the words of `judged`; None if it is not of the style, or without a judge."""
        if self.style is None:
            return None
        try:
            return self.style.caption(self.style.understand(line.lower()))
        except UserError:
            return None

    def sample_inputs(self) -> list[str]:
        """Return held-out captions that can be drawn."""
        numbers = torch.arange(self._source.held_out_size).split(1)
        captions = (self._source.held_out(number).captions[0] for number in numbers)
        return list(islice(filter(self._is_readable, captions), 3))

    def _is_readable(self, caption: str) -> bool:
        try:
            return bool(self.read(caption))
        except UserError:
            return False

    def _unlike_training(self, words: Tokenizer, most: int) -> list[str]:
        """Return what held-out captions have that no training caption has. most: the longest of these in words."""
        captions = self._source.held_out(torch.arange(self._source.held_out_size)).captions
        rows = words.encode_batch(list(map(_spaced, captions)))
        lines = []
        if unknown := sum(map(words.count_unknown, rows)):
            share = unknown / sum(map(len, rows))
            lines.append(
                f"held-out captions: {share:.2%} of the words are not in the vocabulary of the training captions, and "
                "are read as one unknown word; give more captions"
            )
        if longer := sum(len(row) > most for row in rows):
            lines.append(
                f"{counted(longer, 'held-out captions', 'are')} cut to {most} words, as many as the longest training "
                "caption has"
            )
        return lines

    @cached_property
    def _held_out_notices(self) -> list[str]:
        return self._unlike_training(self.words, self._facts["longest"] - 1)

    def held_out_notices(self) -> list[str]:
        return self._held_out_notices

    def notices(self) -> list[str]:
        measured = self.codes.measured
        used = f"{measured['codes_used']:.0%} of {len(self.codes)} codes used, perplexity {measured['perplexity']:.1f}"
        return [
            *self._source.notices,
            f"the image tokenizer's images: {measured['psnr']:.1f} dB, {used}",
            *self.held_out_notices(),
        ]

    def image(self, line: str) -> UInt8[Tensor, "3 H W"]:
        """Return a file's image at the run's size, or a held-out one, `#5`. Raises UserError."""
        line = line.strip()
        if line.startswith(HELD_OUT):
            number = held_out_number(line, self._source.held_out_size)
            return self._source.held_out(torch.tensor([number])).images[0]
        return fitted(Path(line), 3, self._size, "crop").pixels

    @property
    def _size(self) -> tuple[int, int]:
        """Height and width of the images."""
        if self.style is None:
            return self.size, self.size
        return self.style.height, self.style.width

    def describe(self) -> str:
        count = f"{self.training_size:,}"
        if self.style is None:
            return f"{Path(self.train).name}: {count} captioned images of {self.size} x {self.size}"
        captions = len(set(self._source.captions))
        return f"{count} scenes of {captions} captions, {self.style.name}, of digits {self.digits or 'of scikit-learn'}"

    def purpose(self) -> tuple[str, str]:
        return "Paints an image of what a caption says.", "설명 글에 맞는 이미지를 그립니다."

    def fingerprint(self) -> str:
        return f"{self._source.fingerprint}, image tokenizer sha256 {self.codes.fingerprint}"


def _spaced(caption: str) -> str:
    """Return a caption with one space between words and punctuation, so that spacing does not matter."""
    return " ".join(re.findall(r"\w+|[^\w\s]+", caption))


def _batch(rows_BT: Tensor, codes_BN: Tensor, without_B: Tensor) -> Batch:
    """Return a batch. labels: the word after each word, then the codes; omitted captions have padding."""
    following = functional.pad(rows_BT[:, 1:], (0, 1), value=PADDING).masked_fill(
        without_B.unsqueeze(1), PADDING
    )
    return Batch((rows_BT, codes_BN, without_B), torch.cat((following, codes_BN), 1))
