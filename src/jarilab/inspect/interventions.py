"""Change a forward and measure what that does; the model itself stays as it is.

    with operate(model, [HeadOff("encoder.0", 1), Link("decoder.0.cross", None, query=2, key=4, how="erase")]):
        model(*inputs)

An edit says what a query may look at, or how it compares what it looks at. The weights then follow by the definition in
`attention/call.py`, and the output from the weights. What no edit touches keeps the kernel's own output, bit by bit.
Queries and keys are numbered by `Positions.order`, from 0 in each sequence, as the causal mask counts them: an edit
means the same in a whole forward and in the step of a cached or recurrent decoder that reads its query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import nn

from jarilab.attention import call as definition
from jarilab.attention.call import AttentionCall
from jarilab.attention.module import Attend
from jarilab.errors import UserError, unknown
from jarilab.inspect.capture import site_name
from jarilab.patches import Images
from jarilab.positions import Positions, Tokens
from jarilab.shapes import Bool, Float, Int, Tensor

FARTHEST = 2**40  # places stay whole numbers when they are moved by this


# Edits ---------------------------------------------------------------------------------------------------------------


class Table:
    """Scores of one call, and which keys each query may look at, while edits change them.

    scores, allowed: `(B, H, Q, K)`. changed: `(H, Q)`, True where an edit did something. queries, keys: their order.
    """

    def __init__(self, site: str, call: AttentionCall):
        geometry = call.geometry
        self.site, self.call = site, call
        self.scores = definition.scores(call)
        allowed = allowed_links(call)
        self.allowed = allowed.expand_as(self.scores).clone()
        self.changed = torch.zeros(self.scores.shape[1:3], dtype=torch.bool, device=allowed.device)
        self.queries, self.keys = geometry.q_pos.order, geometry.k_pos.order

    def head(self, head: int | None) -> slice:
        """Its row of the tables, all of them for None. Raises UserError where there is no such head."""
        heads = self.scores.shape[1]
        if head is not None and not 0 <= head < heads:
            raise UserError(f"{self.site} has the heads 0 to {heads - 1}, got {head}")
        return slice(None) if head is None else slice(head, head + 1)

    def weights(self) -> Float[Tensor, "B H Q K"]:
        """As the definition has it: rows sum to 1, hidden keys have 0, a row without any key is 0 throughout."""
        alive_BHQ1 = self.allowed.any(-1, keepdim=True)
        scores = self.scores.masked_fill(~(self.allowed | ~alive_BHQ1), float("-inf"))
        return scores.softmax(-1).masked_fill(~alive_BHQ1, 0.0)

    def output(self, before: Float[Tensor, "B H Q W"]) -> Float[Tensor, "B H Q W"]:
        """The attention's output: from these weights where something has changed, `before` elsewhere."""
        if not bool(self.changed.any()):
            return before
        after = definition.weighted(self.call, self.weights()).masked_fill(
            ~self.allowed.any(-1, keepdim=True), 0.0
        )
        return torch.where(self.changed.unsqueeze(-1), after.to(before.dtype), before)


@final
@dataclass(frozen=True)
class HeadOff:
    """Its share of the output is zero before W_O; of a recurrent decoder, which has one head, the context is zero."""

    site: str
    head: int

    def apply(self, table: Table) -> None:
        rows = table.head(self.head)
        table.allowed[:, rows], table.changed[rows] = False, True

    def __str__(self) -> str:
        return f"{self.site} head {self.head}"


@final
@dataclass(frozen=True)
class Uniform:
    """Equal weights over the keys that each query may look at; head None is all heads."""

    site: str
    head: int | None = None

    def apply(self, table: Table) -> None:
        rows = table.head(self.head)
        scores = table.scores.clone()
        scores[:, rows] = 0.0
        table.scores, table.changed[rows] = scores, True

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

    def apply(self, table: Table) -> None:
        rows, query_Q = table.head(self.head), table.queries == self.query
        if not bool(query_Q.any()):
            return
        key_K = table.keys == self.key
        if not bool(
            (table.allowed[:, rows] | ~query_Q.unsqueeze(1) | ~key_K).all() and key_K.any()
        ):
            raise self._hidden(table)
        link_QK = query_Q.unsqueeze(1) & (key_K if self.how == "erase" else ~key_K)
        table.allowed[:, rows] &= ~link_QK
        table.changed[rows] |= query_Q

    def _hidden(self, table: Table) -> UserError:
        first, last = (int(end) for end in table.keys.aminmax())
        if not first <= self.key <= last and not table.call.geometry.encoding.site.causal:
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

    def apply(self, table: Table) -> None:
        rows = table.head(self.head)
        allowed, rank = table.allowed[:, rows], table.scores[:, rows]
        if self.how == "random":
            # Every step of a decoder draws for itself.
            generator = torch.Generator().manual_seed(self.seed + 1_000_003 * int(table.queries[0]))
            rank = torch.rand(rank.shape, generator=generator).to(rank.device)
        rank = rank.masked_fill(~allowed, float("-inf"))
        first = rank.topk(min(self.count, rank.shape[-1])).indices
        table.allowed[:, rows] = allowed & ~torch.zeros_like(allowed).scatter(-1, first, True)
        table.changed[rows] = True

    def __str__(self) -> str:
        return f"{_heads(self)}: {self.count} {self.how} keys of each query"


Edit = HeadOff | Uniform | Link | Cut


def _heads(edit: Edit) -> str:
    return f"{edit.site} all heads" if edit.head is None else f"{edit.site} head {edit.head}"


def allowed_links(call: AttentionCall) -> Bool[Tensor, "#B 1 Q K"]:
    """Who may look at whom, a query without any key at none."""
    geometry, size = call.geometry, (call.q.shape[2], call.k.shape[2])
    if geometry.allowed is None:
        return torch.ones(1, 1, *size, dtype=torch.bool, device=call.q.device)
    allowed = geometry.allowed if geometry.has_key is None else geometry.allowed & geometry.has_key
    return allowed.expand(-1, -1, *size)


def edited_weights(
    site: str, call: AttentionCall, edits: Sequence[Edit]
) -> Float[Tensor, "B H Q K"]:
    """The weights of a recorded call with the edits of its site: a tape knows only those the model meant to use."""
    table = Table(site, call)
    for edit in edits:
        if edit.site == site:
            edit.apply(table)
    return table.weights()


@contextmanager
def operate(model: nn.Module, edits: Sequence[Edit], *, free: bool = False) -> Iterator[None]:
    """Every forward of `model` inside the block runs with the edits, in their order; afterwards it is as before.

    free: an answer is written freely, and may end before it comes to a link's query. All hypotheses of a beam are
    edited alike.

    Raises UserError for a model in training; an unknown site, head, query or key; a link that the mask hides; and, at
    the end of the block, where an attention that is edited did not run.
    """
    model = getattr(model, "_orig_mod", model)
    check_evaluating(model)
    attends = attends_of(model)
    for edit in edits:
        if edit.site not in attends:
            raise unknown("site", edit.site, attends)
    seen: dict[str, set[int]] = {}
    handles = [
        attends[site].register_forward_hook(
            _operation(site, [edit for edit in edits if edit.site == site], seen)
        )
        for site in {edit.site: None for edit in edits}
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for edit in edits:
        _check_seen(edit, seen.get(edit.site), free)


def _operation(site: str, edits: list[Edit], seen: dict[str, set[int]]) -> Any:
    def hook(module: Attend, arguments: tuple[AttentionCall], output: Tensor) -> Tensor:
        table = Table(site, arguments[0])
        seen.setdefault(site, set()).update(table.queries.tolist())
        for edit in edits:
            edit.apply(table)
        return table.output(output)

    return hook


def _check_seen(edit: Edit, queries: set[int] | None, free: bool) -> None:
    if queries is None:
        raise UserError(
            f"nothing was edited at {edit.site}: it did not run inside the block. A compiled model runs past the "
            "hooks; call its original (compiled._orig_mod), which shares its parameters"
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


def attends_of(model: nn.Module) -> dict[str, Attend]:
    """Its attentions, by site."""
    return {
        site_name(path): module
        for path, module in model.named_modules()
        if isinstance(module, Attend)
    }


# Places --------------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Places:
    """Where tokens are said to be. The causal mask goes by their order, which stays.

    how: `off`, all at place 0; `shift`, all moved by `amount`; `stretch`, all `amount` times as far from 0;
    `shuffle`, places dealt out anew among the tokens that are no padding, by `seed`.
    """

    how: Literal["off", "shift", "stretch", "shuffle"]
    amount: int | float = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.how not in ("off", "shift", "stretch", "shuffle"):
            raise unknown("way to move places", self.how, ("off", "shift", "stretch", "shuffle"))
        if not abs(self.amount) <= FARTHEST:
            raise UserError(f"places are moved by {FARTHEST} at most, got {self.amount}")

    def of(self, positions: Positions) -> Tensor:
        """Each coordinate moved, whatever the others are: int64 stays int64 if the amount is whole, else becomes
        float64. What says that a token has no place in a part of the sequence stays. Raises UserError for a place that
        would be read as none."""
        moved, absent = self._of(positions.coordinates), positions.absent
        if absent is None:
            return moved
        if bool(((moved <= -1) & ~absent).any()):
            raise UserError(
                f"-1 and less is no place in a sequence of the parts {', '.join(positions.parts)}, and {self.how} by "
                f"{self.amount} would move places there; choose an amount that keeps them at 0 or above"
            )
        return torch.where(absent, positions.coordinates.to(moved.dtype), moved)

    def _of(self, coordinates: Tensor) -> Tensor:
        if self.how == "off":
            return torch.zeros_like(coordinates)
        whole = float(self.amount).is_integer()
        if not whole and not coordinates.is_floating_point():
            coordinates = coordinates.double()
        amount = int(self.amount) if whole else self.amount
        return coordinates * amount if self.how == "stretch" else coordinates + amount


def moved(tokens: Tokens, places: Places) -> Tokens:
    """The same tokens at other places. What an encoding cannot do with those it says in the next forward."""
    keep = torch.ones_like(tokens.ids[:1], dtype=torch.bool) if tokens.keep is None else tokens.keep
    return replace(tokens, positions=moved_positions(tokens.positions, places, keep))


def moved_positions(
    positions: Positions, places: Places, keep_RL: Bool[Tensor, "R L"]
) -> Positions:
    """Other places for the same tokens. keep: False on padding, which is not shuffled. In a sequence of several parts
    each is shuffled by itself: a word has no place in the image."""
    if places.how != "shuffle":
        if positions.relations is not None:
            raise UserError(
                f"the nodes of a graph have names, not places: cannot {places.how} them; use shuffle"
            )
        return replace(positions, coordinates=places.of(positions))
    columns, absent = [], positions.absent
    for axis, column in enumerate(positions.coordinates.split(1, -1)):
        there_RL = (
            keep_RL
            if absent is None
            else keep_RL & ~absent[..., axis].reshape(-1, positions.length)
        )
        # The same for all axes of a part, which have the same tokens.
        index_RL = permutations(there_RL, places.seed)
        if len(index_RL) == 1:
            columns.append(column[..., index_RL[0], :])
        else:
            columns.append(column.expand(len(index_RL), -1, -1).gather(1, index_RL.unsqueeze(-1)))
    return replace(positions, coordinates=torch.cat(columns, -1))


@contextmanager
def displaced(model: Any, places: Places) -> Iterator[None]:
    """Every forward of a model of images inside the block has their patches at other places; tokens that have none
    stay without. Raises UserError for a model that does not place its inputs itself."""
    own = getattr(model, "places", None)
    if own is None:
        raise UserError(
            "this model takes places with its tokens; move them there, with moved(tokens, places)"
        )

    def elsewhere(images: Images) -> Positions:
        positions = own(images)
        return moved_positions(positions, places, placed(positions))

    model.places = elsewhere
    try:
        yield
    finally:
        del model.places


def placed(positions: Positions) -> Bool[Tensor, "R L"]:
    """Which tokens have a place."""
    if positions.unplaced is None:
        return torch.ones(
            1, positions.length, dtype=torch.bool, device=positions.coordinates.device
        )
    return ~positions.unplaced.reshape(-1, positions.length)


def permutations(keep_RL: Bool[Tensor, "R L"], seed: int) -> Int[Tensor, "R L"]:
    """For each row, whose place or token comes to each place; those not kept stay, and no row of two or more others
    stays as it is."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for keep_L in keep_RL.cpu():
        index_L, real = torch.arange(len(keep_L)), keep_L.nonzero().squeeze(1)
        drawn = torch.randperm(len(real), generator=generator)
        index_L[real] = real[drawn.roll(1) if torch.equal(drawn, drawn.sort().values) else drawn]
        rows.append(index_L)
    return torch.stack(rows).to(keep_RL.device)


@final
class Displaced:
    """A model that writes with its own tokens at other places, for the searches in `jarilab.decoding`.

    The source is the caller's to move. With `shuffle`, the first `length` places are dealt out as `moved` deals out
    those of an answer of this length; a longer answer goes on in order.
    """

    def __init__(self, model: Any, places: Places, length: int):
        self._model, self._places = model, places
        real = torch.ones(1, max(1, length), dtype=torch.bool)
        self._deal = permutations(real, places.seed)[0] if places.how == "shuffle" else None

    def start(self, source: Tokens | None) -> Any:
        return self._model.start(source)

    def step(
        self, state: Any, ids: Int[Tensor, "R L"], positions: Positions, cache: Any
    ) -> Float[Tensor, "R L V"]:
        return self._model.step(state, ids, self._placed(positions), cache)

    def new_cache(self) -> Any:
        return self._model.new_cache()

    def _placed(self, positions: Positions) -> Positions:
        coordinates = positions.coordinates
        if self._deal is None:
            return replace(positions, coordinates=self._places.of(positions))
        deal, order_L1 = self._deal.to(coordinates.device), positions.order.unsqueeze(1)
        dealt = deal[order_L1.clamp_max(len(deal) - 1)]
        return replace(positions, coordinates=torch.where(order_L1 < len(deal), dealt, coordinates))
