"""A task of one's own, with a metric of its own and a kind of answer of its own: how far apart two equal letters stand.

    jarilab train examples/my_task.py:Distance --encoding rotary --out runs/distance
    jarilab evaluate runs/distance --trust-code
    jarilab predict runs/distance a-bc-a-d --trust-code
    jarilab explore runs/distance --input a-bc-a-d --trust-code
    jarilab compare examples/my_task.py:Distance --encodings none,sinusoidal,rotary --out runs/distances

A line holds one letter twice, among others and dashes. The answer is a number with a fraction, the mean of what the
model thinks likely, and how sure it is: nothing that the package knows. The task says its data and loss, the metric how
answers are judged, the predictor how they are given and shown; nothing of the package is edited or registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional

import jarilab
from jarilab import Tokens, UserError
from jarilab.tasks.base import Batch, Learner

LETTERS = "-abcdefgh"
LENGTH = 10
FIRST = len(LETTERS)  # the token that the answer is read from, at the end of each line
ERROR = jarilab.Metric("mean_error", "mean error in places", higher=False, digits=3)


@dataclass(frozen=True)
class Quantity(jarilab.Prediction):
    """A number, and the standard deviation of what the model thinks it may be."""

    input: str
    mean: float = 0.0
    deviation: float = 0.0
    error: str | None = None

    def record(self) -> dict[str, Any]:
        answer = None if self.error else {"mean": self.mean, "deviation": self.deviation}
        return {"input": self.input, "answer": answer, "error": self.error}

    def text(self) -> Iterator[str]:
        yield "\n" if self.error else f"{self.mean:.2f} ± {self.deviation:.2f}\n"


@dataclass(frozen=True, kw_only=True)
class QuantityOptions:
    """temperature: scores are divided by it; above 1, the model is less sure."""

    temperature: Annotated[float, Gt(0)] = 1.0


class Quantities(jarilab.Predictor):
    """What a model says at the last token, as a distribution over distances."""

    options = QuantityOptions

    def predict(
        self, sources: Iterable[str | UserError], options: QuantityOptions, *, at_once: int = 1
    ) -> Iterator[Quantity]:
        for source in sources:
            try:
                if isinstance(source, UserError):
                    raise source
                scores_V = self._scores(self.task.read(source)) / options.temperature
                yield Quantity(source, *mean_and_deviation(scores_V))
            except UserError as error:
                yield Quantity(str(source), error=str(error))

    @torch.no_grad()
    def trace(self, line: str, most: int) -> jarilab.Trace:
        read = self.task.read(line)
        tokens = Tokens.of(torch.tensor([read]), "target")
        scores_LV = self.model(tokens)[0]
        mean, deviation = mean_and_deviation(scores_LV[-1])
        labels = scores_LV.argmax(-1).tolist()
        written = torch.full((1, len(read)), -1)  # nothing is asked of the tokens before the last
        written[0, -1] = labels[-1]
        names = [*line.strip(), "?"]
        sequences = {"target": jarilab.TracedSequence(names)}
        answer = f"{mean:.2f} ± {deviation:.2f}"
        expected = str(distance(read))
        return jarilab.Trace(
            line.strip(), read, (tokens,), sequences, labels, written, answer, expected
        )

    def _scores(self, read: list[int]) -> Tensor:
        batch = Batch((Tokens.of(torch.tensor([read]), "target"),), None)
        return self.learner().scores(batch)[0, -1]

    def names(self, numbers: Iterable[int]) -> list[str]:
        return [str(number) for number in numbers]

    @property
    def vocabulary(self) -> str:
        return LETTERS


class Distance(jarilab.Task):
    """Lines such as `a-bc-a-d`, in which one letter stands twice.

    lines: how many to train on. held_out: how many others to measure on.
    """

    predictor = Quantities
    usual_model = "decoder"
    model_arguments = ("vocab_size",)
    metric = ERROR

    def __init__(
        self, *, lines: Annotated[int, Ge(1)] = 20_000, held_out: Annotated[int, Ge(1)] = 500
    ):
        self.lines_of_training, self.lines_held_out = lines, held_out

    @classmethod
    def defaults(cls, model: str) -> dict[str, Any]:
        training = {"examples": 100_000, "batch_size": 128, "lr": 4e-3, "evaluations": 5}
        named = {f"training.{name}": value for name, value in training.items()}
        return named | {"model.d_model": 64, "model.n_layers": 2, "model.n_heads": 4}

    def prepare(self) -> None:
        self._training = made(self.lines_of_training, seed=1)
        self._held_out = made(self.lines_held_out, seed=2)

    def restore(self, folder: Any) -> None:
        self._held_out = made(self.lines_held_out, seed=2)

    def purpose(self) -> tuple[str, str]:
        return (
            "Says how far apart the two equal letters stand.",
            "같은 두 글자가 얼마나 떨어져 있는지 말합니다.",
        )

    @property
    def model_options(self) -> dict[str, Any]:
        return {"vocab_size": FIRST + 1}

    @property
    def longest(self) -> dict[str, int]:
        return {"target": LENGTH + 1}

    @property
    def training_size(self) -> int:
        return len(self._training)

    def training_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        return batch_of(self._training[indices])

    def loss(self, scores: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
        last_BV = scores[:, -1].float()
        return functional.cross_entropy(last_BV, batch.labels, label_smoothing=smoothing)

    def evaluate(self, learner: Learner, examples: int | None = None) -> dict[str, Any]:
        ids_BL = self._held_out[:examples]
        batch = batch_of(ids_BL)
        scores_BLV = learner.scores(batch)
        errors = [
            abs(mean_and_deviation(scores_V)[0] - int(label))
            for scores_V, label in zip(scores_BLV[:, -1], batch.labels, strict=True)
        ]
        return {ERROR.name: sum(errors) / len(errors), "examples": float(len(errors))}

    def read(self, line: str) -> list[int]:
        line = line.strip()
        twice = [letter for letter in set(line) if letter != "-" and line.count(letter) == 2]
        if len(twice) != 1 or not set(line) <= set(LETTERS) or len(line) > LENGTH:
            raise UserError(
                f"expected up to {LENGTH} of {LETTERS}, one letter among them twice; got {line[:40]!r}; write a-bc-a-d"
            )
        return [*(LETTERS.index(letter) for letter in line), FIRST]

    def sample_inputs(self) -> list[str]:
        return ["a-bc-a-d", "cab---dc"]

    def describe(self) -> str:
        return f"{self.lines_of_training:,} lines of {LENGTH} letters, one of which stands twice"


def made(lines: int, seed: int) -> Tensor:
    """Token numbers `(N, L + 1)`: some letters once, one of them twice, dashes between, and the last token."""
    generator = torch.Generator().manual_seed(seed)
    ids_NL = torch.zeros(lines, LENGTH + 1, dtype=torch.long)
    ids_NL[:, -1] = FIRST
    letters_N8 = torch.rand(lines, 8, generator=generator).argsort(1) + 1
    places_NL = torch.rand(lines, LENGTH, generator=generator).argsort(1)
    for column in range(5):  # the first letter twice, three others once
        letter = letters_N8[:, max(0, column - 1)]
        ids_NL[torch.arange(lines), places_NL[:, column]] = letter
    return ids_NL


def batch_of(ids_BL: Tensor) -> Batch:
    labels = torch.tensor([distance(row) for row in ids_BL.tolist()])
    return Batch((Tokens.of(ids_BL, "target"),), labels)


def distance(ids: list[int]) -> int:
    """How far apart the letter stands that is there twice."""
    twice = next(token for token in ids if 0 < token < FIRST and ids.count(token) == 2)
    first = ids.index(twice)
    return ids.index(twice, first + 1) - first


def mean_and_deviation(scores_V: Tensor) -> tuple[float, float]:
    share_V = scores_V.double().softmax(-1)
    numbers_V = torch.arange(len(share_V), dtype=torch.float64)
    mean = (share_V * numbers_V).sum()
    variance = (share_V * (numbers_V - mean).square()).sum()
    return float(mean), float(variance.sqrt())
