"""Runs that answer tokens with tokens, or go on with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from jarilab.errors import UserError
from jarilab.explorer import summaries
from jarilab.explorer.kinds import Kind
from jarilab.inspect.alignment import Link
from jarilab.inspect.capture import Tape
from jarilab.shapes import Float, Tensor
from jarilab.tasks.base import TokenTask
from jarilab.text import END
from jarilab.training.answering import Answered

FIRST_FREE = END + 1
"""The first token number of a vocabulary that stands for text."""


class OfTokens(Kind[TokenTask]):
    """Of text, numbers and the like."""

    def __init__(self, task: TokenTask):
        super().__init__(task)
        self.continues = task.continues

    @property
    def vocabulary(self) -> str:
        sizes = self.task.model_options
        return "".join(
            f"{name}={size}:{self.task.show_target(range(size))}" for name, size in sizes.items()
        )

    def check_length(self, model: Any, read: Any, most: int) -> None:
        if len(read) > most:
            raise UserError(f"expected at most {most} tokens, got {len(read)}; shorten the input")

    def sides(
        self, model: Any, read: Any, said: Answered, outputs: Any
    ) -> dict[str, dict[str, Any]]:
        target = {"target": {"tokens": said.target}}
        return target if self.continues else {"source": {"tokens": said.source}, **target}

    def written(self, said: Answered, scores: Float[Tensor, "L V"]) -> list[int]:
        return [*said.written[1:], int(scores[-1].argmax())] if self.continues else said.written

    def show(self, numbers: Sequence[int]) -> list[str]:
        return self.task.show_target(numbers)

    def answer(self, model: Any, line: str, read: Any, said: Answered) -> str | None:
        """A language model only reads."""
        return None if self.continues else super().answer(model, line, read, said)

    def probed(self, model: nn.Module, untrained: nn.Module) -> Mapping[str, dict[str, Any]]:
        if not self.continues:
            return {}
        return summaries.probe(
            model, untrained, range(FIRST_FREE, next(iter(self.task.model_options.values())))
        )

    def lens(
        self, tape: Tape, said: Answered, gold: Sequence[Link] | None, options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        ones_first = options.get("answers") == "reversed"
        lens = summaries.digits(
            tape, said, self.task.show_target(said.written), ones_first=ones_first
        )
        return lens or summaries.aligned(tape, gold)
