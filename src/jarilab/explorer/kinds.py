"""What the explorer asks of each kind of run: of tokens, of images that are seen, of images that are painted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from torch import nn

from jarilab.inspect.alignment import Link
from jarilab.inspect.capture import Tape
from jarilab.shapes import Float, Tensor
from jarilab.tasks.base import Task
from jarilab.training.answering import Answered, answered, text_of

T = TypeVar("T", bound=Task)


class Kind(ABC, Generic[T]):
    """What is particular to a kind of run.

    continues: there is one sequence, whose tokens are each what follows the one before; the edited model says nothing.
    """

    continues: bool = False

    def __init__(self, task: T):
        self.task = task

    @property
    @abstractmethod
    def vocabulary(self) -> str:
        """All that can be said, as one text: equal where two runs have the same tokens."""

    @abstractmethod
    def check_length(self, model: Any, read: Any, most: int) -> None:
        """Raises UserError, before the model runs, where what `task.read` gave has more than `most` tokens."""

    @abstractmethod
    def sides(
        self, model: Any, read: Any, said: Answered, outputs: Any
    ) -> dict[str, dict[str, Any]]:
        """For `source` and `target`, where they are there: the names of their tokens, and what else is shown."""

    @abstractmethod
    def written(self, said: Answered, scores: Float[Tensor, "L V"]) -> list[int]:
        """What was written after each token, or may come after the last; as many as there are places to look at."""

    @abstractmethod
    def show(self, numbers: Sequence[int]) -> list[str]:
        """The name of each token or class that can be said."""

    def answered(self, model: Any, read: Any, most: int) -> Answered:
        """The answer to what `task.read` gave. Raises UserError for more than `most` tokens."""
        self.check_length(model, read, most)
        return answered(model, self.task, read)

    def answer(self, model: Any, line: str, read: Any, said: Answered) -> str | None:
        """What the model says in the end; None where it says nothing."""
        return text_of(model, self.task, line, read, said)

    def expected(self, line: str) -> str | None:
        """The right answer, where it is known."""
        return self.task.expected(line)

    def probed(self, model: nn.Module, untrained: nn.Module) -> Mapping[str, dict[str, Any]]:
        """Measures of each site on inputs made for them."""
        return {}

    def lens(
        self, tape: Tape, said: Answered, gold: Sequence[Link] | None, options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """What is known of the task itself; of images all of it is on them. gold: links of an alignment. options: the
        task's."""
        return None
