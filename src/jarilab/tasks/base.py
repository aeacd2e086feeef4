"""The base class of tasks and their registry. Tasks know positions and text, never models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, final, runtime_checkable

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from jarilab.core.errors import UserError
from jarilab.core.registry import Registry
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.data.finding import SEVERITIES, Finding
from jarilab.data.images.alike import Thumbnails, find_alike
from jarilab.data.text import PADDING
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.metrics import METRICS, Metric, add_metric
from jarilab.tasks.policies.base import PositionPolicy, Sequential

registry = Registry("task", "jarilab.tasks")

Losses = tuple[Float[Tensor, ""], ...]
"""Named means over items of one kind. The loss is their sum."""


Parts = dict[str, dict[str, dict[str, float]]]
"""{property: {its value: {"value": share of right answers, "examples": their number}}}"""


def parts_of(
    right: Bool[Tensor, " N"], by: Mapping[str, Int[Tensor, " N"]]
) -> dict[Literal["parts"], Parts]:
    """Return the `parts` of `Task.evaluate`; nothing if no property varies.

    right: whether each answer is right. by: a number for each example and property.
    """
    parts: Parts = {}
    for name, number_N in by.items():
        values = number_N.unique().tolist()
        if len(values) > 1:
            parts[name] = {str(value): _share(right[number_N == value]) for value in values}
    return {"parts": parts} if parts else {}


def _share(right: Bool[Tensor, " N"]) -> dict[str, float]:
    return {"value": float(right.double().mean()), "examples": len(right)}


def evenly(count: int, examples: int | None) -> Int[Tensor, " N"]:
    """Return `examples` of `count` indices, evenly spread; all by default."""
    if examples is None or examples >= count:
        return torch.arange(count)
    return torch.arange(examples) * count // examples


def right_padded(lines: Sequence[list[int]]) -> Int[Tensor, "B L"]:
    """Return token ids, padded at the end."""
    rows = [torch.tensor(line, dtype=torch.long) for line in lines]
    if not rows:
        return torch.empty(0, 0, dtype=torch.long)
    return pad_sequence(rows, batch_first=True, padding_value=PADDING)


def without_padding(line: Sequence[int], padding: int) -> list[int]:
    """Return the tokens of a row without padding."""
    return [token for token in line if token != padding]


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of B examples. inputs: arguments of the model. labels: the right outputs; `len` gives B."""

    inputs: tuple[Any, ...]
    labels: Any


Judge = Callable[[Sequence[tuple[str, str]], Sequence[str]], dict[str, Any]]
"""From pairs of source and reference, and the written answers, to further scores."""


@runtime_checkable
class Learner(Protocol):
    """What a task may ask of the model that it measures."""

    @property
    def judge(self) -> Judge | None:
        """Scores answers beside BLEU; None for no such scores."""
        ...

    def write(self, sources: Tokens) -> list[list[int]]:
        """Return freely written answers: token ids with the end."""
        ...

    def scores(self, batch: Batch) -> Any:
        """Return the model's outputs: scores `(B, L, V)` under teacher forcing, scores of classes, or objects."""
        ...

    @property
    def model(self) -> Any:
        """The model."""
        ...

    def most_attended(self, source: list[int], written: Sequence[int]) -> list[int]:
        """Return, for each written token, the index of the source token with the largest weight, the end included."""
        ...


def full_names(**sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their full names: `{"model.d_model": 256}` for `model={"d_model": 256}`."""
    named: dict[str, Any] = {}
    for section, options in sections.items():
        named |= {f"{section}.{name}": value for name, value in options.items()}
    return named


@registry.base
class Task(ABC):
    """A task: its data, batches, loss and metrics, and how examples are shown.

    A constructor takes options and reads nothing. Then `prepare` reads the data for training, or `restore` reads what a
    run keeps of them. Other methods may be called after one of these.
    """

    predictor: str | type = "sequences"
    """The kind of answer: a name of `jarilab.tasks.predictors`, or your own `jarilab.Predictor`."""
    usual_model: ClassVar[str] = "encoder_decoder"
    """The default kind of model."""
    model_arguments: ClassVar[tuple[str, ...]] = ()
    """The names in `model_options`, known before data are read. A model that accepts them can learn the task."""
    joined_arguments: ClassVar[tuple[str, ...]] = ()
    """The same for a model that reads source and target as one sequence; empty if that is impossible."""
    one_sequence: bool = False
    """Whether the model reads source and target as one sequence; set by `join`."""
    metric: Metric = METRICS["exact_match"]
    asks_policy: ClassVar[bool] = False
    """Whether a position policy decides the positions: `TokenTask.tokens` makes all tokens."""
    policy: PositionPolicy = Sequential()
    """The position policy."""
    length_unit: ClassVar[str] = ""
    """What `at_length` counts, such as `tokens of a window`; empty if the task cannot measure other lengths."""
    has_stride: ClassVar[bool] = False
    """Whether `at_length` accepts a stride."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        metric = cls.__dict__.get("metric")
        if isinstance(metric, Metric):
            add_metric(metric)

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        """Return settings that suit this task better than the general ones: `{"model.d_model": 256}`."""
        return {}

    @final
    def set_position_policy(self, policy: PositionPolicy) -> None:
        """Set the position policy. Raises UserError if the task decides positions itself."""
        if not policy.plain and not self.asks_policy:
            raise UserError(
                f"{type(self).__name__} decides its positions itself: expected the policy sequential; use --positions "
                "sequential, or in a task of your own make all tokens by self.tokens(...) and set asks_policy = True"
            )
        self.policy = policy

    @final
    def join(self) -> None:
        """Give source and target as one sequence to a language model. Requires `joined_arguments`."""
        self.one_sequence = True
        self.predictor = "prompted"

    def prepare(self) -> None:
        """Read the data. Raises UserError."""
        return

    def artifacts(self) -> dict[str, bytes]:
        """Return the files by name that a run keeps in order to answer without the data, such as vocabularies."""
        return {}

    def restore(self, folder: Path) -> None:
        """Read the files of `artifacts` from a run's folder. Raises UserError."""
        return

    def hold_out(self, paths: Sequence[str]) -> None:
        """Measure on these files instead of the task's held-out data. Raises UserError."""
        raise UserError("this task makes its own held-out data; omit --data")

    @property
    def trained_length(self) -> int | None:
        """The longest length in training, in the unit of `length_unit`; None if unknown."""
        return None

    @final
    def at_length(self, length: int, stride: int | None = None) -> Self:
        """Return a copy that measures held-out data of this length, in the unit of `length_unit`.

        stride: distance between windows of a text. Raises UserError for a length or stride that the task cannot
        measure.
        """
        self.check_length(length, stride)
        task = copy(self)
        task._set_length(length, stride)
        return task

    @final
    @classmethod
    def check_length(cls, length: int, stride: int | None = None) -> None:
        """Raises UserError for a length or stride that no data of this task have."""
        name = cls.__name__
        if not cls.length_unit:
            raise UserError(
                f"expected a task whose inputs have a length, got {name}; omit the length, or use a task such as text, "
                "copy, arithmetic, translation or images"
            )
        if stride is not None and not cls.has_stride:
            raise UserError(
                f"stride: expected a task that reads windows of a text, got {name}; omit the stride"
            )
        if length < 2:
            raise UserError(
                f"length (--length, --eval-lengths): expected 2 or more {cls.length_unit}, got {length}; give a longer "
                "one"
            )
        if stride is not None and not 1 <= stride <= length:
            raise UserError(
                f"stride: expected 1 to {length}, the length of a window, got {stride}; give one of these"
            )

    def _set_length(self, length: int, stride: int | None) -> None:
        """Replace the held-out data of this copy by data of this length. Raises UserError."""
        raise NotImplementedError

    @property
    def held_out_of(self) -> tuple[str, ...]:
        """Return the training files that held-out data come from. They must still match `fingerprint`."""
        return ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of data with their own metric; the first is everything."""
        return ("all",)

    @property
    @abstractmethod
    def model_options(self) -> dict[str, Any]:
        """Return the model options that the data decide, such as vocabulary sizes."""

    def check_model(self, options: Mapping[str, Any]) -> None:
        """Raises UserError for model options that cannot learn these data."""
        return

    @property
    def longest(self) -> dict[str, int]:
        """The longest sequence of each side in tokens, if there are tokens."""
        return {}

    @final
    def tokens_read(self, side: str) -> int:
        """Return the maximal number of tokens that a model reads as one sequence of a side."""
        return sum(self.longest.values()) if self.one_sequence else self.longest.get(side, 0)

    def tokens_trained(self, side: str) -> int:
        """Return the maximal number of tokens of a side in training, which held-out data may exceed."""
        return self.tokens_read(side)

    @property
    @abstractmethod
    def training_size(self) -> int:
        """The number of training examples."""

    @property
    def training_lengths(self) -> Int[Tensor, "N S"] | None:
        """Return the lengths of each example's source and target; None if all examples are equal."""
        return None

    @property
    def tokens_per_example(self) -> float | None:
        """The mean number of tokens of an example without padding; None if all are equal."""
        lengths = self.training_lengths
        # Unlike PyTorch, NumPy needs no copy of all in 64 bits for the sum.
        return (
            None if lengths is None else float(lengths.numpy().sum(dtype=np.int64)) / len(lengths)
        )

    @abstractmethod
    def training_batch(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Batch:
        """Return the training examples at these indices. generator: for random choices; keyed by seed and step."""

    @abstractmethod
    def loss(self, scores: Any, batch: Batch, smoothing: float = 0.0) -> Float[Tensor, ""]:
        """Return the training loss. scores: the model's outputs. smoothing: label smoothing."""

    def loss_terms(self, scores: Any, batch: Batch, smoothing: float = 0.0) -> Losses:
        """Return the terms whose sum is `loss`."""
        return (self.loss(scores, batch, smoothing),)

    def loss_counts(self, batch: Batch, scores: Any) -> tuple[float, ...]:
        """Return the number of items that each of `loss_terms` averages over; the examples by default.

        They weigh the parts of a batch that several processes or passes compute. scores: of any batch.
        """
        return (float(len(batch.labels)),)

    @abstractmethod
    def evaluate(self, learner: Learner, examples: int | None = None) -> dict[str, Any]:
        """Return metrics on held-out data, or on `examples` of them, evenly spread. They include `metric`, a
        finite number, and `examples`.

        On all data a task may add `parts`, its metric by a property of examples (see `parts_of`), and
        `group_examples`, the number of examples in each group. A report shows them with intervals. If `metric` is a
        mean over examples, it may add `outcomes`, a list of their values: comparisons pair encodings over them.
        """

    def ceiling(self) -> dict[str, float] | None:
        """Return the upper bound without positions, by group: the largest mean share of exact answers. None if
        unknown.
        """
        return None

    def ceiling_sentence(self) -> str:
        """Return a sentence that explains the ceiling in a report."""
        return ""

    def sample_inputs(self) -> list[str]:
        """Return a few interesting inputs."""
        return []

    def notices(self) -> list[str]:
        """Return messages about the data read, such as omitted lines."""
        return []

    def held_out_notices(self) -> list[str]:
        """Return messages about the held-out data, after reading them."""
        return []

    def describe(self) -> str:
        """Return the data in one sentence."""
        return ""

    def purpose(self) -> tuple[str, str]:
        """Return what a trained model does, one sentence in English and one in Korean.

        A run may be inspected without its data, so this uses only the options and what `restore` reads.
        """
        return "", ""

    def fingerprint(self) -> str:
        """Return an identifier of the training data, which a continued run must match. Raises UserError."""
        return self.describe()


@runtime_checkable
class ChecksData(Protocol):
    """A task with checks of its own."""

    def check(self) -> list[Finding]:
        """Read the data and return what is to know about them before training. Raises UserError."""
        ...


@runtime_checkable
class HasThumbnails(Protocol):
    """A task whose images are compared with each other before training."""

    def thumbnails(self) -> tuple[Thumbnails, Thumbnails]:
        """Return those of the training images and of the held-out ones, after `prepare`."""
        ...


def check_data(task: Task) -> list[Finding]:
    """Read the data of a task and return what is to know before training, the most serious first.

    Without `ChecksData` these are the notices of training. Raises UserError for data that cannot be read.
    """
    if isinstance(task, ChecksData):
        findings = task.check()
    else:
        task.prepare()
        _ = getattr(task, "held_out", None)  # read, so that its notices are known
        lines = dict.fromkeys([*task.notices(), *task.held_out_notices()])
        notices = [Finding("warning", "notice", line) for line in lines]
        findings = [Finding("note", "data", task.describe()), *notices]
        if isinstance(task, HasThumbnails):
            findings += find_alike(*task.thumbnails())
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
