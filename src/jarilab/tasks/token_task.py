"""Tasks whose inputs and answers are tokens: where these are, and source and target as one sequence."""

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
        """How a page without Python reads and writes; by default it cannot, and an input stays as it is."""
        return Spelling()

    @property
    def target_spelling(self) -> Spelling:
        """How a right answer is read, to train on, and any is written: by default as an input is, with an end."""
        read, write = self.spelling.read, self.spelling.write
        return Spelling(read and replace(read, end=END), write)

    ones_first: bool = False
    """Whether the digits of an answer are written from the ones up."""

    @final
    def loss(
        self, scores: Float[Tensor, "B L V"], batch: Batch, smoothing: float = 0.0
    ) -> Float[Tensor, ""]:
        """What training makes smaller: the mean cross-entropy of the labels, padding left out, in nats.

        smoothing: the share of the target's probability that is spread evenly over the vocabulary (Szegedy et al.
        2016). A batch of nothing but padding has a loss of 0.
        """
        return cross_entropy(
            scores.flatten(0, 1), batch.labels.flatten(), ignore=PADDING, smoothing=smoothing
        )

    def loss_counts(self, batch: Batch, scores: Any) -> tuple[float, ...]:
        """The tokens that are no padding."""
        return (float((batch.labels != PADDING).sum()),)

    def numbers(self, frame: str) -> Numbers | None:
        """How numbers are written in the sequences of a frame, for policies that go by digits; None where that is not
        known."""
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
        """Token numbers with the places that the policy gives them. seed: what `policy.seed` drew for a batch of
        training; source and target get the same. None outside training."""
        sequences = self._sequences(ids, frame, keep, documents)
        return Tokens(ids, self.policy.positions(sequences, seed), keep, documents)

    @final
    def answer_places(
        self, sources: Tokens | None = None
    ) -> Callable[[Tensor, int, Tensor], Positions]:
        """Where the tokens of answers to these sources are, None where nothing is answered: what a search asks for, the
        `Places` of `jarilab.models.decoding`."""
        if self.one_sequence and sources is not None:
            return self._places_behind(sources)

        def places(ids: Int[Tensor, "R L"], start: int, rows: Int[Tensor, " R"]) -> Positions:
            return self.policy.positions(self._sequences(ids, "target"), start=start)

        return places

    def _places_behind(self, prompts: Tokens) -> Callable[[Tensor, int, Tensor], Positions]:
        """The same in one sequence with the source."""
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
        """Sources and their answers, padding behind each, as a batch of single sequences: a source, the first token of
        an answer, the answer. What is to be said is the answer alone."""
        first_B1 = torch.full_like(source[:, :1], FIRST)
        ids_BL = _compact(torch.cat((source, first_B1, answers), 1))
        before_B1 = (source != PADDING).sum(1, keepdim=True)
        is_source_BL = torch.arange(ids_BL.shape[1] - 1) < before_B1
        labels_BL = ids_BL[:, 1:].masked_fill(is_source_BL, PADDING)
        read_BL = ids_BL[:, :-1]
        tokens = self.tokens(read_BL, "target", keep=read_BL != PADDING, seed=seed)
        # No token sees the padding, which is behind all of them.
        return Batch((replace(tokens, keep=None),), labels_BL)

    @final
    def prompts(self, source: Int[Tensor, "B K"]) -> Tokens:
        """Sources, padding behind each, as what is read before an answer is written: padding before each."""
        ids_BK = _compact(source.flip(1)).flip(1)
        keep_BK = ids_BK != PADDING
        return self.tokens(ids_BK, "target", keep=None if bool(keep_BK.all()) else keep_BK)

    @final
    def answered(self, source: list[int], written: Sequence[int]) -> tuple[Tokens, ...]:
        """What to call the model with to read a source, as `read` gives it, and an answer to it once more."""
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
        # A source is read whole; all else may be written token by token.
        max_new_tokens = None if frame == "source" else self.tokens_read("target")
        return Sequences(ids, frame, keep, documents, max_new_tokens, self.numbers(frame))

    @abstractmethod
    def read(self, line: str) -> list[int]:
        """A person's input as token numbers. Raises UserError."""

    @abstractmethod
    def sources(self, lines: Sequence[list[int]]) -> Tokens:
        """A batch of what `read` gave."""

    def read_target(self, text: str) -> list[int]:
        """A right answer as token numbers, its end included. Raises UserError."""
        return [*self.read(text), END]

    def held_out_pairs(self, examples: int | None = None) -> list[tuple[str, str]]:
        """Held-out texts and their right answers, so many of them, evenly spread; all by default. A text that nobody
        answers is beside itself. Raises UserError where the data are gone."""
        return []

    @abstractmethod
    def write(self, numbers: Sequence[int]) -> str:
        """An answer's token numbers as a person reads them."""

    def answer(self, learner: Learner, line: str, source: list[int], written: Sequence[int]) -> str:
        """The answer to a line, which `read` made `source` of, as a person reads it and as it is judged: what has no
        token of its own may be copied from where the learner looked."""
        return self.write(written)

    def expected(self, line: str) -> str | None:
        """The right answer to an input, where the task can tell."""
        return None

    @abstractmethod
    def show_target(self, numbers: Sequence[int]) -> list[str]:
        """The name of each token that can be written."""

    @abstractmethod
    def show_source(self, numbers: Sequence[int]) -> list[str]:
        """The name of each source token."""


def _compact(ids: Int[Tensor, "B L"]) -> Int[Tensor, "B M"]:
    """The rows with all padding behind what is none, as short as the longest of them."""
    is_padding_BL = ids == PADDING
    index_BL = is_padding_BL.sort(dim=1, stable=True).indices
    longest = int((~is_padding_BL).sum(1).max())
    return ids.gather(1, index_BL)[:, :longest]
