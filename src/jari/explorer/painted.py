"""Runs that paint: a caption and its picture as one sequence, whose codes lie as patches over the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from jari.errors import UserError
from jari.explorer.seen import shown
from jari.inspect.capture import Tape
from jari.inspect.lenses import Link
from jari.shapes import Float, Tensor
from jari.tasks.captions import Captions
from jari.tasks.painted import names_of, picture_of
from jari.training.answering import Answered, answered


class OfPaintings:
    """Runs that paint one picture of a caption. Of guided ones, the half that has heard the caption is looked into."""

    continues = True

    def __init__(self, task: Captions):
        self._task = task

    @property
    def vocabulary(self) -> str:
        words = self._task.words
        return "\n".join([*words.names(range(len(words))), self._task.codes.fingerprint])

    def answered(self, model: Any, read: Any, most: int) -> Answered:
        rows, columns = self._task.grid
        length = len(read) + 2 + rows * columns
        if length > most:
            raise UserError(f"expected at most {most} words and codes, got {length}; look at a run on smaller pictures")
        return answered(model, self._task, read)

    def sides(self, model: Any, read: Any, said: Answered, outputs: Any) -> dict[str, dict[str, Any]]:
        rows, columns = self._task.grid
        picture = {
            "pixels": shown(picture_of(self._task, said.written)),
            "rows": rows,
            "columns": columns,
            "height": rows,
            "width": columns,
            "first": len(said.target) - rows * columns,
            "pool": None,
        }
        return {"target": {"tokens": said.target, "picture": picture}}

    def written(self, said: Answered, scores: Float[Tensor, "L V"]) -> list[int]:
        """After the last code comes nothing."""
        return said.written[1:]

    def answer(self, model: Any, line: str, read: Any, said: Answered) -> str | None:
        """What the judge reads in the picture."""
        return self._task.judged(picture_of(self._task, said.written))

    def show(self, numbers: Sequence[int]) -> list[str]:
        return names_of(self._task, numbers)

    def expected(self, line: str) -> str | None:
        return self._task.expected(line)

    def probed(self, model: nn.Module, untrained: nn.Module) -> Mapping[str, dict[str, Any]]:
        return {}

    def lens(
        self, tape: Tape, said: Answered, gold: Sequence[Link] | None, options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """All that is known is on the picture."""
        return None
