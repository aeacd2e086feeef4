"""What the package asks of a task, and the registry of tasks. Tasks know positions and text, never models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from jari.positions import Tokens
from jari.registry import Registry
from jari.shapes import Float, Int

registry = Registry("task", "jari.tasks")

Generate = Callable[[Tokens], Int[Tensor, "B L"]]
"""Answers to a batch of sources, written freely: token numbers up to the end, padding behind."""


@dataclass(frozen=True, eq=False)
class Batch:
    """inputs: what the model is called with. labels: what it should say, `(B, L)`."""

    inputs: tuple[Tokens, ...]
    labels: Int[Tensor, "B L"]


class Task(ABC):
    """A thing to learn: its data, batches, loss and metrics, and how an example is shown to a person."""

    model: ClassVar[str] = "encoder_decoder"
    """The kind of model it is for."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The parts of the data that accuracy is reported for; the first is everything."""
        return ("all",)

    @property
    @abstractmethod
    def model_options(self) -> dict[str, Any]:
        """What the data decides about the model: sizes of vocabularies."""

    @property
    @abstractmethod
    def longest(self) -> dict[str, int]:
        """The longest sequence of each side, in tokens."""

    @property
    @abstractmethod
    def training_size(self) -> int:
        """The number of examples to train on."""

    @abstractmethod
    def training_batch(self, indices: Int[Tensor, " B"]) -> Batch:
        """The training examples with these numbers."""

    @abstractmethod
    def loss(self, scores: Float[Tensor, "B L V"], batch: Batch) -> Float[Tensor, ""]:
        """What training makes smaller."""

    @abstractmethod
    def evaluate(self, generate: Generate, examples: int | None = None) -> dict[str, float]:
        """Metrics on held-out data, or on its first `examples`; one of them is `exact_match`, in 0 ... 1."""

    @abstractmethod
    def read(self, line: str) -> list[int]:
        """A person's input as source tokens. Raises UserError."""

    @abstractmethod
    def sources(self, lines: Sequence[list[int]]) -> Tokens:
        """A batch of what `read` gave."""

    @abstractmethod
    def write(self, numbers: Sequence[int]) -> str:
        """An answer's token numbers as a person reads them."""

    @abstractmethod
    def show_source(self, numbers: Sequence[int]) -> list[str]:
        """The name of each source token."""

    @abstractmethod
    def show_target(self, numbers: Sequence[int]) -> list[str]:
        """The name of each target token."""

    def ceiling(self) -> dict[str, float] | None:
        """The share of exact answers that no model without positions can pass, for each group; None if not known."""
        return None

    def ceiling_sentence(self) -> str:
        """What the ceiling is, for the reader of a report."""
        return ""

    def expected(self, line: str) -> str | None:
        """The right answer to an input, where the task can tell."""
        return None

    def sample_inputs(self) -> list[str]:
        """A few inputs worth looking at."""
        return []

    def describe(self) -> str:
        """The data in one sentence."""
        return ""

    def fingerprint(self) -> str:
        """What the training data is, so that a run is not continued on other data."""
        return self.describe()


def right_padded(lines: Sequence[list[int]], padding: int) -> tuple[Tensor, Tensor]:
    """Token numbers `(B, L)` with padding behind, and which of them are real."""
    longest = max((len(line) for line in lines), default=0)
    ids = torch.full((len(lines), longest), padding)
    for row, line in enumerate(lines):
        ids[row, : len(line)] = torch.tensor(line, dtype=torch.long)
    return ids, torch.arange(longest) < torch.tensor([[len(line)] for line in lines])
