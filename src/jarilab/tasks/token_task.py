"""Tasks whose inputs and answers are tokens: their positions, and source and target as one sequence."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.data.text import END, FIRST, PADDING
from jarilab.data.text.spelling import Spelling
from jarilab.nn.loss import cross_entropy
from jarilab.positions.coordinates import Positions, Tokens
from jarilab.tasks.base import Batch, Learner, Task
from jarilab.tasks.policies.base import Numbers, Sequences


class TokenTask(Task):
    """A task whose inputs and answers are tokens."""

    @property
    def spelling(self) -> Spelling:
        """Return the tokenization rules for a page without Python; none by default."""
        return Spelling()

    @property
    def target_spelling(self) -> Spelling:
        """Return the rules of right answers: by default those of inputs, with an end."""
        read, write = self.spelling.read, self.spelling.write
        return Spelling(read and replace(read, end=END), write)

    ones_first: bool = False
    """Whether the digits of an answer are written from the ones up."""

    @final
    def loss(
        self, scores: Float[Tensor, "B L V"], batch: Batch, smoothing: float = 0.0
    ) -> Float[Tensor, ""]:
        """Return the mean cross-entropy of the labels in nats, without padding.

        smoothing: share of the target's probability spread evenly over the vocabulary (Szegedy et al. 2016). A batch of
        padding only has a loss of 0.
        """
        return cross_entropy(
            scores.flatten(0, 1), batch.labels.flatten(), ignore=PADDING, smoothing=smoothing
        )

    def loss_counts(self, batch: Batch, scores: Any) -> tuple[float, ...]:
        """Return the number of tokens that are not padding."""
        return (float((batch.labels != PADDING).sum()),)

    def numbers(self, frame: str) -> Numbers | None:
        """Return how numbers are written in the sequences of a frame, for policies that use digits; None if unknown."""
        return None

    @final
    def tokens(
        self,
        ids: Int[Tensor, "B L"],
        frame: str,
        *,
        keep: Bool[Tensor, "B L"] | None = None,
        documents: Int[Tensor, "B L"] | None = None,
        seed: int | None = None,
    ) -> Tokens:
        """Return token ids with the policy's positions.

        seed: from `policy.seed` for a training batch, equal for source and target. None outside training.
        """
        sequences = self._sequences(ids, frame, keep, documents)
        return Tokens(ids, self.policy.positions(sequences, seed), keep, documents)

    @final
    def answer_places(
        self, sources: Tokens | None = None
    ) -> Callable[[Tensor, int, Tensor], Positions]:
        """Return the positions of answers to these sources, a `Places` of `jarilab.models.decoding`, or None."""
        if self.one_sequence and sources is not None:
            return self._places_behind(sources)

        def places(ids: Int[Tensor, "R L"], start: int, rows: Int[Tensor, " R"]) -> Positions:
            return self.policy.positions(self._sequences(ids, "target"), start=start)

        return places

    def _places_behind(self, prompts: Tokens) -> Callable[[Tensor, int, Tensor], Positions]:
        """Return the same for one sequence with the source."""
        length = prompts.ids.shape[1]

        def places(ids: Int[Tensor, "R L"], start: int, rows: Int[Tensor, " R"]) -> Positions:
            both = torch.cat((prompts.ids[rows], ids), 1)
            sequences = self._sequences(both, "target", both != PADDING)
            return self.policy.positions(sequences, start=length + start)

        return places

    @final
    def joined(
        self, source: Int[Tensor, "B K"], answers: Int[Tensor, "B Q"], seed: int | None = None
    ) -> Batch:
        """Return sources and answers, each padded at the end, as single sequences: source, first token, answer.

        Only the answer has labels.
        """
        first_B1 = torch.full_like(source[:, :1], FIRST)
        ids_BL = _compact(torch.cat((source, first_B1, answers), 1))
        before_B1 = (source != PADDING).sum(1, keepdim=True)
        is_source_BL = torch.arange(ids_BL.shape[1] - 1) < before_B1
        labels_BL = ids_BL[:, 1:].masked_fill(is_source_BL, PADDING)
        read_BL = ids_BL[:, :-1]
        tokens = self.tokens(read_BL, "target", keep=read_BL != PADDING, seed=seed)
        # Padding is last, so the causal mask hides it.
        return Batch((replace(tokens, keep=None),), labels_BL)

    @final
    def prompts(self, source: Int[Tensor, "B K"]) -> Tokens:
        """Return sources, padded at the end, as prompts, padded at the beginning."""
        ids_BK = _compact(source.flip(1)).flip(1)
        keep_BK = ids_BK != PADDING
        return self.tokens(ids_BK, "target", keep=None if bool(keep_BK.all()) else keep_BK)

    @final
    def answered(self, source: list[int], written: Sequence[int]) -> tuple[Tokens, ...]:
        """Return the model's arguments for reading a source, from `read`, together with an answer."""
        sources = self.sources([source])
        target = torch.tensor([[FIRST, *written[:-1]]])
        if not self.one_sequence:
            return sources, self.tokens(target, "target")
        return (self.tokens(torch.cat((sources.ids, target), 1), "target"),)

    def _sequences(
        self,
        ids: Int[Tensor, "B L"],
        frame: str,
        keep: Bool[Tensor, "B L"] | None = None,
        documents: Int[Tensor, "B L"] | None = None,
    ) -> Sequences:
        # Only a source is always read as a whole.
        max_new_tokens = None if frame == "source" else self.tokens_read("target")
        return Sequences(ids, frame, keep, documents, max_new_tokens, self.numbers(frame))

    @abstractmethod
    def read(self, line: str) -> list[int]:
        """Return an input as token ids. Raises UserError."""

    @abstractmethod
    def sources(self, lines: Sequence[list[int]]) -> Tokens:
        """Return a batch of results of `read`."""

    def read_target(self, text: str) -> list[int]:
        """Return a right answer as token ids with the end. Raises UserError."""
        return [*self.read(text), END]

    def held_out_pairs(self, examples: int | None = None) -> list[tuple[str, str]]:
        """Return held-out texts and right answers, evenly spread; all by default.

        A text without an answer is paired with itself. Raises UserError if the data are missing.
        """
        return []

    @abstractmethod
    def write(self, numbers: Sequence[int]) -> str:
        """Return an answer's token ids as text."""

    def answer(self, learner: Learner, line: str, source: list[int], written: Sequence[int]) -> str:
        """Return the answer to a line, read as `source`, as text for display and scoring.

        Unknown tokens may be replaced by the source token with the largest weight.
        """
        return self.write(written)

    def expected(self, line: str) -> str | None:
        """Return the right answer to an input, if the task can compute it."""
        return None

    @abstractmethod
    def show_target(self, numbers: Sequence[int]) -> list[str]:
        """Return the name of each target token."""

    @abstractmethod
    def show_source(self, numbers: Sequence[int]) -> list[str]:
        """Return the name of each source token."""


def _compact(ids: Int[Tensor, "B L"]) -> Int[Tensor, "B M"]:
    """Move all padding to the end and cut the rows to the longest of them."""
    is_padding_BL = ids == PADDING
    index_BL = is_padding_BL.sort(dim=1, stable=True).indices
    longest = int((~is_padding_BL).sum(1).max())
    return ids.gather(1, index_BL)[:, :longest]
