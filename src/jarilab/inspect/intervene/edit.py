"""What an edit of a forward is: what it changes of an attention, and where else one of its kind could be."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Protocol, cast, runtime_checkable

import torch

from jarilab.core.errors import UserError
from jarilab.inspect.intervene.edit_sites import NOWHERE, Openings, Spot, Spots
from jarilab.inspect.intervene.score_table import ScoreTable


@runtime_checkable
class Edit(Protocol):
    """A change of what queries look at.

    The last four answers are for edits of the same kind at random other places, see `controls`.
    """

    @property
    def sites(self) -> tuple[str, ...]:
        """The attentions that it changes."""
        ...

    @property
    def head(self) -> int | None:
        """The head that it changes at each of them; None for all."""
        ...

    def apply(self, table: ScoreTable) -> None:
        """Change the scores of one of its sites. Raises UserError for what is not there, or hidden."""
        ...

    def check_met(self, site: str, queries: Collection[int], keys: Collection[int]) -> None:
        """Raises UserError where it had nothing to do at `site`. queries, keys: all that ran there."""
        ...

    def homes(self, openings: Openings) -> list[Edit]:
        """The same edit at each site and head where it could be as well; these differ by no more than that."""
        ...

    def spots(self, openings: Openings) -> Spots:
        """What it could be about at its own site and head."""
        ...

    @property
    def spot(self) -> Spot:
        """The query and the key that it is about; `NOWHERE` where it is about none."""
        ...

    def at(self, spot: Spot) -> Edit:
        """The same about another query and key."""
        ...

    def takes(self, spot: Spot) -> bool:
        """Whether this query does not see this key any more, where it is in force."""
        ...


class AtHead:
    """An edit at one site that is about no query and no key more than about another."""

    site: str
    head: Any  # a number, or None for all where the edit can be of all

    @property
    def sites(self) -> tuple[str, ...]:
        return (self.site,)

    def check_met(self, site: str, queries: Collection[int], keys: Collection[int]) -> None:
        """There is always something to do."""

    def homes(self, openings: Openings) -> list[Edit]:
        kind = openings[self.site].kind
        homes = []
        for site, opening in openings.items():
            if opening.kind != kind:
                continue
            for head in [None] if self.head is None else range(opening.n_heads):
                homes.append(replace(self, site=site, head=head))  # type: ignore[type-var]
        return homes

    def spots(self, openings: Openings) -> Spots:
        return torch.tensor([NOWHERE])

    @property
    def spot(self) -> Spot:
        return NOWHERE

    def at(self, spot: Spot) -> Edit:
        return cast("Edit", self)

    def takes(self, spot: Spot) -> bool:
        return False


def meet(one: Edit, other: Edit) -> bool:
    """Whether both change the same head of the same attention."""
    heads = {one.head, other.head}
    return not set(one.sites).isdisjoint(other.sites) and (None in heads or len(heads) == 1)


def not_there(site: str, what: str, there: Collection[int], got: int) -> UserError:
    """What to say of a number that is none of those there."""
    return UserError(f"{site} has the {what} {min(there)} to {max(there)}, got {got}")
