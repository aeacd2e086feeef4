"""Change a forward; the model itself stays as it is.

    with operate(model, [HeadOff("encoder.0", 1), Link("decoder.0.cross", None, query=2, key=4, how="erase")]):
        model(*inputs)

An edit says what a query may look at, or how it compares what it looks at. The weights then follow by the definition in
`attention/call.py`, and the output from the weights. What no edit touches keeps the kernel's own output, bit by bit.
Queries and keys are numbered by `Positions.order`, from 0 in each sequence, as the causal mask counts them: an edit
means the same in a whole forward and in the step of a cached or recurrent decoder that reads its query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import nn

from jarilab.attention.call import AttentionCall
from jarilab.errors import UserError, unknown
from jarilab.inspect.listening import Change, changing
from jarilab.inspect.score_table import ScoreTable
from jarilab.inspect.sites import attentions_of
from jarilab.shapes import Float, Tensor

# Edits ---------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class HeadOff:
    """Its share of the output is zero before W_O; of a recurrent decoder, which has one head, the context is zero."""

    site: str
    head: int

    def apply(self, table: ScoreTable) -> None:
        rows = table.head(self.head)
        table.allowed[:, rows] = False
        table.changed[:, rows] = True

    def __str__(self) -> str:
        return f"{self.site} head {self.head}"


@final
@dataclass(frozen=True)
class Uniform:
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
class Link:
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
        ends = table.keys.aminmax()
        first, last = int(ends.min), int(ends.max)
        if not first <= self.key <= last and not table.causal:
            return UserError(f"{self.site} has the keys {first} to {last}, got {self.key}")
        return UserError(
            f"cannot {self.how} the link from query {self.query} to key {self.key} at {self.site}: the mask, or "
            "another edit, forbids this query to look there; choose a key that it may look at"
        )

    def __str__(self) -> str:
        return f"{_heads(self)}: {self.how} {self.query} -> {self.key}"


@final
@dataclass(frozen=True)
class Cut:
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


Edit = HeadOff | Uniform | Link | Cut


def _heads(edit: Edit) -> str:
    heads = "all heads" if edit.head is None else f"head {edit.head}"
    return f"{edit.site} {heads}"


# A forward with edits ------------------------------------------------------------------------------------------------


def edited_weights(
    site: str, call: AttentionCall, edits: Sequence[Edit]
) -> Float[Tensor, "B H Q K"]:
    """The weights of a recorded call with the edits of its site: a tape knows only those the model meant to use."""
    table = ScoreTable.of(site, call)
    for edit in edits:
        if edit.site == site:
            edit.apply(table)
    return table.weights()


def operate(
    model: nn.Module, edits: Sequence[Edit], *, free: bool = False
) -> AbstractContextManager[None]:
    """Every forward of `model` inside the block runs with the edits, in their order; afterwards it is as before.

    free: an answer is written freely, and may end before it comes to a link's query. All hypotheses of a beam are
    edited alike.

    Raises UserError for a model in training; an unknown site, head, query or key; a link that the mask hides; and, at
    the end of the block, where an attention that is edited did not run.
    """
    return operate_on_copies(model, [edits], free=free)


@contextmanager
def operate_on_copies(
    model: nn.Module, edits: Sequence[Sequence[Edit]], *, free: bool = False
) -> Iterator[None]:
    """`operate` on a batch of copies of one batch, one below the other, each with edits of its own."""
    model = getattr(model, "_orig_mod", model)
    check_evaluating(model)
    placed = attentions_of(model)
    all_edits = [edit for of_copy in edits for edit in of_copy]
    for edit in all_edits:
        # Those of a model of another library are known when they have run.
        if placed and edit.site not in placed:
            raise unknown("site", edit.site, placed)
    queries_of: dict[str, set[int]] = {}
    with changing(model, _operation(edits, queries_of), {edit.site for edit in all_edits}):
        yield
    for edit in all_edits:
        _check_ran(edit, queries_of.get(edit.site), free)


def _operation(edits: Sequence[Sequence[Edit]], queries_of: dict[str, set[int]]) -> Change:
    """queries_of: which queries each site was asked for, filled while it runs."""

    def change(site: str, call: AttentionCall, output: Tensor) -> Tensor:
        table = ScoreTable.of(site, call)
        queries_of.setdefault(site, set()).update(table.queries.tolist())
        copies = table.copies(len(edits))
        for copy, of_copy in zip(copies, edits, strict=True):
            for edit in of_copy:
                if edit.site == site:
                    edit.apply(copy)
        return table.output(call, output)

    return change


def _check_ran(edit: Edit, queries: set[int] | None, free: bool) -> None:
    if queries is None:
        raise UserError(
            f"nothing was edited at {edit.site}: it did not run inside the block. A compiled model runs past the "
            "hooks (call its original, compiled._orig_mod, which shares its parameters); the sites of a model are "
            "those that jarilab.record finds"
        )
    if isinstance(edit, Link) and not free and edit.query not in queries:
        raise UserError(
            f"{edit.site} has the queries {min(queries)} to {max(queries)}, got {edit.query}"
        )


def check_evaluating(model: nn.Module) -> None:
    """Raises UserError for a model in training."""
    if model.training:
        raise UserError(
            "a model in training drops weights at random; call model.eval() before looking at edits"
        )
