"""The order of the data, as a function of seed and step alone: nothing to save, nothing to skip on resuming."""

from __future__ import annotations

import torch

from jari.init import generator_for
from jari.shapes import Int, Tensor


class DataOrder:
    """Each pass over the data is a permutation drawn from (seed, pass); steps cut it, one after another, into batches.
    A batch may reach over the end of a pass, so every example is seen once before any is seen twice."""

    def __init__(self, size: int, batch: int, seed: int):
        self.size, self.batch, self.seed = size, batch, seed
        self._pass: tuple[int, Tensor] | None = None

    def at(self, step: int) -> Int[Tensor, " B"]:
        """The numbers of the examples of step 0, 1, ..."""
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
