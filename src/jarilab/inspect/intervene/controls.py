"""What an edit does beside the same edit at random other places: an effect alone says little."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import final

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.inspect.intervene.edit import Edit, meet
from jarilab.inspect.intervene.edit_sites import NOWHERE, Openings, openings_of
from jarilab.inspect.intervene.interventions import operate
from jarilab.inspect.intervene.likelihood import divergence, log_softmax
from jarilab.inspect.record.model_io import Inputs


@final
@dataclass(frozen=True)
class Controls:
    """Edits of the same kind at random other places, and what each did.

    each: edits and their divergence, as in `Effect`. divergence: of the real edits. asked: how many controls were asked
    for; there are fewer where there are not so many other places.
    """

    each: list[tuple[tuple[Edit, ...], float]]
    divergence: float
    asked: int

    @property
    def rank(self) -> str:
        """`larger than 19 of 20`."""
        if not self.each:
            return "there is no other place of this kind to compare with"
        smaller = sum(divergence < self.divergence for _, divergence in self.each)
        return f"larger than {smaller} of {len(self.each)}"


def controls(
    model: nn.Module, inputs: Inputs, edits: Sequence[Edit], count: int = 20, seed: int = 0
) -> Controls:
    """Make the same edits at `count` random other places, and compare what they do with what `edits` do.

    Another place is another head, or link that the mask leaves open, of sites of the same kind (encoder, decoder's own,
    cross), or another token of the same sites, and is never one of `edits`. A link is forced only where its query has
    another key to lose.
    """

    def says() -> Tensor:
        return log_softmax(model(*inputs))

    def apart(before: Tensor, after: Tensor) -> float:
        return divergence(before, after, inputs)

    return compared(model, says, apart, edits, count, seed)


def compared(
    model: nn.Module,
    says: Callable[[], Tensor],
    apart: Callable[[Tensor, Tensor], float],
    edits: Sequence[Edit],
    count: int = 20,
    seed: int = 0,
) -> Controls:
    """`controls` of any model, whatever it is called with and whatever it says.

    says: runs the model once, on a batch of one, and gives what is compared. apart: how far two of these are from each
    other; it stands where `Controls` says divergence.
    """
    if not edits or count < 1:
        raise UserError(
            f"expected an edit or more and 1 control or more, got {len(edits)} edits and {count} controls"
        )

    def said(edits: Sequence[Edit]) -> Tensor:
        with torch.no_grad(), operate(model, edits):
            return says()

    before = said(())

    def measured(edits: Sequence[Edit]) -> float:
        return apart(before, said(edits))

    own = measured(edits)
    drawn = _drawn(edits, openings_of(model, says), count, seed)
    return Controls([(others, measured(others)) for others in drawn], own, count)


# Drawing -------------------------------------------------------------------------------------------------------------


TRIES = 100
"""For each control: a set of edits that are in each other's way is drawn anew, and where there are few there may be
none else."""


class _Pool:
    """Where else an edit could be, numbered without being listed: a map of 1,000 tokens has a million links."""

    def __init__(self, like: Edit, openings: Openings, edits: Sequence[Edit]):
        self._homes = like.homes(openings)
        self._spots = [home.spots(openings) for home in self._homes]
        self._ends = list(accumulate(len(spots_N2) for spots_N2 in self._spots))
        self._taken = set(self._taken_by(edits))
        self.size = self._ends[-1] - len(self._taken)

    def _taken_by(self, edits: Sequence[Edit]) -> Iterator[Edit]:
        """The places of the pool at which there are edits of this kind already."""
        for home, spots_N2 in zip(self._homes, self._spots, strict=True):
            for edit in edits:
                if type(edit) is not type(home) or not meet(edit, home):
                    continue
                there_N = (spots_N2 == torch.tensor(edit.spot)).all(1)
                if bool(there_N.any()):
                    yield home.at(edit.spot)

    def draw(self, numbers: random.Random, count: int) -> list[Edit]:
        """So many different ones, none of which is among the edits."""
        while True:
            drawn = numbers.sample(range(self._ends[-1]), count)
            others = [self._numbered(number) for number in drawn]
            if self._taken.isdisjoint(others):
                return others

    def _numbered(self, number: int) -> Edit:
        index = bisect_right(self._ends, number)
        query, key = self._spots[index][number - self._ends[index]].tolist()
        return self._homes[index].at((query, key))


def _drawn(
    edits: Sequence[Edit], openings: Openings, count: int, seed: int
) -> list[tuple[Edit, ...]]:
    """Different sets of edits, each with as many of every kind as there are in `edits`."""
    alike: dict[Edit, list[Edit]] = {}
    for edit in edits:
        sort = edit.homes(openings)[0].at(NOWHERE)
        alike.setdefault(sort, []).append(edit)
    pools = []
    for group in alike.values():
        pools.append((_Pool(group[0], openings, edits), len(group)))
    ways = [math.comb(pool.size, number) for pool, number in pools]
    possible = math.prod(ways)
    numbers = random.Random(seed)
    found: dict[frozenset[Edit], tuple[Edit, ...]] = {}
    for _ in range(TRIES * count):
        if len(found) == min(count, possible):
            break
        others: list[Edit] = []
        for pool, number in pools:
            others += pool.draw(numbers, number)
        if not _any_in_the_way(others):
            found.setdefault(frozenset(others), tuple(others))
    return list(found.values())


def _any_in_the_way(edits: Sequence[Edit]) -> bool:
    """Whether one of the edits takes a link away that a later one is about."""
    for number, later in enumerate(edits):
        query, _ = later.spot
        if query == NOWHERE[0]:
            continue
        if any(meet(edit, later) and edit.takes(later.spot) for edit in edits[:number]):
            return True
    return False
