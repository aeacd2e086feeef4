"""A model in the form that its task measures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch

from jarilab.core.devices import CPU, device_of, to_device
from jarilab.data.text import END, FIRST, PADDING
from jarilab.models.decoding.answers import GREEDY, Decoding, answers
from jarilab.models.decoding.hypotheses import Hypothesis
from jarilab.positions.coordinates import Tokens
from jarilab.tasks.base import Batch
from jarilab.tasks.predictors.links import attention_to_source, sites_to_source

T = TypeVar("T")


@final
@dataclass(frozen=True, eq=False)
class ModelLearner:
    """What a task may ask of a model: see `jarilab.tasks.base.Learner`."""

    model: Any
    task: Any
    decoding: Decoding = GREEDY

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
