"""Runs that paint: a caption and its image as one sequence, whose codes lie as patches over the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jarilab.errors import UserError
from jarilab.explorer.kinds import Kind
from jarilab.explorer.seen import shown
from jarilab.shapes import Float, Tensor
from jarilab.tasks.captions import Captions
from jarilab.tasks.painted import image_of, names_of
from jarilab.training.answering import Answered


class OfPaintings(Kind[Captions]):
    """Runs that paint one image of a caption. Of guided ones, the half that has heard the caption is looked into."""

    continues = True

    @property
    def vocabulary(self) -> str:
        words = self.task.words
        return "\n".join([*words.names(range(len(words))), self.task.codes.fingerprint])

    def check_length(self, model: Any, read: Any, most: int) -> None:
        rows, columns = self.task.grid
        length = len(read) + 2 + rows * columns
        if length > most:
            raise UserError(
                f"expected at most {most} words and codes, got {length}; look at a run on smaller images"
            )

    def sides(
        self, model: Any, read: Any, said: Answered, outputs: Any
    ) -> dict[str, dict[str, Any]]:
        rows, columns = self.task.grid
        image = {
            "pixels": shown(image_of(self.task, said.written)),
            "rows": rows,
            "columns": columns,
            "height": rows,
            "width": columns,
            "first": len(said.target) - rows * columns,
            "pool": None,
        }
        return {"target": {"tokens": said.target, "picture": image}}

    def written(self, said: Answered, scores: Float[Tensor, "L V"]) -> list[int]:
        """After the last code comes nothing."""
        return said.written[1:]

    def show(self, numbers: Sequence[int]) -> list[str]:
        return names_of(self.task, numbers)
