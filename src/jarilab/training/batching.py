"""The order of the data, as a function of seed and step alone: nothing to save, nothing to skip on resuming."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import NamedTuple, final

import numpy as np
import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.nn.init import generator_for
from jarilab.runs.options import Training

POOL = 64  # batches' worth of examples that are sorted by length together


class Batches(ABC):
    """Which examples each step reads. steps: how many there are. examples: how many examples they read in all."""

    steps: int
    examples: int

    @abstractmethod
    def at(self, step: int) -> Int[Tensor, " B"]:
        """The numbers of the examples of step 0, 1, ..."""


def batches_of(
    options: Training, size: int, lengths: Int[Tensor, "N S"] | None, seed: int
) -> Batches:
    """The order that the options ask for, over `size` examples of these lengths. Raises UserError."""
    budget = options.budget(size)
    if options.tokens is None:
        return FixedSizeBatches(size, options.batch_size, budget, seed)
    if lengths is None:
        raise UserError(
            "training.tokens is for text of various lengths, and here all are alike; use training.batch_size"
        )
    return TokenBudgetBatches(lengths, options.tokens, budget, seed)


@final
class FixedSizeBatches(Batches):
    """Each pass over the data is a permutation drawn from (seed, pass); steps cut it, one after another, into batches.
    A batch may reach over the end of a pass, so every example is seen once before any is seen twice."""

    def __init__(self, size: int, batch_size: int, budget: int, seed: int):
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.steps = -(-budget // batch_size)
        self.examples = self.steps * batch_size
        self._pass: tuple[int, Tensor] | None = None

    def at(self, step: int) -> Int[Tensor, " B"]:
        start, stop = step * self.batch_size, (step + 1) * self.batch_size
        pieces = []
        while start < stop:
            number, offset = divmod(start, self.size)
            taken = min(stop - start, self.size - offset)
            pieces.append(self._permutation(number)[offset : offset + taken])
            start += taken
        return torch.cat(pieces)

    def _permutation(self, number: int) -> Tensor:
        if self._pass is None or self._pass[0] != number:
            self._pass = (
                number,
                torch.randperm(self.size, generator=generator_for(self.seed, f"data/{number}")),
            )
        return self._pass[1]


@final
class TokenBudgetBatches(Batches):
    """Batches of a budget of tokens, padding counted. Each pass is a permutation, cut into pools; a pool is sorted by
    length and cut into batches as large as the budget allows; the batches of a pass are then shuffled. All of it is
    drawn from (seed, pass), so a step's examples follow from the seed and its number.

    lengths: of each sequence that an example has, as source and target, which are padded apart. Examples are sorted by
    the longest of theirs, then by each, so that neighbours are alike in all.
    """

    def __init__(self, lengths: Int[Tensor, "N S"], tokens: int, budget: int, seed: int):
        self.tokens, self.seed = tokens, seed
        in_all = lengths.sum(1)
        longest = int(in_all.max())
        if longest > tokens:
            raise UserError(
                f"training.tokens={tokens} holds no example of {longest} tokens; use training.tokens={longest} "
                "or more, or shorter examples"
            )
        self._lengths = lengths.numpy().astype(np.int64)
        self._ranks = _ranks(self._lengths)
        pool = max(1, POOL * tokens // max(1, int(in_all.double().mean().ceil())))
        self._pool = min(len(lengths), pool)
        self._pass: tuple[int, _Pass] | None = None
        self._firsts = [0]  # the first step of each pass
        left, self.examples = budget, 0
        while left > 0:
            plan = self._plan(len(self._firsts) - 1)
            seen = np.cumsum(plan.stops - plan.starts)
            taken = min(len(seen), int((seen < left).sum()) + 1)
            self._firsts.append(self._firsts[-1] + taken)
            self.examples += int(seen[taken - 1])
            left -= int(seen[taken - 1])
        self.steps = self._firsts[-1]

    def at(self, step: int) -> Int[Tensor, " B"]:
        number = bisect_right(self._firsts, step) - 1
        plan, batch = self._plan(number), step - self._firsts[number]
        return plan.examples[plan.starts[batch] : plan.stops[batch]]

    def _plan(self, number: int) -> _Pass:
        if self._pass is None or self._pass[0] != number:
            generator = generator_for(self.seed, f"data/{number}")
            examples = torch.randperm(len(self._lengths), generator=generator).numpy()
            examples = examples[_sorted_in_pools(self._ranks[examples], self._pool)]
            starts = _cuts(self._lengths[examples], self._pool, self.tokens)
            stops = np.append(starts[1:], len(examples))
            shuffled = torch.randperm(len(starts), generator=generator).numpy()
            self._pass = (
                number,
                _Pass(torch.from_numpy(examples), starts[shuffled], stops[shuffled]),
            )
        return self._pass[1]


@final
class _Pass(NamedTuple):
    """Batch k is examples[starts[k] : stops[k]]."""

    examples: Int[Tensor, " N"]
    starts: np.ndarray
    stops: np.ndarray


def _ranks(lengths: np.ndarray) -> np.ndarray:
    """`(N,)`, numbers by which examples are sorted: by the longest sequence, then by each. lengths: `(N, S)`."""
    keys = (*lengths.T[::-1], lengths.max(1))  # the last counts most
    order = np.lexsort(keys)
    alike = (lengths[order[1:]] == lengths[order[:-1]]).all(1)
    rank = np.concatenate(([0], np.cumsum(~alike)))
    ranks = np.empty(
        len(lengths), np.min_scalar_type(int(rank[-1]))
    )  # narrow numbers are sorted faster
    ranks[order] = rank
    return ranks


def _sorted_in_pools(ranks: np.ndarray, pool: int) -> np.ndarray:
    """The places `(N,)` of these ranks, pool after pool, each sorted; equal ones keep their order."""
    rows = -(-len(ranks) // pool)
    # What fills the last pool ends up behind all of it.
    padded = np.full(rows * pool, ranks.max(), ranks.dtype)
    padded[: len(ranks)] = ranks
    order = (
        padded.reshape(rows, pool).argsort(axis=1, kind="stable") + pool * np.arange(rows)[:, None]
    )
    return order.ravel()[: len(ranks)]


def _cuts(lengths: np.ndarray, pool: int, tokens: int) -> np.ndarray:
    """Where each batch starts: it holds as many examples of its pool as fit. lengths: `(N, S)`, sorted in pools."""
    starts = []
    for first in range(0, len(lengths), pool):
        start, last = first, min(first + pool, len(lengths))
        while start < last:
            starts.append(start)
            start += _fitting(lengths[start:last], tokens)
    return np.array(starts)


def _fitting(lengths: np.ndarray, tokens: int) -> int:
    """How many of the first examples a budget holds: the longest of each sequence times their number."""
    most = tokens // max(1, int(lengths[0].sum()))
    longest = np.maximum.accumulate(lengths[:most]).sum(1)
    sizes = longest * np.arange(1, len(longest) + 1)
    return int(np.searchsorted(sizes, tokens, side="right"))
