"""Edits of attention: their base class, the scores that they change, and the sites where edits can be made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.inspect.record.calls import allowed_links
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.record.edited_output import refuse_gradient

QueryKey = tuple[int, int]
"""The indices of a query and of a key; -1 for none."""
QueryKeys = Int[Tensor, "N 2"]
NO_TARGET: QueryKey = (-1, -1)


class Edit(ABC):
    """A change of what queries attend to; by default, of all queries and keys alike.

    sites: the attentions that it changes. head: the head that it changes at each of them; None for all.
    `alternatives`, `candidates`, `target`, `moved_to` and `hides` are for `controls`, which draws edits of the same
    kind at random other places.
    """

    sites: Any  # a tuple of names, a field or a property
    head: Any  # an index, or None

    @abstractmethod
    def apply(self, table: ScoreTable) -> None:
        """Change the scores of one of its sites. Raises UserError for an absent or hidden target."""

    def check_met(self, site: str, queries: Collection[int], keys: Collection[int]) -> None:
        """Raises UserError if the edit matches no query or key at `site`.

        queries, keys: the indices with which the site ran.
        """
        return  # what concerns all alike always matches

    def alternatives(self, sites: EditableSites) -> list[Edit]:
        """The same edit at each site and head where it can be made."""
        return [self]

    def candidates(self, sites: EditableSites) -> QueryKeys:
        """The targets that it can have at its own site and head."""
        return torch.tensor([NO_TARGET])

    @property
    def target(self) -> QueryKey:
        """The query and key that it concerns; `NO_TARGET` if it concerns all alike."""
        return NO_TARGET

    def moved_to(self, target: QueryKey) -> Edit:
        """The same edit with another target."""
        return self

    def hides(self, target: QueryKey) -> bool:
        """Whether it hides this key from this query."""
        return False


class AtHead(Edit):
    """A base of edits at one site."""

    site: str

    @property
    def sites(self) -> tuple[str, ...]:
        return (self.site,)

    def alternatives(self, sites: EditableSites) -> list[Edit]:
        kind = sites[self.site].kind
        alternatives = []
        for name, editable in sites.items():
            if editable.kind != kind:
                continue
            for head in [None] if self.head is None else range(editable.n_heads):
                alternatives.append(replace(self, site=name, head=head))  # type: ignore[type-var]
        return alternatives


def overlap(first: Edit, second: Edit) -> bool:
    """Whether both change the same head of the same attention."""
    heads = {first.head, second.head}
    return not set(first.sites).isdisjoint(second.sites) and (None in heads or len(heads) == 1)


def not_there(site: str, side: str, indices: Collection[int], got: int) -> UserError:
    """The error for an index that does not exist. side: `queries` or `keys`."""
    return UserError(f"{site} has the {side} {min(indices)} to {max(indices)}, got {got}")


# Scores -------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ScoreTable:
    """The scores of one call and the keys that each query may attend to, which edits change in place.

    scores, allowed: `(B, H, Q, K)`. changed: `(B, H, Q)`, True for rows that an edit changed. queries, keys: their
    indices in the order of tokens. row_sums: of weights that do not add up to 1, as with a sink; else None.
    """

    site: str
    scores: Float[Tensor, "B H Q K"]
    allowed: Bool[Tensor, "B H Q K"]
    changed: Bool[Tensor, "B H Q"]
    queries: Int[Tensor, " Q"]
    keys: Int[Tensor, " K"]
    causal: bool
    row_sums: Float[Tensor, "B H Q 1"] | None = None

    @staticmethod
    def of(site: str, call: AttentionCall) -> ScoreTable:
        """The table of a call. Raises UserError for weights below 0, which no scores give."""
        geometry, explicit = call.geometry, call.explicit_weights
        if explicit is not None and bool((explicit < 0).any()):
            raise UserError(
                f"{site} has weights below 0, so it cannot be edited by its scores; edit another site"
            )
        scores = definition.scores(call)
        # A mask by head is part of the scores.
        allowed = allowed_links(call) & ~scores.isneginf()
        if geometry.has_key is not None:
            allowed = allowed & geometry.has_key
        return ScoreTable(
            site=site,
            scores=scores,
            allowed=allowed,
            changed=allowed.new_zeros(allowed.shape[:-1]),
            queries=geometry.q_pos.order,
            keys=geometry.k_pos.order,
            causal=geometry.encoding.site.causal,
            row_sums=None if explicit is None else explicit.sum(-1, keepdim=True),
        )

    def copies(self, count: int) -> list[ScoreTable]:
        """The batch in `count` parts; these are views, so that their changes are made here too."""
        parts = zip(
            self.scores.chunk(count),
            self.allowed.chunk(count),
            self.changed.chunk(count),
            [None] * count if self.row_sums is None else self.row_sums.chunk(count),
            strict=True,
        )
        return [
            replace(self, scores=scores, allowed=allowed, changed=changed, row_sums=row_sums)
            for scores, allowed, changed, row_sums in parts
        ]

    def head(self, head: int | None) -> slice:
        """The rows of a head, or of all heads for None. Raises UserError for an unknown head."""
        heads = self.scores.shape[1]
        if head is None:
            return slice(None)
        if not isinstance(head, int) or not 0 <= head < heads:
            raise UserError(f"{self.site} has the heads 0 to {heads - 1}, got {head!r}")
        return slice(head, head + 1)

    def weights(self) -> Float[Tensor, "B H Q K"]:
        """The softmax over allowed keys; 0 throughout for a query without keys."""
        empty_BHQ1 = ~self._has_key()
        hidden = ~self.allowed & ~empty_BHQ1
        weights = self.scores.masked_fill(hidden, float("-inf")).softmax(-1)
        weights = weights if self.row_sums is None else weights * self.row_sums
        return weights.masked_fill(empty_BHQ1, 0.0)

    def output(self, call: AttentionCall, before: Float[Tensor, "B H Q W"]) -> Tensor:
        """The output: computed from the weights in changed rows, `before` in all others."""
        if not bool(self.changed.any()):
            return before
        after = refuse_gradient(definition.weighted(call, self.weights()), before)
        after = after.masked_fill(~self._has_key(), 0.0).to(before.dtype)
        return torch.where(self.changed.unsqueeze(-1), after, before)

    def _has_key(self) -> Bool[Tensor, "B H Q 1"]:
        return self.allowed.any(-1, keepdim=True)


# Sites --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EditableSite:
    """A site where edits can be made.

    kind: encoder, decoder or cross. links: the queries and keys of all allowed links. key_counts: for each link, how
    many keys its query may attend to.
    """

    kind: str
    n_heads: int
    links: QueryKeys
    key_counts: Int[Tensor, " N"]

    @cached_property
    def links_with_choice(self) -> QueryKeys:
        """Links whose query may attend to another key as well."""
        return self.links[self.key_counts > 1]


EditableSites = dict[str, EditableSite]


def editable_sites(model: nn.Module, run: Callable[[], Any]) -> EditableSites:
    """All sites of a forward, by name. run: calls the model on a batch of one."""
    with torch.no_grad(), record(model) as tape:
        run()
    return {site: _editable_site(tape, site) for site in tape.sites}


def _editable_site(tape: Tape, site: str) -> EditableSite:
    links, key_counts = [], []
    calls = [recorded.call for recorded in tape.calls[site]]
    for call in calls:
        allowed_QK = allowed_links(call).all(0).squeeze(0).cpu()
        query_N, key_N = allowed_QK.nonzero().unbind(1)
        q_order = call.geometry.q_pos.order.cpu()
        k_order = call.geometry.k_pos.order.cpu()
        links.append(torch.stack((q_order[query_N], k_order[key_N]), 1))
        key_counts.append(allowed_QK.sum(1)[query_N])
    return EditableSite(
        kind=tape.site(site).kind,
        n_heads=calls[0].q.shape[1],
        links=torch.cat(links),
        key_counts=torch.cat(key_counts),
    )
