"""Compare the effect of edits with that of the same edits at random other places."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, final

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.inspect.intervene.edit import NO_TARGET, Edit, EditableSites, editable_sites, overlap
from jarilab.inspect.intervene.interventions import operate
from jarilab.inspect.intervene.likelihood import divergence, log_softmax
from jarilab.inspect.record.model_io import Inputs

Proceed = Callable[[], bool]
"""Asked before each further control whether to go on."""


class GaveWay(Exception):  # noqa: N818 - no error
    """A forward stopped, since `proceed` said no."""


@contextmanager
def giving_way(model: nn.Module, proceed: Proceed) -> Iterator[None]:
    """Inside the block, the model raises GaveWay before its next part once `proceed` says no."""

    def check(*_: Any) -> None:
        if not proceed():
            raise GaveWay

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(check))
        yield


@final
@dataclass(frozen=True)
class Controls:
    """Control edits, of the same kind at random other places, and their effects.

    each: the edits and the divergence of each control, as in `Effect`. divergence: of the real edits. asked: the number
    of controls that were asked for; there are fewer if there are not as many other places. interrupted: whether
    `proceed` ended them.
    """

    each: list[tuple[tuple[Edit, ...], float]]
    divergence: float
    asked: int
    interrupted: bool = False

    @property
    def rank(self) -> str:
        """How many controls have a smaller effect, as text: `larger than 19 of 20`."""
        if not self.each:
            return "there is no other place of this kind to compare with"
        smaller = sum(divergence < self.divergence for _, divergence in self.each)
        return f"larger than {smaller} of {len(self.each)}"


def controls(
    model: nn.Module,
    inputs: Inputs,
    edits: Sequence[Edit],
    count: int = 20,
    seed: int = 0,
    *,
    proceed: Proceed = lambda: True,
) -> Controls:
    """Compare the effect of `edits` with that of the same edits at `count` random other places.

    Another place is another head or allowed link at sites of the same kind (encoder, decoder, cross), or another token
    of the same sites. It is never one of `edits`. A forced link needs a query with another key.
    proceed: asked before each control but the first; controls end if it returns False.
    """

    def predict() -> Tensor:
        return log_softmax(model(*inputs))

    def distance(before: Tensor, after: Tensor) -> float:
        return divergence(before, after, inputs)

    return compare_with_controls(model, predict, distance, edits, count, seed, proceed=proceed)


def compare_with_controls(
    model: nn.Module,
    predict: Callable[[], Tensor],
    distance: Callable[[Tensor, Tensor], float],
    edits: Sequence[Edit],
    count: int = 20,
    seed: int = 0,
    *,
    proceed: Proceed = lambda: True,
) -> Controls:
    """`controls` for any model.

    predict: runs the model once on a batch of one, and returns what is compared. distance: of two of these; it takes
    the place of the divergence. Raises UserError without edits, for no controls, and as `operate` does.
    """
    if not edits or count < 1:
        raise UserError(
            f"expected an edit or more and 1 control or more, got {len(edits)} edits and {count} controls"
        )

    def predict_with(edits: Sequence[Edit]) -> Tensor:
        with torch.no_grad(), operate(model, edits):
            return predict()

    before = predict_with(())

    def distance_of(edits: Sequence[Edit]) -> float:
        return distance(before, predict_with(edits))

    distance_of_edits = distance_of(edits)
    drawn = _draw_controls(edits, editable_sites(model, predict), count, seed)
    each: list[tuple[tuple[Edit, ...], float]] = []
    for others in drawn:
        if each and not proceed():
            break
        each.append((others, distance_of(others)))
    return Controls(each, distance_of_edits, count, len(each) < len(drawn))


# Drawing ------------------------------------------------------------------------------------------------------------


MAX_TRIES = 100
"""Draws for each control. Sets of edits that hide each other's links are drawn again."""


class _Pool:
    """All places of one kind of edit, by number."""

    # They are not listed: a map of 1,000 tokens has a million links.

    def __init__(self, example: Edit, sites: EditableSites, edits: Sequence[Edit]):
        self._alternatives = example.alternatives(sites)
        self._candidates = [edit.candidates(sites) for edit in self._alternatives]
        self._ends = list(accumulate(len(targets_N2) for targets_N2 in self._candidates))
        self._excluded = set(self._places_of(edits))
        self.size = self._ends[-1] - len(self._excluded)

    def _places_of(self, edits: Sequence[Edit]) -> Iterator[Edit]:
        """The places of the pool that have an edit of this kind."""
        for alternative, targets_N2 in zip(self._alternatives, self._candidates, strict=True):
            for edit in edits:
                if type(edit) is not type(alternative) or not overlap(edit, alternative):
                    continue
                is_target_N = (targets_N2 == torch.tensor(edit.target)).all(1)
                if bool(is_target_N.any()):
                    yield alternative.moved_to(edit.target)

    def draw(self, generator: random.Random, count: int) -> list[Edit]:
        """Draw `count` different edits, none of them excluded."""
        while True:
            numbers = generator.sample(range(self._ends[-1]), count)
            others = [self._numbered(number) for number in numbers]
            if self._excluded.isdisjoint(others):
                return others

    def _numbered(self, number: int) -> Edit:
        index = bisect_right(self._ends, number)
        query, key = self._candidates[index][number - self._ends[index]].tolist()
        return self._alternatives[index].moved_to((query, key))


def _draw_controls(
    edits: Sequence[Edit], sites: EditableSites, count: int, seed: int
) -> list[tuple[Edit, ...]]:
    """Draw different sets of edits, each with as many of every kind as `edits`."""
    by_kind: dict[Edit, list[Edit]] = {}
    for edit in edits:
        kind = edit.alternatives(sites)[0].moved_to(NO_TARGET)
        by_kind.setdefault(kind, []).append(edit)
    pools = []
    for group in by_kind.values():
        pools.append((_Pool(group[0], sites, edits), len(group)))
    possible = math.prod(math.comb(pool.size, number) for pool, number in pools)
    generator = random.Random(seed)
    controls: dict[frozenset[Edit], tuple[Edit, ...]] = {}
    for _ in range(MAX_TRIES * count):
        if len(controls) == min(count, possible):
            break
        others: list[Edit] = []
        for pool, number in pools:
            others += pool.draw(generator, number)
        if not _hide_each_other(others):
            controls.setdefault(frozenset(others), tuple(others))
    return list(controls.values())


def _hide_each_other(edits: Sequence[Edit]) -> bool:
    """Whether an edit hides the link that a later one concerns."""
    for index, later in enumerate(edits):
        query, _ = later.target
        if query == NO_TARGET[0]:
            continue
        if any(overlap(edit, later) and edit.hides(later.target) for edit in edits[:index]):
            return True
    return False
