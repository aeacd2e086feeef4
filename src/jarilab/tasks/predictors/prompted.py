"""Answers of a language model after their sources, in one sequence."""

from __future__ import annotations

from typing import Any, final

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.predictors.base import NOTHING_SAID, TracedSequence, registry
from jarilab.tasks.predictors.sequences import SequencePredictor


@registry.register("prompted")
@final
class PromptedPredictor(SequencePredictor):
    """Predictor of tasks that answer a text with a text, for models that read both as one sequence: see `Task.join`."""

    source_frame = "target"

    def _followed(
        self, inputs: tuple[Tokens, ...], answer: list[int]
    ) -> tuple[dict[str, TracedSequence], list[int], Int[Tensor, "1 L"]]:
        (tokens,) = inputs
        read = tokens.ids[0].tolist()
        # Nothing is said behind the tokens of the source but what comes next in it.
        before = len(read) - len(answer)
        labels = [*read[1 : before + 1], *answer]
        unsaid = torch.full((1, before), NOTHING_SAID)
        written = torch.cat((unsaid, torch.tensor([answer])), 1)
        return {"target": TracedSequence(self.names(read))}, labels, written

    def _check_dealt(self, how: str) -> None:
        if how == "shuffle":
            raise UserError(
                "the places of an answer are known as it is written, behind those of the source, and cannot be dealt "
                "out among both before; shift or stretch them"
            )

    def text_of_page(self) -> dict[str, Any] | None:
        """Return None: pages support answers of two sequences, and continuations."""
        return None
