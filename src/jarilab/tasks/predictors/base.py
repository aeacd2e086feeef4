"""The base class of predictors and their registry.

A task names its predictor (`predictor = "sequences"`, or a class of your own). Prediction, evaluation, comparison,
walks and the explorer use the predictor, so no package above this one depends on the kind of task.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Protocol, TypeVar, final, runtime_checkable

import torch

from jarilab.core.devices import CPU, device_of, to_device
from jarilab.core.errors import UserError
from jarilab.core.registry import Registry
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.data.text import END, FIRST, PADDING
from jarilab.models.base import ReadsImages, check_protocol
from jarilab.models.decoding.answers import GREEDY, Decoding, answers
from jarilab.models.decoding.hypotheses import Hypothesis
from jarilab.positions.coordinates import Tokens
from jarilab.positions.patches import Images, PatchedImage
from jarilab.tasks.base import Batch, Judge, Learner, Task
from jarilab.tasks.metrics import checked_metrics
from jarilab.tasks.predictors.links import attention_to_source, sites_to_source

registry = Registry("predictor", "jarilab.tasks.predictors")

Inputs = Iterable[str | UserError]
"""What `predict` answers. A UserError stands for an input that could not be decoded."""
NO_LABEL = -1
"""The label of positions without an answer."""
AT_ONCE = 256
"""Sources in a batch."""


class Prediction(ABC):
    """The answer to one source, or the error.

    input: the source as text. error: why there is no answer; None if there is one. rank: 1 for the best of several
    answers. images: generated images, uint8 `(n, 3, H, W)`.
    """

    input: str
    error: str | None
    rank: int = 1
    images: Any = None

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return the prediction as plain data for JSON."""

    @abstractmethod
    def text(self) -> Iterator[str]:
        """Yield the text for a terminal, with line ends, as soon as each piece is certain."""

    def stream(self) -> Iterator[str]:
        """Yield the answer piece by piece as it is written; nothing if it is known at once."""
        return iter(())

    @property
    def messages(self) -> list[str]:
        """Return messages for the user beside the answer."""
        return [] if self.error is None else [self.error]


@dataclass(frozen=True)
class NoOptions:
    """No options."""


@dataclass(frozen=True, eq=False)
class TracedSequence:
    """One sequence of a trace: the names of its tokens, their image, and a box for each.

    Boxes are left, top, right and bottom in shares of the image. Image and boxes are None for text.
    """

    names: Sequence[str]
    image: PatchedImage | None = None
    boxes: list[list[float]] | None = None


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward that shows what `predict` did.

    line: the input as text. read: the task's reading of it. inputs: arguments of the predictor's `traced_model`, a
    batch of one. sequences: `source` and `target` by frame. labels: the answer at each position, as indices into
    `Predictor.names`. written: the labels that effects of edits are measured on, `(1, L)`; below 0 where there is none.
    answer: as text, or None. expected: the right answer, if known. is_text: whether digits and links between words may
    be looked for.
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
        """Return the tokens of a sequence, or none if the trace lacks it."""
        sequence = self.sequences.get(frame)
        return [] if sequence is None else sequence.names

    @property
    def measured(self) -> list[int]:
        """The labels that effects of edits are measured on."""
        return self.written[self.written >= 0].tolist()

    @property
    def source(self) -> Sequence[str]:
        """The tokens read; for a single sequence, all of its tokens."""
        return self.names("source") or self.names("target")

    @property
    def target(self) -> Sequence[str]:
        """The tokens with an answer after each; none if the answer is about the whole input."""
        return self.names("target")


@runtime_checkable
class Intervention(Protocol):
    """Edits of a forward: moved positions, and edits inside attention."""

    @property
    def places(self) -> dict[str, Any]:
        """New positions of the tokens of `source` and `target`."""
        ...

    @property
    def edits(self) -> Sequence[Any]:
        """Edits of heads, links and tokens."""
        ...

    def moving(
        self, model: torch.nn.Module, inputs: tuple[Any, ...]
    ) -> AbstractContextManager[tuple[Any, ...]]:
        """Return a context manager in which the model computes with these edits."""
        ...


@registry.base
class Predictor(ABC):
    """Answers of a trained model to the inputs of its task. Raises UserError if the model lacks a method of `needs`."""

    needs: ClassVar[type | None] = None
    """The protocol of `jarilab.models.base` that a model must follow; None for any model."""
    options: ClassVar[type] = NoOptions
    """A frozen dataclass with the options of `predict`, for Python, the command line and its help."""
    scoring: ClassVar[type] = NoOptions
    """A frozen dataclass with the options of `evaluate`."""
    reads_files: ClassVar[bool] = False
    """Whether a traced input may name a file to read."""
    reads_images: ClassVar[bool] = False
    """Whether an input of `predict` may be an image."""
    writes: ClassVar[frozenset[str]] = frozenset()
    """Options of `predict` that name a file to write. No server accepts them."""
    served_at_most: ClassVar[Mapping[str, int | float]] = {}
    """The largest values that a server accepts for options of `predict`, because memory and time grow with them."""
    reported: ClassVar[bool] = True
    """Whether a comparison's report shows the attention behind the answers."""
    continues: ClassVar[bool] = False
    """Whether there is one sequence in which each token follows the last. An edited model then writes no new answer."""
    scores: ClassVar[bool] = True
    """Whether the model returns scores of tokens or of classes, and nothing else."""

    def __init__(self, model: Any, task: Any):
        if self.needs is not None:
            check_protocol(type(model), self.needs, type(task).__name__)
        self.model, self.task = model, task

    @abstractmethod
    def predict(
        self, sources: Inputs, options: Any, *, at_once: int = AT_ONCE
    ) -> Iterator[Prediction]:
        """Yield a prediction for each source in order, or several if options request them.

        An unreadable source gets its error and stops nothing. at_once: number of sources in a batch.
        """

    def evaluate(self, examples: int | None = None, options: Any = None) -> dict[str, Any]:
        """Return the task's metrics on its held-out data, or on `examples` of them. options: of `scoring`."""
        metrics = self._measure(examples, options)
        del metrics["outcomes"]
        return metrics

    def evaluate_examples(self) -> tuple[dict[str, Any], Float[Tensor, " N"] | None]:
        """Return the task's metrics on all held-out data, and the value of each example if the task gives it.

        Raises UserError if these values do not have the metric as their mean.
        """
        metrics = self._measure()
        outcomes_N = None
        if (outcomes := metrics.pop("outcomes")) is not None:
            outcomes_N = torch.as_tensor(outcomes, dtype=torch.float64)
            name, examples = self.task.metric.name, metrics["examples"]
            value, mean = metrics[name], float(outcomes_N.mean())
            is_mean = math.isclose(mean, value, rel_tol=1e-4, abs_tol=1e-6)
            if len(outcomes_N) != examples or not is_mean:
                raise UserError(
                    f"outcomes of the task: expected {examples:.0f} values with a mean {name} of {value:g}, got "
                    f"{len(outcomes_N)} with {mean:g}; return one value for each example, or none"
                )
        return metrics, outcomes_N

    def _measure(self, examples: int | None = None, options: Any = None) -> dict[str, Any]:
        """Metrics, and outcomes or None. Raises UserError for metrics that are not finite numbers."""
        with evaluating(self.model):
            metrics = dict(self.task.evaluate(self.learner(options), examples))
        outcomes = metrics.pop("outcomes", None)
        return {**checked_metrics(metrics, self.task.metric), "outcomes": outcomes}

    def learner(self, options: Any = None) -> Learner:
        """Return the model in the form that the task measures. options: of `scoring`."""
        return ModelLearner(self.model, self.task)

    def names_image(self, source: str) -> bool:
        """Whether `predict` would read a source as the name of an image."""
        return self.reads_images

    @abstractmethod
    def trace(self, line: str, most: int) -> Trace:
        """Answer an input and return one forward that shows how.

        Raises UserError, before the model runs, for more than `most` tokens and for unreadable input.
        """

    def says(self, *inputs: Any) -> Any:
        """Return the model's outputs for these inputs, on the CPU."""
        return to_device(self.model(*to_device(inputs, device_of(self.model))), CPU)

    @property
    def traced_model(self) -> torch.nn.Module:
        """The model that `Trace.inputs` belong to."""
        return self.model

    @abstractmethod
    def names(self, numbers: Iterable[int]) -> list[str]:
        """The name of each token or class that an answer may contain."""

    @property
    @abstractmethod
    def vocabulary(self) -> str:
        """All possible tokens of answers as one text, equal for runs with the same tokens."""

    @property
    def block_tokens(self) -> Sequence[int]:
        """Tokens for random blocks, which are repeated to find induction heads; none if that has no meaning."""
        return ()

    def text_of_page(self) -> dict[str, Any] | None:
        """Return how a page that runs the model reads an input and writes an answer; None if no page can.

        kind: `sequence`, an answer written token by token; `continuation`, one sequence with a prediction after each
        token; `classes`, one answer to the whole input. tokens: names by id, of the `source` and `target`. For text,
        also the task's `Spelling`, and `first`, the id that starts an answer or an empty text. For a sequence, `end`,
        `padding`: ids; `longest`: maximal tokens of each side.
        """
        return None

    def edited(self, trace: Trace, intervention: Intervention) -> str | None:
        """Return the answer under an intervention; None if an edited model writes no new answer."""
        return None


def expected_of(task: Any, line: str) -> str | None:
    """Return the right answer to an input, if known. A run may be inspected without its data."""
    try:
        return task.expected(line)
    except UserError:
        return None


def next_tokens(ids_1L: Int[Tensor, "1 L"]) -> Int[Tensor, "1 L"]:
    """Return the token after each token of a sequence; nothing after the last."""
    nothing = torch.full_like(ids_1L[:, :1], NO_LABEL)
    return torch.cat((ids_1L[:, 1:], nothing), 1)


def predictor_class(task: Task | type[Task]) -> type[Predictor]:
    """Return the predictor that a task names. Raises UserError for an unknown name."""
    named = task.predictor
    return registry.spec(named).target if isinstance(named, str) else named


def predictor_for(model: Any, task: Task) -> Predictor:
    """Return a model as the predictor of its task."""
    return predictor_class(task)(model, task)


def untrained_positions(model: Any, task: Task, longer: Task) -> list[str]:
    """Return notices if a longer task makes an encoding read table rows that training never reached.

    longer: from `task.at_length`. Raises UserError if the position policy has too few positions for it.
    """
    notices = []
    # A model of another file need not have this method.
    for side, limit in getattr(model, "max_positions", dict)().items():
        if isinstance(model, ReadsImages):
            tokens, trained = (_positions_of_image(model, some) for some in (longer, task))
        else:
            tokens, trained = longer.tokens_read(side), task.policy.reach(task.tokens_trained(side))
            task.policy.reach(tokens)
        if limit is not None and trained < tokens <= limit:
            notices.append(
                f"the encoding reads positions {trained:,} to {tokens - 1:,} of the {side} from its table of {limit:,} "
                "rows; training never reached these rows, so they are as initialized"
            )
    return notices


def _positions_of_image(model: Any, task: Any) -> int:
    """Return the largest position of an axis plus 1, for images of a task's `shape`."""
    positions = model.places(Images(torch.zeros(1, *task.shape, device=device_of(model))))
    return int(positions.coordinates.max()) + 1


SHOWN = 80
"""Maximal characters shown of an unreadable source."""


@dataclass(frozen=True, eq=False)
class Source:
    """One source: its number from 1, its text, and the task's reading of it or the error."""

    number: int
    text: str
    read: Any = None
    error: str | None = None


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the items in lists of `size`; the last may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def read_each(sources: Inputs, read: Callable[[str], Any]) -> Iterator[Source]:
    """Yield each source as read by `read`, or with its error."""
    for number, source in enumerate(sources, 1):
        if isinstance(source, UserError):  # a line that could not even be decoded
            yield Source(number, "", error=str(source))
            continue
        try:
            yield Source(number, source, read(source))
        except UserError as error:
            yield Source(number, source, error=str(error))


# A model in the form that its task measures --------------------------------------------------------------------------


T = TypeVar("T")


@final
@dataclass(frozen=True, eq=False)
class ModelLearner:
    """What a task may ask of a model: see `jarilab.tasks.base.Learner`."""

    model: Any
    task: Any
    decoding: Decoding = GREEDY
    judge: Judge | None = None

    def write(self, sources: Tokens) -> list[list[int]]:
        best = write(self.model, self.task, sources, self.decoding)
        return [hypotheses[0].ids.tolist() for hypotheses in best]

    @torch.no_grad()
    def scores(self, batch: Batch) -> Any:
        return to_device(self.model(*self._there(batch.inputs)), CPU)

    def _there(self, held: T) -> T:
        return to_device(held, device_of(self.model))

    def most_attended(self, source: list[int], written: Sequence[int]) -> list[int]:
        """Return the source token with the largest weight, by the mean head of the last attention to the source."""
        last = sites_to_source(self.model)[-1]
        weights_HQK = attention_to_source(self.model, self.task, source, written, last)
        return weights_HQK.mean(0).argmax(-1).tolist()


def write(
    model: Any, task: Any, sources: Tokens, decoding: Decoding = GREEDY, n_best: int = 1
) -> list[list[Hypothesis]]:
    """Return the model's answers to a batch of sources, best first."""
    limit = task.longest["target"]
    there = to_device(sources, device_of(model))
    places = task.answer_places(there)
    tokens = {"first": FIRST, "end": END, "padding": PADDING}
    return answers(model, there, decoding, **tokens, limit=limit, n_best=n_best, places=places)


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Set the model to evaluation mode inside the block, and restore it afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
