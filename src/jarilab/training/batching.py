"""Which examples each step trains on."""

# A function of seed and step alone, so that a checkpoint saves nothing of it, and a resumed run skips nothing.

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from typing import NamedTuple, final

import numpy as np
import torch

from jarilab.core.devices import to_device
from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor
from jarilab.nn.init import generator_for
from jarilab.runs.training_options import Training
from jarilab.tasks.base import Batch, Task

POOL = 64
"""Batches whose examples are sorted by length together."""
_ROWS_AT_ONCE = 1 << 16


class Batches(ABC):
    """The examples of each step. steps: number of steps. examples: number of examples in all steps."""

    steps: int
    examples: int

    @abstractmethod
    def at(self, step: int) -> Int[Tensor, " B"]:
        """The indices of the examples of a step; the first step is 0."""


def batches_of(
    options: Training, size: int, lengths: Int[Tensor, "N S"] | None, seed: int
) -> Batches:
    """The batches that the options ask for, over `size` examples.

    lengths: tokens of each of the S sequences of an example, or None. Raises UserError for a token budget that is
    smaller than an example, and for one without lengths.
    """
    budget = options.budget(size)
    if options.tokens is None:
        return FixedSizeBatches(size, options.batch_size, budget, seed)
    if lengths is None:
        raise UserError(
            "training.tokens expects examples of several lengths, got examples of one length; use training.batch_size"
        )
    return TokenBudgetBatches(lengths, options.tokens, budget, seed)


def sample_batch(task: Task, device: torch.device) -> Batch:
    """The first two training examples on a device, to check a model with."""
    indices = torch.arange(min(2, task.training_size))
    batch = task.training_batch(indices, generator_for(0, "check"))
    return to_device(batch, device)


@final
class FixedSizeBatches(Batches):
    """Batches of a fixed number of examples, cut one after another from a permutation of the data for each epoch.

    A batch may continue in the next epoch, so every example is seen once before any is seen twice.
    """

    def __init__(self, size: int, batch_size: int, budget: int, seed: int):
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.steps = -(-budget // batch_size)
        self.examples = self.steps * batch_size
        self._epoch: tuple[int, Tensor] | None = None

    def at(self, step: int) -> Int[Tensor, " B"]:
        start, stop = step * self.batch_size, (step + 1) * self.batch_size
        pieces = []
        while start < stop:
            epoch, offset = divmod(start, self.size)
            count = min(stop - start, self.size - offset)
            pieces.append(self._permutation(epoch)[offset : offset + count])
            start += count
        return torch.cat(pieces).long()

    def _permutation(self, epoch: int) -> Tensor:
        if self._epoch is None or self._epoch[0] != epoch:
            generator = generator_for(self.seed, f"data/{epoch}")
            self._epoch = epoch, _permutation(self.size, generator)
        return self._epoch[1]


@final
class TokenBudgetBatches(Batches):
    """Batches of at most so many tokens, padding included, of examples of similar length.

    An epoch is a permutation, cut into pools. A pool is sorted by length and cut into the largest batches that fit;
    then the batches of the epoch are shuffled.
    lengths: tokens of each sequence of an example, such as source and target, which are padded apart. Examples are
    sorted by their longest sequence, then by each.
    """

    def __init__(self, lengths: Int[Tensor, "N S"], tokens: int, budget: int, seed: int):
        self.tokens, self.seed = tokens, seed
        # Halves of int64, for millions of examples.
        self._lengths = lengths.numpy().astype(np.int32, copy=False)
        longest, total = 0, 0
        for some in _blocks(len(lengths)):
            totals_B = self._lengths[some].sum(1, dtype=np.int64)
            longest, total = max(longest, int(totals_B.max())), total + int(totals_B.sum())
        if longest > tokens:
            raise UserError(
                f"training.tokens={tokens} holds no example of {longest} tokens; use training.tokens={longest} "
                "or more, or shorter examples"
            )
        self._ranks = _ranks(self._lengths)
        mean = -(-total // len(lengths))
        pool = max(1, POOL * tokens // max(1, mean))
        self._pool = min(len(lengths), pool)
        self._epoch: tuple[int, _Epoch] | None = None
        self._first_steps = [0]
        """The first step of each epoch."""
        # Every epoch is planned here: how many batches it has depends on its permutation.
        remaining, self.examples = budget, 0
        while remaining > 0:
            plan = self._plan(len(self._first_steps) - 1)
            examples_so_far = np.cumsum(plan.stops - plan.starts)
            batches = min(len(examples_so_far), int((examples_so_far < remaining).sum()) + 1)
            self._first_steps.append(self._first_steps[-1] + batches)
            self.examples += int(examples_so_far[batches - 1])
            remaining -= int(examples_so_far[batches - 1])
        self.steps = self._first_steps[-1]

    def at(self, step: int) -> Int[Tensor, " B"]:
        epoch = bisect_right(self._first_steps, step) - 1
        plan, batch = self._plan(epoch), step - self._first_steps[epoch]
        return plan.examples[plan.starts[batch] : plan.stops[batch]].long()

    def _plan(self, epoch: int) -> _Epoch:
        if self._epoch is None or self._epoch[0] != epoch:
            generator = generator_for(self.seed, f"data/{epoch}")
            examples = _permutation(len(self._lengths), generator)
            starts = self._sort_and_cut(examples.numpy())
            stops = np.append(starts[1:], len(examples))
            shuffled = torch.randperm(len(starts), generator=generator).numpy()
            plan = _Epoch(examples, starts[shuffled], stops[shuffled])
            self._epoch = epoch, plan
        return self._epoch[1]

    def _sort_and_cut(self, examples: np.ndarray) -> np.ndarray:
        """Sort each pool of examples in place. Returns where the batches start, as many of a pool as fit in each."""
        starts = array("q")
        for first in range(0, len(examples), self._pool):
            pool = examples[first : first + self._pool]
            pool[:] = pool[np.argsort(self._ranks[pool], kind="stable")]
            lengths, start = self._lengths[pool], 0
            while start < len(pool):
                starts.append(first + start)
                start += _fitting(lengths[start:], self.tokens)
        return np.array(starts)


@final
class _Epoch(NamedTuple):
    """Batch k is examples[starts[k] : stops[k]]."""

    examples: Int[Tensor, " N"]
    starts: np.ndarray
    stops: np.ndarray


def _permutation(size: int, generator: torch.Generator) -> Int[Tensor, " N"]:
    """Return a random order of so many examples, in 4 bytes each: the same numbers as in 8."""
    return torch.randperm(size, generator=generator, dtype=torch.int32)


def _blocks(size: int) -> list[slice]:
    """Slices of so many rows, since what is computed of all rows at once takes memory for all."""
    return [slice(start, start + _ROWS_AT_ONCE) for start in range(0, size, _ROWS_AT_ONCE)]


def _ranks(lengths: np.ndarray) -> np.ndarray:
    """Ranks `(N,)` of examples by their longest sequence, then by each. lengths: `(N, S)`."""
    base = int(lengths.max()) + 1

    def numbers(some: slice) -> np.ndarray:
        """The lengths as digits of one number, the longest first."""
        number = lengths[some].max(1).astype(np.int64)
        for column in lengths[some].T:
            number = number * base + column
        return number

    every = [np.unique(numbers(some)) for some in _blocks(len(lengths))]
    different = np.unique(np.concatenate(every))
    # Narrow integers are sorted faster.
    ranks = np.empty(len(lengths), np.min_scalar_type(len(different) - 1))
    for some in _blocks(len(lengths)):
        ranks[some] = np.searchsorted(different, numbers(some))
    return ranks


def _fitting(lengths: np.ndarray, tokens: int) -> int:
    """How many of the first examples fit into a budget of tokens, padded to the longest of each sequence."""
    upper_bound = tokens // max(1, int(lengths[0].sum()))
    longest = np.maximum.accumulate(lengths[:upper_bound]).sum(1)
    sizes = longest * np.arange(1, len(longest) + 1)
    return int(np.searchsorted(sizes, tokens, side="right"))
