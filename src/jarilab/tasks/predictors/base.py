"""What the rest of the package asks of a kind of answer, and the registry of these.

A task names its predictor (`predictor = "sequences"`, or a class of one's own). Whoever answers, measures, compares,
walks or explores asks the predictor, and nothing above this room knows a kind of task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from jarilab.core.devices import CPU, device_of, to_device
from jarilab.core.errors import UserError
from jarilab.core.registry import Registry
from jarilab.core.shapes import Int, Tensor
from jarilab.models.base import check_protocol
from jarilab.positions.patches import PatchedImage
from jarilab.tasks.base import Learner, Task
from jarilab.tasks.predictors.learner import ModelLearner, evaluating

registry = Registry("predictor", "jarilab.tasks.predictors")

NOTHING_SAID = -1
"""The label of a place where nothing was said."""
AT_ONCE = 256
"""Sources that are answered together."""


class Prediction(ABC):
    """What a model says of one source, or why it says nothing.

    input: the source as a person gave it. error: why there is no answer; None where there is one. rank: of several
    answers to one source, the best is 1 and comes first. images: what was painted, uint8 `(n, 3, H, W)`.
    """

    input: str
    error: str | None
    rank: int = 1
    images: Any = None

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""

    @abstractmethod
    def text(self) -> Iterator[str]:
        """What a person reads in a terminal, line ends included, piece by piece as soon as each is certain."""

    def stream(self) -> Iterator[str]:
        """The answer, piece by piece as it is written; nothing where all of it is known at once."""
        return iter(())

    @property
    def messages(self) -> list[str]:
        """What a person should be told beside the answer."""
        return [] if self.error is None else [self.error]


@dataclass(frozen=True)
class NoOptions:
    """A kind of answer without options."""


@dataclass(frozen=True, eq=False)
class TracedSequence:
    """One sequence of a trace: the names of its tokens, the image that they are patches of, and a box for each of them
    (left, top, right and bottom as shares of the image), where there are such."""

    names: Sequence[str]
    image: PatchedImage | None = None
    boxes: list[list[float]] | None = None


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward that shows what `predict` did.

    line: the input as a person gave it. read: what the task made of it. inputs: what to call the predictor's
    `traced_model` with, a batch of one. sequences: what it reads and writes, by frame: `source`, `target`. labels: what
    was said at each place, as `Predictor.names` numbers it; as many as there are places to look at. written: what the
    effect of an edit is measured on, `(1, L)`: the label at each place of the last input, below 0 where there is none.
    answer: as a person reads it; None where there is none. expected: the right answer, where it is known.
    is_text: digits, and links between words, may be looked for in it.
    """

    line: str
    read: Any
    inputs: tuple[Any, ...]
    sequences: dict[str, TracedSequence]
    labels: list[int]
    written: Int[Tensor, "1 L"]
    answer: str | None = None
    expected: str | None = None
    is_text: bool = False

    def names(self, frame: str) -> Sequence[str]:
        """The tokens of a sequence; none where there is no such sequence."""
        sequence = self.sequences.get(frame)
        return [] if sequence is None else sequence.names

    @property
    def measured(self) -> list[int]:
        """The labels that the effect of an edit is measured on."""
        return self.written[self.written >= 0].tolist()

    @property
    def source(self) -> Sequence[str]:
        """The tokens that were read; where there is one sequence alone, all of it."""
        return self.names("source") or self.names("target")

    @property
    def target(self) -> Sequence[str]:
        """The tokens after each of which something was said; none where it was said of the whole input."""
        return self.names("target")


@runtime_checkable
class Intervention(Protocol):
    """Edits to a forward: of the places of tokens, and inside attention."""

    @property
    def places(self) -> dict[str, Any]:
        """Where the tokens of `source` and `target` go."""
        ...

    @property
    def edits(self) -> Sequence[Any]:
        """Of heads, links and tokens."""
        ...

    def moving(
        self, model: torch.nn.Module, inputs: tuple[Any, ...]
    ) -> AbstractContextManager[tuple[Any, ...]]:
        """What to call the model with inside the block."""
        ...


@registry.base
class Predictor(ABC):
    """A model that was trained for a task, as whoever asks it for answers sees it.

    Raises UserError where the model lacks a method that answering takes, naming it.
    """

    needs: ClassVar[type | None] = None
    """The protocol of `jarilab.models.base` that a model must follow, or None for any model."""
    options: ClassVar[type] = NoOptions
    """A frozen dataclass: the options of `predict`, here, on the command line and in its help."""
    scoring: ClassVar[type] = NoOptions
    """The same of `evaluate`."""
    reads_files: ClassVar[bool] = False
    """Whether an input that is traced may name a file, which is read."""
    reads_images: ClassVar[bool] = False
    """Whether an input of `predict` may be an image."""
    writes: ClassVar[frozenset[str]] = frozenset()
    """The options of `predict` that name a file to write, which no server takes."""
    served_at_most: ClassVar[Mapping[str, int | float]] = {}
    """The most that a server takes of an option of `predict`, by its name: what memory and time grow with."""
    reported: ClassVar[bool] = True
    """Whether a report of several runs shows the attention behind its answers."""
    continues: ClassVar[bool] = False
    """Whether there is one sequence, whose tokens each follow the one before; then an edited model says nothing new."""

    def __init__(self, model: Any, task: Any):
        if self.needs is not None:
            check_protocol(type(model), self.needs, type(task).__name__)
        self.model, self.task = model, task

    @abstractmethod
    def predict(
        self, sources: Iterable[str | UserError], options: Any, *, at_once: int = AT_ONCE
    ) -> Iterator[Prediction]:
        """A prediction for each source, in order, or several where several are asked for. A source that cannot be read
        gets its error and stops nothing; a UserError among the sources is one that could not even be decoded.
        at_once: how many sources to answer together."""

    def evaluate(self, examples: int | None = None, options: Any = None) -> dict[str, Any]:
        """The task's metrics on its held-out data, or on `examples` of them. options: of `scoring`."""
        with evaluating(self.model):
            return self.task.evaluate(self.learner(options), examples)

    def learner(self, options: Any = None) -> Learner:
        """The model as the task that measures it sees it. options: of `scoring`."""
        return ModelLearner(self.model, self.task)

    def names_image(self, source: str) -> bool:
        """Whether `predict` would take a source for the name of an image, which is read."""
        return self.reads_images

    @abstractmethod
    def trace(self, line: str, most: int) -> Trace:
        """Answer an input, and give one forward that shows how. Raises UserError, before the model runs, where the
        input has more than `most` tokens, and for one that cannot be read."""

    def says(self, *inputs: Any) -> Any:
        """What the model makes of these inputs, on the processor wherever the model is."""
        return to_device(self.model(*to_device(inputs, device_of(self.model))), CPU)

    @property
    def traced_model(self) -> torch.nn.Module:
        """The model that `Trace.inputs` are for."""
        return self.model

    @abstractmethod
    def names(self, numbers: Iterable[int]) -> list[str]:
        """The name of each token or class that can be said."""

    @property
    @abstractmethod
    def vocabulary(self) -> str:
        """All that can be said, as one text: equal where two runs have the same tokens."""

    @property
    def block_tokens(self) -> Sequence[int]:
        """Tokens that a random block can be made of, which is read twice to look for induction heads; none where that
        has no meaning."""
        return ()

    def text_of_page(self) -> dict[str, Any] | None:
        """How a page that runs the model itself reads an input and tells an answer; None where no page can.

        kind: `sequence`, an answer written token by token; `continuation`, one sequence, after each token of which the
        next is foretold; `classes`, one answer to the whole input. tokens: names by number, of what is read (`source`)
        and of what is said (`target`). Of text also the task's `Spelling` and `first`, the number that an answer or an
        empty text begins with. Of a sequence `end`, `padding`: numbers; `longest`: tokens of each side at most.
        """
        return None

    def edited(self, trace: Trace, intervention: Intervention) -> str | None:
        """The answer under an intervention; None where an edited model says nothing new."""
        return None


def expected_of(task: Any, line: str) -> str | None:
    """The right answer to an input, where it is known: a run is looked at where its data are not, too."""
    try:
        return task.expected(line)
    except UserError:
        return None


def next_tokens(ids_1L: Int[Tensor, "1 L"]) -> Int[Tensor, "1 L"]:
    """What comes after each token of one sequence; nothing after the last."""
    nothing = torch.full_like(ids_1L[:, :1], NOTHING_SAID)
    return torch.cat((ids_1L[:, 1:], nothing), 1)


def predictor_class(task: Task | type[Task]) -> type[Predictor]:
    """The predictor that a task names. Raises UserError for a name nobody registered."""
    named = task.predictor
    return registry.spec(named).target if isinstance(named, str) else named


def predictor_for(model: Any, task: Task) -> Predictor:
    """A model as the predictor of its task."""
    return predictor_class(task)(model, task)
