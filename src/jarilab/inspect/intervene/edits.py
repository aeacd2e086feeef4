"""Edits of a forward, each of which says what a query may look at, or how it compares what it looks at.

Queries and keys are numbered by `Positions.order`, from 0 in each sequence, as the causal mask counts them: an edit
means the same in a whole forward and in the step of a cached or recurrent decoder that reads its query.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, final

import torch

from jarilab.core.errors import UserError, unknown
from jarilab.inspect.intervene.edit import AtHead, Edit, not_there
from jarilab.inspect.intervene.edit_sites import NOWHERE, Openings, Spot, Spots
from jarilab.inspect.intervene.score_table import ScoreTable
from jarilab.inspect.record.capture import Tape


@final
@dataclass(frozen=True)
class HeadOff(AtHead):
    """Its share of the output is zero before W_O; of a recurrent decoder, which has one head, the context is zero."""

    site: str
    head: int

    def apply(self, table: ScoreTable) -> None:
        rows = table.head(self.head)
        table.allowed[:, rows] = False
        table.changed[:, rows] = True

    def takes(self, spot: Spot) -> bool:
        return True

    def __str__(self) -> str:
        return f"{self.site} head {self.head}"


@final
@dataclass(frozen=True)
class Uniform(AtHead):
    """Equal weights over the keys that each query may look at; head None is all heads."""

    site: str
    head: int | None = None

    def apply(self, table: ScoreTable) -> None:
        rows = table.head(self.head)
        table.scores[:, rows] = 0.0
        table.changed[:, rows] = True

    def __str__(self) -> str:
        return f"{_heads(self)} uniform"


@final
@dataclass(frozen=True)
class Link(AtHead):
    """One query and one key; head None is all heads.

    how: `erase` takes the key away, so that the others share its weight in proportion and a query without any other
    looks at nothing; `force` takes all others away.
    """

    site: str
    head: int | None
    query: int
    key: int
    how: Literal["force", "erase"] = "force"

    def __post_init__(self) -> None:
        if self.how not in ("force", "erase"):
            raise unknown("edit of a link", self.how, ("force", "erase"))

    def apply(self, table: ScoreTable) -> None:
        rows = table.head(self.head)
        query_Q = table.queries == self.query
        if not bool(query_Q.any()):
            return
        key_K = table.keys == self.key
        allowed = table.allowed[:, rows]
        of_query = allowed[..., query_Q, :]
        hidden = ~of_query[..., key_K]
        if not bool(key_K.any()) or bool(hidden.any()):
            raise self._hidden(table)
        taken_K = key_K if self.how == "erase" else ~key_K
        taken_QK = query_Q.unsqueeze(1) & taken_K
        table.allowed[:, rows] &= ~taken_QK
        table.changed[:, rows] |= query_Q

    def _hidden(self, table: ScoreTable) -> UserError:
        keys = table.keys.tolist()
        if self.key not in keys and not table.causal:
            return not_there(self.site, "keys", keys, self.key)
        return UserError(
            f"cannot {self.how} the link from query {self.query} to key {self.key} at {self.site}: the mask, or "
            "another edit, forbids this query to look there; choose a key that it may look at"
        )

    def check_met(self, site: str, queries: Collection[int], keys: Collection[int]) -> None:
        """Whether the query came."""
        if self.query not in queries:
            raise not_there(site, "queries", queries, self.query)

    def spots(self, openings: Openings) -> Spots:
        """Links that the mask leaves open; one is forced only where its query has another key to lose."""
        opening = openings[self.site]
        return opening.links if self.how == "erase" else opening.contested

    @property
    def spot(self) -> Spot:
        return self.query, self.key

    def at(self, spot: Spot) -> Edit:
        query, key = spot
        return replace(self, query=query, key=key)

    def takes(self, spot: Spot) -> bool:
        query, key = spot
        of_key = key == self.key
        return query == self.query and (of_key if self.how == "erase" else not of_key)

    def __str__(self) -> str:
        return f"{_heads(self)}: {self.how} {self.query} -> {self.key}"


@final
@dataclass(frozen=True)
class TokenOff:
    """No query looks at one of the keys, as if that token were padding; a query without any other looks at nothing.

    sites: attentions over the same tokens; `TokenOff.everywhere` finds those of a tape. head None is all heads.
    """

    sites: tuple[str, ...]
    head: int | None
    key: int

    def __post_init__(self) -> None:
        if not isinstance(self.sites, tuple) or not self.sites:
            raise UserError(
                f'expected the names of sites as a tuple, such as ("encoder.0",), got {self.sites!r}'
            )

    @staticmethod
    def everywhere(tape: Tape, side: str, key: int) -> TokenOff:
        """At every attention of a tape whose keys are tokens of one side, `source` or `target`. Raises UserError where
        there is none, no such token, not the same number of keys at each, or attention that was not recorded."""
        keys_of: dict[str, int] = {}
        sides = dict.fromkeys(tape.site(name).keys for name in tape.sites)
        for name, calls in tape.calls.items():
            if tape.site(name).keys == side:
                keys_of[name] = max(recorded.call.k.shape[2] for recorded in calls)
        if not keys_of:
            raise unknown("side with keys", side, sides)
        named = f'TokenOff(("{next(iter(keys_of))}",), None, {key})'
        if tape.missing:
            raise UserError(
                f"{tape.missing[0]} seems to attend in a way that cannot be recorded (tape.missing), and would see the "
                f"token still; name the sites that are to lose it: {named}"
            )
        fewest, most = min(keys_of.values()), max(keys_of.values())
        if fewest < most:
            raise UserError(
                f"the attentions over the {side} have {fewest} to {most} keys, so that a token has no one number; name "
                f"the sites: {named}"
            )
        if not 0 <= key < most:
            raise UserError(f"the {side} has the tokens 0 to {most - 1}, got {key}")
        return TokenOff(tuple(keys_of), None, key)

    def apply(self, table: ScoreTable) -> None:
        rows = table.head(self.head)
        key_K = table.keys == self.key
        seen_BHQ = (table.allowed[:, rows] & key_K).any(-1)
        table.allowed[:, rows] &= ~key_K
        table.changed[:, rows] |= seen_BHQ

    def check_met(self, site: str, queries: Collection[int], keys: Collection[int]) -> None:
        """Whether the key came: in what is written step by step it comes with its own step."""
        if self.key not in keys:
            raise not_there(site, "keys", keys, self.key)

    def homes(self, openings: Openings) -> list[Edit]:
        return [self]

    def spots(self, openings: Openings) -> Spots:
        """Every key that a query may look at."""
        links_N2 = torch.cat([openings[site].links for site in self.sites])
        key_N = links_N2[:, 1].unique()
        no_query_N = torch.full_like(key_N, NOWHERE[0])
        return torch.stack((no_query_N, key_N), 1)

    @property
    def spot(self) -> Spot:
        return NOWHERE[0], self.key

    def at(self, spot: Spot) -> Edit:
        return replace(self, key=spot[1])

    def takes(self, spot: Spot) -> bool:
        return spot[1] == self.key

    def __str__(self) -> str:
        others = len(self.sites) - 1
        more = f" and {others} more" if others else ""
        return f"{_heads(self)}{more}: no key {self.key}"


@final
@dataclass(frozen=True)
class Cut(AtHead):
    """Every query loses `count` of its keys, or all if it has no more; head None is all heads, each its own keys.

    how: `largest` takes those with the largest weights, `random` any that it may look at. seed: of the random ones.
    """

    site: str
    head: int | None
    count: int
    how: Literal["largest", "random"] = "largest"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"expected 1 or more keys to take from each query, got {self.count}")
        if self.how not in ("largest", "random"):
            raise unknown("choice of keys", self.how, ("largest", "random"))

    def apply(self, table: ScoreTable) -> None:
        rows = table.head(self.head)
        allowed = table.allowed[:, rows]
        rank = table.scores[:, rows]
        if self.how == "random":
            # Every step of a decoder draws for itself.
            seed = self.seed + 1_000_003 * int(table.queries[0])
            generator = torch.Generator().manual_seed(seed)
            rank = torch.rand(rank.shape, generator=generator).to(rank.device)
        rank = rank.masked_fill(~allowed, float("-inf"))
        count = min(self.count, rank.shape[-1])
        first = rank.topk(count).indices
        taken = torch.zeros_like(allowed).scatter(-1, first, True)
        table.allowed[:, rows] = allowed & ~taken
        table.changed[:, rows] = True

    def __str__(self) -> str:
        return f"{_heads(self)}: {self.count} {self.how} keys of each query"


def _heads(edit: Edit) -> str:
    heads = "all heads" if edit.head is None else f"head {edit.head}"
    return f"{edit.sites[0]} {heads}"
