"""What the package asks of a task, and the registry of tasks. Tasks know positions and text, never models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from jarilab.core.errors import UserError
from jarilab.core.registry import Registry
from jarilab.core.shapes import Float, Int
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.metrics import METRICS, Metric
from jarilab.tasks.policies.base import PositionPolicy
from jarilab.tasks.policies.sequential import Sequential

registry = Registry("task", "jarilab.tasks")

Losses = tuple[Float[Tensor, ""], ...]
"""Each a mean over things of one kind; a loss is their sum."""


@dataclass(frozen=True, eq=False)
class Batch:
    """inputs: what the model is called with. labels: what it should say about each of the B examples; `len` gives B."""

    inputs: tuple[Any, ...]
    labels: Any


@runtime_checkable
class Learner(Protocol):
    """What a task may ask of the model it measures."""

    def write(self, sources: Tokens) -> list[list[int]]:
        """Answers written freely: token numbers, the end included."""
        ...

    def scores(self, batch: Batch) -> Any:
        """What the model says of the inputs: scores `(B, L, V)` of every token of the labels, given the right ones
        before it; scores of classes; objects."""
        ...

    @property
    def model(self) -> Any:
        """The model itself."""
        ...

    def most_attended(self, source: list[int], written: Sequence[int]) -> list[int]:
        """For each token written, the number of the token of the source, its end included, with the largest weight."""
        ...


@registry.base
class Task(ABC):
    """A thing to learn: its data, batches, loss and metrics, and how an example is shown to a person.

    A constructor takes options and reads nothing. Then either `prepare` reads the data, to train, or `restore` reads
    what a run keeps of them, to answer; the rest may be asked after one of these.
    """

    predictor: str | type = "sequences"
    """The kind of answer: a name of `jarilab.tasks.predictors`, or a `jarilab.Predictor` of one's own."""
    usual_model: ClassVar[str] = "encoder_decoder"
    """The kind of model that is taken where none is asked for."""
    model_arguments: ClassVar[tuple[str, ...]] = ()
    """What `model_options` will hold, known before any data are read: a model that takes these can learn the task."""
    joined_arguments: ClassVar[tuple[str, ...]] = ()
    """The same of a model that reads source and target as one sequence; none where nothing can be joined."""
    one_sequence: bool = False
    """Whether the model reads source and target as one sequence; `join` says so."""
    metric: Metric = METRICS["exact_match"]
    asks_policy: ClassVar[bool] = False
    """Whether a position policy says where its tokens are: they are all made by `TokenTask.tokens`."""
    policy: PositionPolicy = Sequential()
    """Where tokens are told to be."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        own = cls.__dict__.get("metric")
        if isinstance(own, Metric):  # tables and terminals show it by its name
            METRICS.setdefault(own.name, own)

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        """Settings that suit this task better than the usual ones: `{"model.d_model": 256}`."""
        return {}

    @final
    def set_position_policy(self, policy: PositionPolicy) -> None:
        """Let a policy say where tokens are. Raises UserError where the task says that itself."""
        if not policy.plain and not self.asks_policy:
            raise UserError(
                f"{type(self).__name__} says itself where its tokens are, and asks no position policy; use --positions "
                "sequential, or in a task of your own make all tokens by self.tokens(...) and set asks_policy = True"
            )
        self.policy = policy

    @final
    def join(self) -> None:
        """Give source and target as one sequence, to a language model. Only a task with `joined_arguments` can."""
        self.one_sequence = True
        self.predictor = "prompted"

    def prepare(self) -> None:
        """Read the data. Raises UserError."""
        return

    def artifacts(self) -> dict[str, bytes]:
        """The files a run keeps so that it can answer without the data, by name: vocabularies, names of classes."""
        return {}

    def restore(self, folder: Path) -> None:
        """Read the files of `artifacts` from the folder of a run. Raises UserError."""
        return

    def hold_out(self, paths: Sequence[str]) -> None:
        """Measure on these files instead of the task's own held-out data. Raises UserError."""
        raise UserError("this task makes its own held-out data; omit --data")

    @property
    def held_out_of(self) -> tuple[str, ...]:
        """The training files that the held-out data are taken from; they must still be what `fingerprint` was of."""
        return ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The parts of the data that the metric is reported for; the first is everything."""
        return ("all",)

    @property
    @abstractmethod
    def model_options(self) -> dict[str, Any]:
        """What the data decides about the model: sizes of vocabularies."""

    def check_model(self, options: Mapping[str, Any]) -> None:
        """Raises UserError for options of a model that these data cannot be learned with."""
        return

    @property
    def longest(self) -> dict[str, int]:
        """The longest sequence of each side, in tokens, where there are tokens."""
        return {}

    @final
    def tokens_read(self, side: str) -> int:
        """How many tokens at most a model reads as one sequence of a side."""
        return sum(self.longest.values()) if self.one_sequence else self.longest.get(side, 0)

    @property
    @abstractmethod
    def training_size(self) -> int:
        """The number of examples to train on."""

    @property
    def training_lengths(self) -> Int[Tensor, "N S"] | None:
        """How many tokens each sequence of an example takes up in a batch, as source and target, which are padded
        apart; None where all examples are alike."""
        return None

    @property
    def tokens_per_example(self) -> float | None:
        """How many tokens an example has on average, padding not counted; None where all are alike, so that a rate is
        as well told in examples."""
        lengths = self.training_lengths
        return None if lengths is None else float(lengths.sum()) / len(lengths)

    @abstractmethod
    def training_batch(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Batch:
        """The training examples with these numbers. generator: for what is drawn at random; keyed by seed and step."""

    @abstractmethod
    def loss(self, scores: Any, batch: Batch, smoothing: float = 0.0) -> Float[Tensor, ""]:
        """What training makes smaller. scores: what the model says of the batch. smoothing: the share of a target's
        probability that is spread over what else there is."""

    def loss_terms(self, scores: Any, batch: Batch, smoothing: float = 0.0) -> Losses:
        """What `loss` is the sum of."""
        return (self.loss(scores, batch, smoothing),)

    def loss_counts(self, batch: Batch, scores: Any) -> tuple[float, ...]:
        """How much each of the `loss_terms` of a batch is the mean over: what the parts of a batch weigh where several
        processes, or several passes, compute it. The examples, where not told. scores: of any batch."""
        return (float(len(batch.labels)),)

    @abstractmethod
    def evaluate(self, learner: Learner, examples: int | None = None) -> dict[str, Any]:
        """Metrics on held-out data, or on `examples` of them evenly taken; one of them is `metric`.

        `examples` is also the number measured on. On all of the data a task may add `parts`: its metric by what an
        example is like, as `jarilab.tasks.breakdown` has it, and `group_examples`, how many examples each group has: a
        report draws them with intervals.
        """

    def ceiling(self) -> dict[str, float] | None:
        """The share of exact answers that no model without positions can pass, for each group; None if not known."""
        return None

    def ceiling_sentence(self) -> str:
        """What the ceiling is, for the reader of a report."""
        return ""

    def sample_inputs(self) -> list[str]:
        """A few inputs worth looking at."""
        return []

    def notices(self) -> list[str]:
        """What a person should know of the data that were read: lines left out."""
        return []

    def held_out_notices(self) -> list[str]:
        """The same of the held-out data, once these were read."""
        return []

    def describe(self) -> str:
        """The data in one sentence."""
        return ""

    def purpose(self) -> tuple[str, str]:
        """What a model that learned this does, for whoever opens a page of it: a sentence in English, and in Korean.

        A run that is looked into may be far from its data, so this follows from the options and what `restore` reads.
        """
        return "", ""

    def fingerprint(self) -> str:
        """What the training data is, so that a run is not continued on other data. Raises UserError."""
        return self.describe()
