"""The edits: heads off, uniform weights, single links, hidden tokens, and cuts of the largest or of random keys.

Queries and keys are counted by `Positions.order`, from 0 in each sequence, as the causal mask counts them. An edit has
the same meaning in a whole forward and in one step of a cached or recurrent decoder.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, final

import torch

from jarilab.core.errors import UserError, unknown
from jarilab.inspect.intervene.edit import (
    NO_TARGET,
    AtHead,
    Edit,
    EditableSites,
    QueryKey,
    QueryKeys,
    ScoreTable,
    not_there,
)
from jarilab.inspect.record.capture import Tape


@final
@dataclass(frozen=True)
class HeadOff(AtHead):
    """Sets the output of a head to zero before W_O; for a recurrent decoder, the context."""

    site: str
    head: int

    def apply(self, table: ScoreTable) -> None:
        rows = table.head(self.head)
        table.allowed[:, rows] = False
        table.changed[:, rows] = True

    def hides(self, target: QueryKey) -> bool:
        return True

    def __str__(self) -> str:
        return f"{self.site} head {self.head}"


@final
@dataclass(frozen=True)
class Uniform(AtHead):
    """Gives equal weights to all keys that a query may attend to. head: None for all heads."""

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
    """Changes the link from one query to one key. head: None for all heads.

    how: `erase` hides the key, and the other keys share its weight in proportion; `force` hides all other keys.
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
        hidden = ~allowed[..., query_Q, :][..., key_K]
        if not bool(key_K.any()) and not table.causal:
            raise not_there(self.site, "keys", table.keys.tolist(), self.key)
        if not bool(key_K.any()) or bool(hidden.any()):
            raise UserError(
                f"cannot {self.how} the link from query {self.query} to key {self.key} at {self.site}: the mask, or "
                "another edit, hides this key; choose a key that the query may attend to"
            )
        removed_K = key_K if self.how == "erase" else ~key_K
        removed_QK = query_Q.unsqueeze(1) & removed_K
        table.allowed[:, rows] &= ~removed_QK
        table.changed[:, rows] |= query_Q

    def check_met(self, site: str, queries: Collection[int], keys: Collection[int]) -> None:
        if self.query not in queries:
            raise not_there(site, "queries", queries, self.query)

    def candidates(self, sites: EditableSites) -> QueryKeys:
        """All allowed links. To force a link has an effect only if its query has another key."""
        editable = sites[self.site]
        return editable.links if self.how == "erase" else editable.links_with_choice

    @property
    def target(self) -> QueryKey:
        return self.query, self.key

    def moved_to(self, target: QueryKey) -> Edit:
        query, key = target
        return replace(self, query=query, key=key)

    def hides(self, target: QueryKey) -> bool:
        query, key = target
        is_key = key == self.key
        return query == self.query and (is_key if self.how == "erase" else not is_key)

    def __str__(self) -> str:
        return f"{_heads(self)}: {self.how} {self.query} -> {self.key}"


@final
@dataclass(frozen=True)
class TokenOff(Edit):
    """Hides a key from all queries, as if its token were padding.

    sites: attentions over the same tokens; `TokenOff.everywhere` takes those of a tape. head: None for all heads.
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
        """The edit at every attention of a tape whose keys are tokens of one side, `source` or `target`.

        Raises UserError if there is no such attention or token, if the attentions have different numbers of keys, and
        if the tape misses attentions.
        """
        key_counts: dict[str, int] = {}
        sides = dict.fromkeys(tape.site(name).keys for name in tape.sites)
        for name, calls in tape.calls.items():
            if tape.site(name).keys == side:
                key_counts[name] = max(recorded.call.k.shape[2] for recorded in calls)
        if not key_counts:
            raise unknown("side with keys", side, sides)
        example = f'TokenOff(("{next(iter(key_counts))}",), None, {key})'
        if tape.missing:
            raise UserError(
                f"{next(iter(tape.missing))} seems to attend in a way that cannot be recorded (tape.missing), and "
                f"would still attend to the token; name the sites where it is to be hidden: {example}"
            )
        fewest, most = min(key_counts.values()), max(key_counts.values())
        if fewest < most:
            raise UserError(
                f"the attentions over the {side} have {fewest} to {most} keys, so that the index of a token is not "
                f"unique; name the sites: {example}"
            )
        if not 0 <= key < most:
            raise UserError(f"the {side} has the tokens 0 to {most - 1}, got {key}")
        return TokenOff(tuple(key_counts), None, key)

    def apply(self, table: ScoreTable) -> None:
        rows = table.head(self.head)
        key_K = table.keys == self.key
        visible_BHQ = (table.allowed[:, rows] & key_K).any(-1)
        table.allowed[:, rows] &= ~key_K
        table.changed[:, rows] |= visible_BHQ

    def check_met(self, site: str, queries: Collection[int], keys: Collection[int]) -> None:
        # In generation a key appears with its own step.
        if self.key not in keys:
            raise not_there(site, "keys", keys, self.key)

    def candidates(self, sites: EditableSites) -> QueryKeys:
        """Every key that some query may attend to."""
        links_N2 = torch.cat([sites[site].links for site in self.sites])
        key_N = links_N2[:, 1].unique()
        no_query_N = torch.full_like(key_N, NO_TARGET[0])
        return torch.stack((no_query_N, key_N), 1)

    @property
    def target(self) -> QueryKey:
        return NO_TARGET[0], self.key

    def moved_to(self, target: QueryKey) -> Edit:
        return replace(self, key=target[1])

    def hides(self, target: QueryKey) -> bool:
        return target[1] == self.key

    def __str__(self) -> str:
        others = len(self.sites) - 1
        more = f" and {others} more" if others else ""
        return f"{_heads(self)}{more}: no key {self.key}"


@final
@dataclass(frozen=True)
class Cut(AtHead):
    """Hides `count` keys from every query, or all if it has fewer. head: None for all heads, each with its own keys.

    how: `largest` hides the keys with the largest weights, `random` any that the query may attend to, drawn by `seed`.
    """

    site: str
    head: int | None
    count: int
    how: Literal["largest", "random"] = "largest"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"expected 1 or more keys to hide from each query, got {self.count}")
        if self.how not in ("largest", "random"):
            raise unknown("choice of keys", self.how, ("largest", "random"))

    def apply(self, table: ScoreTable) -> None:
        rows = table.head(self.head)
        allowed = table.allowed[:, rows]
        rank = table.scores[:, rows]
        if self.how == "random":
            # Each step of a decoder draws keys of its own.
            seed = self.seed + 1_000_003 * int(table.queries[0])
            generator = torch.Generator().manual_seed(seed)
            rank = torch.rand(rank.shape, generator=generator).to(rank.device)
        rank = rank.masked_fill(~allowed, float("-inf"))
        count = min(self.count, rank.shape[-1])
        removed = torch.zeros_like(allowed).scatter(-1, rank.topk(count).indices, True)
        table.allowed[:, rows] = allowed & ~removed
        table.changed[:, rows] = True

    def __str__(self) -> str:
        return f"{_heads(self)}: {self.count} {self.how} keys of each query"


def _heads(edit: Edit) -> str:
    heads = "all heads" if edit.head is None else f"head {edit.head}"
    return f"{edit.sites[0]} {heads}"
