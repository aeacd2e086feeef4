"""What an edit does beside the same edit at random other places: an effect alone says little."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import final

import torch
from torch import nn

from jarilab.errors import UserError
from jarilab.inspect.calls import allowed_links
from jarilab.inspect.capture import Tape, record
from jarilab.inspect.interventions import Edit, HeadOff, Link, operate
from jarilab.inspect.likelihood import divergence, log_softmax
from jarilab.inspect.model_io import Inputs
from jarilab.shapes import Int, Tensor


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
    cross), and is never one of `edits`. A link is forced only where its query has another key to lose.
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
    drawn = _drawn(edits, _openings(model, says), count, seed)
    return Controls([(others, measured(others)) for others in drawn], own, count)


# Where edits can be --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Opening:
    """A site as controls see it. kind: encoder, decoder or cross. links: `(N, 2)`, each query with each key that it may
    look at. choices: `(N,)`, how many keys this query has."""

    kind: str
    heads: int
    links: Int[Tensor, "N 2"]
    choices: Int[Tensor, " N"]

    def links_for(self, edit: Edit) -> Int[Tensor, "N 2"]:
        """Where such an edit could be. What is no link is at one place of each head."""
        if not isinstance(edit, Link):
            return NOWHERE.unsqueeze(0)
        return self.links[self.choices > 1] if edit.how == "force" else self.links

    def heads_for(self, edit: Edit) -> list[int] | list[None]:
        return [None] if edit.head is None else list(range(self.heads))


TRIES = 100
"""For each control: a set of edits that are in each other's way is drawn anew, and where there are few there may be
none else."""
NOWHERE = torch.zeros(2, dtype=torch.long)
"""The query and the key of an edit that has none."""


def _openings(model: nn.Module, says: Callable[[], Tensor]) -> dict[str, _Opening]:
    """Every attention of a forward."""
    with torch.no_grad(), record(model) as tape:
        says()
    return {site: _opening(tape, site) for site in tape.sites}


def _opening(tape: Tape, site: str) -> _Opening:
    links, choices = [], []
    calls = [recorded.call for recorded in tape.calls[site]]
    for call in calls:
        allowed_QK = allowed_links(call).all(0).squeeze(0).cpu()
        query_N, key_N = allowed_QK.nonzero().unbind(1)
        q_order = call.geometry.q_pos.order.cpu()
        k_order = call.geometry.k_pos.order.cpu()
        of_call = q_order[query_N], k_order[key_N]
        links.append(torch.stack(of_call, 1))
        choices.append(allowed_QK.sum(1)[query_N])
    return _Opening(
        kind=tape.site(site).kind,
        heads=calls[0].q.shape[1],
        links=torch.cat(links),
        choices=torch.cat(choices),
    )


# Drawing -------------------------------------------------------------------------------------------------------------


class _Pool:
    """Where else an edit could be, numbered without being listed: a map of 1,000 tokens has a million links."""

    def __init__(self, like: Edit, openings: dict[str, _Opening], edits: Sequence[Edit]):
        kind = openings[like.site].kind
        self._like = like
        self._of_kind = {site: one for site, one in openings.items() if one.kind == kind}
        self._where = []
        for site, opening in self._of_kind.items():
            links = opening.links_for(like)
            self._where += [(site, head, links) for head in opening.heads_for(like)]
        sizes = [len(links) for _, _, links in self._where]
        self._ends = list(accumulate(sizes))
        self._taken = set(self._taken_by(edits))
        self.size = self._ends[-1] - len(self._taken)

    def _taken_by(self, edits: Sequence[Edit]) -> Iterator[Edit]:
        """The places of the pool at which there are edits of this kind already."""
        for edit in edits:
            if type(edit) is not type(self._like) or edit.site not in self._of_kind:
                continue
            opening = self._of_kind[edit.site]
            link = _link(edit)
            there_N = (opening.links_for(self._like) == link).all(1)
            if not bool(there_N.any()):
                continue
            for head in opening.heads_for(self._like):
                if head is None or edit.head in (None, head):
                    yield _elsewhere(self._like, edit.site, head, link)

    def draw(self, numbers: random.Random, count: int) -> list[Edit]:
        """So many different ones, none of which is among the edits."""
        while True:
            drawn = numbers.sample(range(self._ends[-1]), count)
            others = [self._numbered(number) for number in drawn]
            if self._taken.isdisjoint(others):
                return others

    def _numbered(self, number: int) -> Edit:
        index = bisect_right(self._ends, number)
        site, head, links = self._where[index]
        return _elsewhere(self._like, site, head, links[number - self._ends[index]])


def _link(edit: Edit) -> Int[Tensor, " 2"]:
    return torch.tensor([edit.query, edit.key]) if isinstance(edit, Link) else NOWHERE


def _elsewhere(edit: Edit, site: str, head: int | None, link: Int[Tensor, " 2"]) -> Edit:
    if isinstance(edit, Link):
        query, key = link.tolist()
        return replace(edit, site=site, head=head, query=query, key=key)
    return replace(edit, site=site, head=head)  # type: ignore[arg-type]


def _drawn(
    edits: Sequence[Edit], openings: dict[str, _Opening], count: int, seed: int
) -> list[tuple[Edit, ...]]:
    """Different sets of edits, each with as many of every kind as there are in `edits`."""
    alike: dict[Edit, list[Edit]] = {}
    for edit in edits:
        head = None if edit.head is None else 0
        sort = _elsewhere(edit, openings[edit.site].kind, head, NOWHERE)
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
    return any(
        _in_the_way(edit, link)
        for number, link in enumerate(edits)
        if isinstance(link, Link)
        for edit in edits[:number]
    )


def _in_the_way(edit: Edit, link: Link) -> bool:
    if edit.site != link.site or not (None in (edit.head, link.head) or edit.head == link.head):
        return False
    if not isinstance(edit, Link):
        return isinstance(edit, HeadOff)
    of_key = edit.key == link.key
    return edit.query == link.query and (of_key if edit.how == "erase" else not of_key)
