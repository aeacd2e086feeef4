"""Several corpora with weights: how they are named, and which examples of them are trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Int, Tensor


class Corpus(NamedTuple):
    """Files that belong together, and how often an epoch reads each of their examples."""

    files: tuple[Path, ...]
    weight: float


def corpora(option: str, names: Sequence[str], *, single: bool = False) -> list[Corpus]:
    """Return the corpora of an option: a weight after a colon ends one, as in `a.de a.en:2 b.de b.en:0.5`.

    A file whose name has a colon is a file. single: every file is a corpus. Raises UserError for a weight that is not a
    positive number.
    """
    found: list[Corpus] = []
    files: list[Path] = []
    for name in names:
        file, weight = _split(option, name)
        files.append(file)
        if weight is not None or single:
            found.append(Corpus(tuple(files), 1.0 if weight is None else weight))
            files = []
    return [*found, Corpus(tuple(files), 1.0)] if files else found


def _split(option: str, name: str) -> tuple[Path, float | None]:
    """The file and the weight of `FILE:WEIGHT`; no weight for a file."""
    file, colon, weight = name.rpartition(":")
    # After the colon of a Windows drive there is a path.
    if not colon or not file or _exists(name) or "/" in weight or "\\" in weight:
        return Path(name), None
    try:
        number = float(weight)
    except ValueError:
        if not _exists(file):  # a file that is missing, as the reader will say
            return Path(name), None
        number = math.nan
    if not 0 < number <= 1e6:
        raise UserError(
            f"--{option}: expected a weight above 0 and at most 1,000,000 after the colon; got {weight!r} in {name}; "
            f"write such as {file}:2"
        )
    return Path(file), number


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


@final
class Mixture:
    """Which rows of several corpora a step reads. An epoch reads each row of a corpus `weight` times.

    Rows are numbered through all corpora. A weight below 1 draws one of the neighbours in length, so that all rows are
    read in turn and token budgets hold.
    """

    def __init__(
        self,
        weights: Sequence[float],
        sizes: Sequence[int],
        lengths: Int[Tensor, "N S"] | None = None,
    ):
        order, first, width, last = [], [], [], []
        start = 0
        for weight, size in zip(weights, sizes, strict=True):
            rows = torch.arange(start, start + size)
            if lengths is not None:
                rows = rows[lengths[rows].sum(1).argsort(stable=True)]
            count = max(1, round(weight * size)) if size else 0
            order.append(rows)
            first.append(start + torch.arange(count, dtype=torch.float64) / weight)
            width.append(torch.full((count,), 1 / weight, dtype=torch.float64))
            last.append(torch.full((count,), start + size - 1))
            start += size
        self._order, self._first = torch.cat(order), torch.cat(first)
        self._width, self._last = torch.cat(width), torch.cat(last)

    def __len__(self) -> int:
        return len(self._first)

    def rows(self, indices: Int[Tensor, " B"], generator: torch.Generator) -> Int[Tensor, " B"]:
        """Return the rows of these examples of an epoch. generator: decides between neighbours."""
        share_B = torch.rand(indices.shape, generator=generator, dtype=torch.float64)
        return self._row(indices, share_B * self._width[indices])

    def lengths(self, lengths: Int[Tensor, "N S"]) -> Int[Tensor, "M S"]:
        """Return the largest lengths that each example of an epoch may have."""
        every = torch.arange(len(self))
        longest = lengths[self._row(every, torch.zeros(len(self)))]
        for shift in range(1, math.ceil(float(self._width.max())) + 1):
            shifted = torch.minimum(torch.tensor(float(shift)), self._width)
            longest = torch.maximum(longest, lengths[self._row(every, shifted)])
        return longest

    def _row(self, indices: Tensor, shift: Tensor) -> Tensor:
        place = (self._first[indices] + shift).floor().long()
        return self._order[torch.minimum(place, self._last[indices])]
