"""What a trained model says: answers written freely, and how good they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from jarilab.decoding import Hypothesis, beam, greedy
from jarilab.errors import UserError
from jarilab.inspect.capture import record
from jarilab.inspect.model_io import scores_of
from jarilab.patches import patch_names
from jarilab.positions import Positions, Tokens
from jarilab.shapes import Float, Int, Tensor
from jarilab.tasks.base import Batch, Task, TokenTask
from jarilab.tasks.captions import Captions
from jarilab.tasks.classification import ImageTask, Said
from jarilab.tasks.painted import judged, names_of, paint
from jarilab.text import END, FIRST, PADDING

SURE = 0.5
"""The probability from which a detector is said to have found something."""


@dataclass(frozen=True)
class Decoding:
    """How answers are written.

    beam: hypotheses kept for each source; 1 is greedy. length_penalty: a hypothesis is judged by its log-probability
    over its length to this power. no_repeat: no n-gram of this many tokens twice; 0 for no such rule. shortest,
    longest: tokens of an answer, its end included; the task's own limit by default. best: answers to each source.
    """

    beam: int = 1
    length_penalty: float = 1.0
    no_repeat: int = 0
    shortest: int = 0
    longest: int | None = None
    best: int = 1

    @property
    def plain(self) -> bool:
        """Whether it is greedy search without any rule. What cannot be is not: `beam` says so."""
        free = not self.no_repeat and not self.shortest and 0 <= self.length_penalty < math.inf
        return self.beam == self.best == 1 and free


GREEDY = Decoding()


@final
@dataclass(frozen=True, eq=False)
class Answering:
    """A model, as a task that measures it sees it."""

    model: Any
    task: Task
    decoding: Decoding = GREEDY

    def write(self, sources: Tokens) -> list[list[int]]:
        return [
            best[0].ids.tolist() for best in written(self.model, self.task, sources, self.decoding)
        ]

    @torch.no_grad()
    def scores(self, batch: Batch) -> Any:
        return self.model(*batch.inputs)

    @torch.no_grad()
    def looked_at(self, source: list[int], written: Sequence[int]) -> list[int]:
        """By the last attention to the source, on the mean of its heads."""
        target = Tokens.of(torch.tensor([[FIRST, *written[:-1]]]), "target")
        with record(self.model) as tape:
            self.model(self.task.sources([source]), target)
        site = next(site for site in reversed(tape.sites) if site.endswith(".cross"))
        return tape.weights(site)[0].mean(0).argmax(-1).tolist()


def evaluate(
    model: nn.Module, task: Task, examples: int | None = None, decoding: Decoding = GREEDY
) -> dict[str, Any]:
    """The task's metrics, in float32; on all held-out data unless told."""
    training = model.training
    model.eval()
    try:
        return task.evaluate(Answering(model, task, decoding), examples)
    finally:
        model.train(training)


def answers(
    model: Any, task: Task, read: Sequence[Any], decoding: Decoding = GREEDY
) -> list[list[Hypothesis]]:
    """What the model says to each of what `task.read` gave, the best answer first: tokens, or a class."""
    if isinstance(task, ImageTask):
        _check_classes(decoding)
        return [
            [_class(said) for said in ranked[: decoding.best]] for ranked in seen(model, task, read)
        ]
    return written(model, task, task.sources(read), decoding)


@torch.no_grad()
def seen(model: Any, task: ImageTask, images: Sequence[Any]) -> list[list[Said]]:
    """All that the model says of each image, the surest first."""
    return task.said(model(task.sources(images)), images)


def _check_classes(decoding: Decoding) -> None:
    if decoding != Decoding(best=decoding.best):
        raise UserError(
            "this run says what is in an image and writes no tokens; leave beam and its like away"
        )
    if decoding.best < 1:
        raise UserError(f"expected 1 answer or more to each image, got {decoding.best}")


def _class(said: Said) -> Hypothesis:
    log = math.log(max(said.probability, 1e-45))
    return Hypothesis(torch.tensor([said.number]), torch.tensor([log]), log, log)


def written(
    model: Any, task: Task, sources: Tokens, decoding: Decoding = GREEDY
) -> list[list[Hypothesis]]:
    """What the model writes for each of a batch of sources, the best answer first."""
    limit = task.longest["target"]
    longest = limit if decoding.longest is None else min(limit, decoding.longest)
    if not decoding.plain:
        return beam(
            model,
            sources,
            width=decoding.beam,
            first=FIRST,
            end=END,
            longest=longest,
            length_penalty=decoding.length_penalty,
            best=decoding.best,
            shortest=decoding.shortest,
            no_repeat=decoding.no_repeat,
        )
    found = greedy(model, sources, first=FIRST, end=END, padding=PADDING, longest=longest)
    lengths = (found.ids != PADDING).sum(1).tolist()
    rows = zip(found.ids, found.log_probabilities, lengths, strict=True)
    return [[_hypothesis(ids[:n], logs[:n], decoding.length_penalty)] for ids, logs, n in rows]


def _hypothesis(ids: Int[Tensor, " L"], logs: Float[Tensor, " L"], penalty: float) -> Hypothesis:
    total = float(logs.double().sum())
    return Hypothesis(ids, logs, total, total / len(ids) ** penalty)


@dataclass(frozen=True, eq=False)
class Answered:
    """One input and the model's answer to it, as one forward shows what generation saw step by step.

    inputs: what to call the model with, as `inside` has it. source, target: the names of their tokens, of patches, of
    object queries; both the same where there is one sequence. written: the answer's tokens, or all of the one sequence;
    the class; or of each object query the class, or nothing, the number after the last.
    """

    inputs: tuple[Any, ...]
    source: list[str]
    target: list[str]
    written: list[int]


def answered(model: Any, task: Task, read: Any) -> Answered:
    """The answer to what `task.read` gave; a language model only reads. Raises UserError for a task of a kind of its
    own."""
    if isinstance(task, Captions):
        return _painted(model, task, read)
    if isinstance(task, ImageTask):
        return _answered_of_image(model, task, read)
    task = tokens_of(task)
    source = task.sources([read])
    if task.continues:
        names = task.show_target(source.ids[0].tolist())
        return Answered((source,), names, names, read)
    ids = written(model, task, source)[0][0].ids.tolist()
    said = [FIRST, *ids[:-1]]
    target = Tokens.of(torch.tensor([said]), "target")
    return Answered(
        (source, target), task.show_source(source.ids[0].tolist()), task.show_target(said), ids
    )


def tokens_of(task: Task) -> TokenTask:
    """The task itself. Raises UserError for one of a kind of its own."""
    if isinstance(task, TokenTask):
        return task
    raise UserError(
        f"jari cannot look into runs of {type(task).__name__}: expected a task of tokens, images or captions; record "
        "one forward of its model with jarilab.record in Python, and look at the maps with tape.show()"
    )


def inside(model: Any, task: Task) -> nn.Module:
    """What `Answered.inputs` are for: the model itself, or a painter as a model of words and codes alike."""
    return model.one_sequence() if isinstance(task, Captions) else model


def _painted(model: Any, task: Captions, read: list[int]) -> Answered:
    """A caption and the image that is painted for it; codes are named by row and column."""
    tokens: Tokens = model.joined(task.sources([read]), paint(task, model, read))
    ids, (rows, columns) = tokens.ids[0].tolist(), task.grid
    names = [*names_of(task, ids[: -rows * columns]), *_patches(rows, columns)]
    return Answered((tokens,), names, names, ids)


def _patches(rows: int, columns: int) -> list[str]:
    return [f"{row},{column}" for row in range(rows) for column in range(columns)]


def _answered_of_image(model: Any, task: ImageTask, read: Any) -> Answered:
    """Patches are named by row and column whatever the encoding sees."""
    images = task.sources([read])
    positions = model.places(images)
    first, rows, columns = grid(model, positions)
    names = patch_names(positions)[:first] + _patches(rows, columns)
    if not task.finds:
        return Answered((images,), names, [], [seen(model, task, [read])[0][0].number])
    with torch.no_grad():
        numbers = scores_of(model(images))[0].argmax(-1).tolist()
    return Answered((images,), names, [f"q{number}" for number in range(len(numbers))], numbers)


def grid(model: Any, positions: Positions) -> tuple[int, int, int]:
    """Of an image's tokens: how many have no place, and the rows and columns of those that have."""
    first = 0
    if positions.unplaced is not None:
        first = int(positions.unplaced.reshape(-1, positions.length)[0].sum())
    coordinates = positions.coordinates.reshape(-1, positions.length, len(positions.axes))[
        0, first:
    ]
    if coordinates.shape[1] == 2:
        rows, columns = (len(side.unique()) for side in coordinates.unbind(1))
    else:
        rows, columns = model.grid
    return first, rows, columns


def said_of(model: Any, task: ImageTask, read: Any) -> str:
    """The class of an image, or those of all that was found in it, in their own order."""
    (said,) = seen(model, task, [read])
    if not task.finds:
        return task.write([said[0].number])
    return task.write(sorted(one.number for one in said if one.probability >= SURE))


def text_of(model: Any, task: Task, line: str, read: Any, said: Answered) -> str | None:
    """The answer as a person reads it: of an image that was painted, what the judge reads in it, None where nobody
    does. line: the input. Raises UserError for a task of a kind of its own."""
    if isinstance(task, Captions):
        return judged(task, said.written)
    if isinstance(task, ImageTask):
        return said_of(model, task, read)
    task = tokens_of(task)
    return task.answer(Answering(model, task), line, read, said.written)
