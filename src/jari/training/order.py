"""The order of the data, as a function of seed and step alone: nothing to save, nothing to skip on resuming."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch

from jari.errors import UserError
from jari.init import generator_for
from jari.shapes import Int, Tensor
from jari.training.options import Training

POOL = 64  # batches' worth of examples that are sorted by length together


class DataOrder(ABC):
    """Which examples each step reads. steps: how many there are. examples: how many examples they read in all."""

    steps: int
    examples: int

    @abstractmethod
    def at(self, step: int) -> Int[Tensor, " B"]:
        """The numbers of the examples of step 0, 1, ..."""


def order_of(options: Training, size: int, lengths: Int[Tensor, " N"] | None, seed: int) -> DataOrder:
    """The order that the options ask for, over `size` examples of these lengths. Raises UserError."""
    budget = options.budget(size)
    if options.tokens is None:
        return CountedOrder(size, options.batch, budget, seed)
    if lengths is None:
        raise UserError("training.tokens is for text of various lengths, and here all are alike; use training.batch")
    return TokenOrder(lengths, options.tokens, budget, seed)


@final
class CountedOrder(DataOrder):
    """Each pass over the data is a permutation drawn from (seed, pass); steps cut it, one after another, into batches.
    A batch may reach over the end of a pass, so every example is seen once before any is seen twice."""

    def __init__(self, size: int, batch: int, budget: int, seed: int):
        self.size, self.batch, self.seed = size, batch, seed
        self.steps = -(-budget // batch)
        self.examples = self.steps * batch
        self._pass: tuple[int, Tensor] | None = None

    def at(self, step: int) -> Int[Tensor, " B"]:
        start, stop = step * self.batch, (step + 1) * self.batch
        pieces = []
        while start < stop:
            number, offset = divmod(start, self.size)
            taken = min(stop - start, self.size - offset)
            pieces.append(self._permutation(number)[offset : offset + taken])
            start += taken
        return torch.cat(pieces)

    def _permutation(self, number: int) -> Tensor:
        if self._pass is None or self._pass[0] != number:
            self._pass = (number, torch.randperm(self.size, generator=generator_for(self.seed, f"data/{number}")))
        return self._pass[1]


@final
class TokenOrder(DataOrder):
    """Batches of a budget of tokens, padding counted. Each pass is a permutation, cut into pools; a pool is sorted by
    length and cut into batches as large as the budget allows; the batches of a pass are then shuffled. All of it is
    drawn from (seed, pass), so a step's examples follow from the seed and its number."""

    def __init__(self, lengths: Int[Tensor, " N"], tokens: int, budget: int, seed: int):
        self.lengths, self.tokens, self.seed = lengths, tokens, seed
        longest = int(lengths.max())
        if longest > tokens:
            raise UserError(
                f"training.tokens={tokens} holds no example of {longest} tokens; use training.tokens={longest} "
                "or more, or a smaller task.longest"
            )
        self._pool = max(1, POOL * tokens // max(1, int(lengths.double().mean().ceil())))
        self._pass: tuple[int, list[Tensor]] | None = None
        self._starts = [0]  # the first step of each pass
        left, self.examples = budget, 0
        while left > 0:
            batches = self._batches(len(self._starts) - 1)
            sizes = torch.tensor([len(batch) for batch in batches])
            seen = sizes.cumsum(0)
            taken = min(len(batches), int((seen < left).sum()) + 1)
            self._starts.append(self._starts[-1] + taken)
            self.examples += int(seen[taken - 1])
            left -= int(seen[taken - 1])
        self.steps = self._starts[-1]

    def at(self, step: int) -> Int[Tensor, " B"]:
        number = int(torch.searchsorted(torch.tensor(self._starts), step, right=True)) - 1
        return self._batches(number)[step - self._starts[number]]

    def _batches(self, number: int) -> list[Tensor]:
        if self._pass is None or self._pass[0] != number:
            generator = generator_for(self.seed, f"data/{number}")
            permutation = torch.randperm(len(self.lengths), generator=generator)
            batches = [batch for pool in permutation.split(self._pool) for batch in self._cut(pool)]
            shuffled = torch.randperm(len(batches), generator=generator).tolist()
            self._pass = (number, [batches[i] for i in shuffled])
        return self._pass[1]

    def _cut(self, pool: Tensor) -> list[Tensor]:
        lengths = self.lengths[pool]
        lengths, order = lengths.sort(stable=True)
        pool, sizes = pool[order], lengths.tolist()
        batches, start = [], 0
        for stop, length in enumerate(sizes):
            if (stop + 1 - start) * length > self.tokens:
                batches.append(pool[start:stop])
                start = stop
        return [*batches, pool[start:]]
