"""What the explorer asks of each kind of run: of tokens, of pictures that are seen, of pictures that are painted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn

from jari.errors import UserError
from jari.explorer import facts
from jari.explorer.painted import OfPaintings
from jari.explorer.seen import OfPictures
from jari.inspect.capture import Tape
from jari.inspect.lenses import Link
from jari.shapes import Float, Tensor
from jari.tasks.base import Task, TokenTask
from jari.tasks.captions import Captions
from jari.tasks.pictures import PictureTask
from jari.text import END
from jari.training.answering import Answered, Answering, answered, tokens_of

FIRST_FREE = END + 1
"""The first token number of a vocabulary that stands for text."""


@runtime_checkable
class Kind(Protocol):
    """What is particular to a kind of run.

    continues: there is one sequence, whose tokens are each what follows the one before; the edited model says nothing.
    """

    @property
    def continues(self) -> bool: ...

    @property
    def vocabulary(self) -> str:
        """All that can be said, as one text: equal where two runs have the same tokens."""
        ...

    def answered(self, model: Any, read: Any, most: int) -> Answered:
        """The answer to what `task.read` gave. Raises UserError for more than `most` tokens, before the model runs."""
        ...

    def sides(self, model: Any, read: Any, said: Answered, outputs: Any) -> dict[str, dict[str, Any]]:
        """For `source` and `target`, where they are there: the names of their tokens, and what else is shown."""
        ...

    def written(self, said: Answered, scores: Float[Tensor, "L V"]) -> list[int]:
        """What was written after each token, or may come after the last; as many as there are places to look at."""
        ...

    def answer(self, model: Any, line: str, read: Any, said: Answered) -> str | None:
        """What the model says in the end; None where it says nothing."""
        ...

    def show(self, numbers: Sequence[int]) -> list[str]:
        """The name of each token or class that can be said."""
        ...

    def expected(self, line: str) -> str | None:
        """The right answer, where it is known."""
        ...

    def probed(self, model: nn.Module, untrained: nn.Module) -> Mapping[str, dict[str, Any]]:
        """Measures of each site on inputs made for them."""
        ...

    def lens(
        self, tape: Tape, said: Answered, gold: Sequence[Link] | None, options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """What is known of the task itself. gold: links of an alignment. options: the task's."""
        ...


def kind_of(task: Task) -> Kind:
    """Raises UserError for a task of a kind of its own."""
    if isinstance(task, PictureTask):
        return OfPictures(task)
    if isinstance(task, Captions):
        return OfPaintings(task)
    return OfTokens(tokens_of(task))


class OfTokens:
    """Runs that answer tokens with tokens, or go on with them."""

    def __init__(self, task: TokenTask):
        self._task, self.continues = task, task.continues

    @property
    def vocabulary(self) -> str:
        sizes = self._task.model_options
        return "".join(f"{name}={size}:{self._task.show_target(range(size))}" for name, size in sizes.items())

    def answered(self, model: Any, read: Any, most: int) -> Answered:
        if len(read) > most:
            raise UserError(f"expected at most {most} tokens, got {len(read)}; shorten the input")
        return answered(model, self._task, read)

    def sides(self, model: Any, read: Any, said: Answered, outputs: Any) -> dict[str, dict[str, Any]]:
        target = {"target": {"tokens": said.target}}
        return target if self.continues else {"source": {"tokens": said.source}, **target}

    def written(self, said: Answered, scores: Float[Tensor, "L V"]) -> list[int]:
        return [*said.written[1:], int(scores[-1].argmax())] if self.continues else said.written

    def answer(self, model: Any, line: str, read: Any, said: Answered) -> str | None:
        """A language model only reads."""
        task = self._task
        return None if self.continues else task.answer(Answering(model, task), line, read, said.written)

    def show(self, numbers: Sequence[int]) -> list[str]:
        return self._task.show_target(numbers)

    def expected(self, line: str) -> str | None:
        return self._task.expected(line)

    def probed(self, model: nn.Module, untrained: nn.Module) -> Mapping[str, dict[str, Any]]:
        if not self.continues:
            return {}
        return facts.probe(model, untrained, range(FIRST_FREE, next(iter(self._task.model_options.values()))))

    def lens(
        self, tape: Tape, said: Answered, gold: Sequence[Link] | None, options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        ones_first = options.get("answers") == "reversed"
        lens = facts.digits(tape, said, self._task.show_target(said.written), ones_first=ones_first)
        return lens or facts.aligned(tape, gold)
