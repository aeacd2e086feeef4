"""The base class of position policies, which assign position IDs to tokens in training and in decoding.

An encoding turns positions into scores or vectors. A policy works with every encoding, and an encoding does not know
it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

import torch

from jarilab.core.errors import UserError
from jarilab.core.registry import Registry, spec_file
from jarilab.core.shapes import Bool, Int, Tensor
from jarilab.nn.init import generator_for
from jarilab.positions.coordinates import Positions

registry = Registry("position policy", "jarilab.tasks.policies")


@final
@dataclass(frozen=True)
class Numbers:
    """How numbers are written in a text.

    digits: ids of the digit tokens. ones_first: whether numbers are written from the ones up. width: digits that each
    number is padded to with zeros; None without padding.
    """

    digits: tuple[int, ...]
    ones_first: bool = False
    width: int | None = None


@final
@dataclass(frozen=True, eq=False)
class Sequences:
    """A batch of sequences that need positions.

    ids: `(B, L)`, all tokens so far. frame: `source`, `target` or `sequence`. keep: `(B, L)`, False on padding, or
    None. documents: `(B, L)`, the document number of each token, or None for one document a row. max_new_tokens:
    maximal length of a sequence that is written token by token; None for one that is read as a whole. numbers: how
    numbers are written; None if unknown.
    """

    ids: Int[Tensor, "B L"]
    frame: str = "sequence"
    keep: Bool[Tensor, "B L"] | None = None
    documents: Int[Tensor, "B L"] | None = None
    max_new_tokens: int | None = None
    numbers: Numbers | None = None

    @cached_property
    def index(self) -> Tensor:
        """Index of each token in its document, without padding: `(L,)` if all rows are equal, else `(B, L)`."""
        if self.documents is None and not self._padded_before:
            return torch.arange(self.ids.shape[1], device=self.ids.device)
        before_BL = self._counted.cumsum(1) - self._counted
        start_BL = (before_BL * self._begins).cummax(1).values
        return before_BL - start_BL

    @cached_property
    def document(self) -> Int[Tensor, "B L"]:
        """The documents of all rows, numbered from 0."""
        return self._begins.flatten().cumsum(0).view_as(self.ids) - 1

    @cached_property
    def counts(self) -> Int[Tensor, " P"]:
        """Return the number of tokens of each of these documents, without padding."""
        last = int(self.document.max()) if self.document.numel() else -1
        zeros_P = self.ids.new_zeros(last + 1)
        return zeros_P.index_add(0, self.document.flatten(), self._counted.flatten())

    @cached_property
    def digits(self) -> Bool[Tensor, "B L"]:
        """Which tokens are digits. Raises UserError if this is unknown."""
        digits = torch.tensor(self.known_numbers.digits, device=self.ids.device)
        return torch.isin(self.ids, digits)

    @cached_property
    def digit_index(self) -> Int[Tensor, "B L"]:
        """The index of each digit in its number, in the order they are written; 0 for other tokens."""
        column_L = torch.arange(self.ids.shape[1], device=self.ids.device)
        start_BL = torch.where(_first_of_run(self.digits), column_L, 0).cummax(1).values
        return (column_L - start_BL).masked_fill(~self.digits, 0)

    @property
    def known_numbers(self) -> Numbers:
        """How numbers are written. Raises UserError if this is unknown."""
        if self.numbers is None:
            raise UserError(
                f"--positions: expected a task of numbers, got one that does not say which tokens of the {self.frame} "
                "are digits; use sequential, offset or randomized"
            )
        return self.numbers

    @property
    def _padded_before(self) -> bool:
        """Whether padding stands before a token."""
        keep = self.keep
        return keep is not None and bool((~keep[:, :-1] & keep[:, 1:]).any())

    @property
    def _counted(self) -> Int[Tensor, "B L"]:
        """1 for tokens, 0 for padding."""
        return torch.ones_like(self.ids) if self.keep is None else self.keep.long()

    @property
    def _begins(self) -> Bool[Tensor, "B L"]:
        """Whether a document begins at each token."""
        begins_BL = torch.zeros_like(self.ids, dtype=torch.bool)
        begins_BL[:, :1] = True
        if self.documents is not None:
            begins_BL[:, 1:] = self.documents[:, 1:] != self.documents[:, :-1]
        return begins_BL


def _first_of_run(true_BL: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
    first_BL = true_BL.clone()
    first_BL[:, 1:] &= ~true_BL[:, :-1]
    return first_BL


@registry.base
class PositionPolicy(ABC):
    """Assigns position IDs to tokens. Subclasses take keyword-only options, which are their spec.

    Positions may be random in training, never outside it. A token's position does not depend on later tokens, so an
    answer that is read again has the positions that it was written with.
    """

    random_in_training: bool = False
    """Whether positions are random in training."""
    plain: bool = False
    """Whether positions are 0, 1, 2, ..., as other programs expect."""

    @abstractmethod
    def places(self, sequences: Sequences, seed: int | None) -> Tensor:
        """Return the position of each token, `(B, L)`, or `(L,)` if all rows are equal; integers or fractions.

        seed: decides all random numbers of a training batch; None outside training. Raises UserError for sequences that
        the policy does not support.
        """

    def reach(self, longest: int) -> int:
        """Return how many positions an encoding must support for sequences of this length: the last position plus one.

        Raises UserError for too long sequences.
        """
        return longest

    @final
    def positions(self, sequences: Sequences, seed: int | None = None, start: int = 0) -> Positions:
        """Return the positions of the tokens from `start` on, given all tokens so far."""
        place = self.places(sequences, seed)
        batch, length = sequences.ids.shape
        if place.shape not in ((length,), (batch, length)):
            raise UserError(
                f"{type(self).__name__}.places: expected a place for each token, {(length,)} or {(batch, length)}, got "
                f"{tuple(place.shape)}; give each token one"
            )
        order_L = torch.arange(length, device=sequences.ids.device)
        every = Positions(place.unsqueeze(-1), order_L, frame=sequences.frame, rising_order=order_L)
        return every.slice(start, length)

    @final
    def seed(self, generator: torch.Generator) -> int | None:
        """Return the seed of a training batch. A policy without randomness draws nothing from the generator."""
        if not self.random_in_training:
            return None
        return int(torch.randint(2**62, (), generator=generator))


def drawn_offsets(sequences: Sequences, largest: int, seed: int | None) -> Int[Tensor, "B 1"]:
    """Return the offset of each row: random from 0 to `largest` in training, 0 outside it.

    Source and target of an example get the same offset, so distances between them stay.
    """
    rows = len(sequences.ids)
    if seed is None:
        return sequences.ids.new_zeros(rows, 1)
    drawn_B1 = torch.randint(largest + 1, (rows, 1), generator=generator_for(seed, "offset"))
    return drawn_B1.to(sequences.ids.device)


def canonical(text: str) -> str:
    """Return the shortest spec of the same policy. Raises UserError."""
    return str(registry.spec(text))


def build(text: str) -> PositionPolicy:
    """Return the policy of a spec. Raises UserError."""
    return registry.spec(text).build()


def files_of(text: str) -> list[Path]:
    """Return the Python file of a policy's class, if it has one."""
    path = spec_file(text)
    return [] if path is None else [path]


@final
@registry.register("sequential")
class Sequential(PositionPolicy):
    """Positions 0, 1, 2, ..., without counting padding before a text; each document of a row starts at 0.

    restart: whether documents start at 0; otherwise positions continue through the row, as in GPT-2's training.
    """

    plain = True

    def __init__(self, *, restart: bool = True):
        self.restart = restart

    def places(self, sequences: Sequences, seed: int | None) -> Tensor:
        if self.restart or sequences.documents is None:
            return sequences.index
        return torch.arange(sequences.ids.shape[1], device=sequences.ids.device)
