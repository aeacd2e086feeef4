"""One attention that some other library computed, as it was asked for: tensors in, tensor out, and nothing more known.

Queries and keys come as the model compares them, turned already if it turns them; what it adds to the scores comes in a
mask of numbers. That is enough for the map, and for holding it against the output. What was there before a rotation, or
what an added number is made of, is not known, and nobody may say so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch

from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import Encoding, Site
from jarilab.positions.coordinates import Positions


@final
class Unknown(Encoding):
    """However the model encodes position: it is done already, in queries, in keys and in what is added to scores."""


@dataclass(frozen=True, eq=False)
class Heard:
    """An attention that went by, without its graph.

    q, k, v: `(B, H, Q, E)`, `(B, G, K, E)`, `(B, G, K, W)`, where H is a multiple of G: heads may share their keys. E
        is 0 where the model wrote its scores out itself: these are `added` then, all of them.
    added: what is added to scores, or, of booleans, True where a query may look; broadcast to `(B, H, Q, K)`.
    causal: PyTorch's own flag, by which query i sees the keys 0 to i. cross: keys are of another sequence.
    proven: the scores are computed anew from queries and keys; else the model's own were taken as they were.
    backward: whether it looks back alone, where that is known and need not be read from what is hidden.
    """

    q: Float[Tensor, "B H Q E"]
    k: Float[Tensor, "B G K E"]
    v: Float[Tensor, "B G K W"]
    added: Tensor | None
    causal: bool
    scale: float
    dropout: float
    cross: bool
    proven: bool
    versions: tuple[int, ...] = ()
    backward: bool | None = None

    @cached_property
    def materialized(self) -> AttentionCall:
        """As a call whose definition can be asked, with queries and keys where they stand in their sequences."""
        q, heads = self.q, self.q.shape[1]
        k, v = _of_each_head(self.k, heads), _of_each_head(self.v, heads)
        allowed, bias = self.allowed_and_bias()
        has_key = None
        if allowed is not None:
            has_key = allowed.any(-1, keepdim=True)
            allowed = allowed | ~has_key
            has_key = None if bool(has_key.all()) else has_key
        q_pos, k_pos = self._places()
        site = Site(
            heads * q.shape[3], heads, q.shape[3], v.shape[3], self.looks_back(), self.cross
        )
        geometry = Geometry(Unknown(site), q_pos, k_pos, allowed, has_key, bias=bias, additive=None)
        return AttentionCall(q, k, v, geometry, self.scale, self.dropout)

    def row(self, number: int) -> Heard:
        """One row of the batch alone."""

        def of_row(held: Tensor) -> Tensor:
            return held[number : number + 1] if len(held) > 1 else held

        q, k, v = of_row(self.q), of_row(self.k), of_row(self.v)
        added = None if self.added is None else of_row(self.added)
        return replace(self, q=q, k=k, v=v, added=added, versions=versions_of(q, k, v, added))

    def looks_back(self) -> bool:
        """Whether no query sees a later key, and some a key before it."""
        if self.backward is not None:
            return self.backward
        if self.cross or self.q.shape[2] > self.k.shape[2]:
            return False
        allowed, _ = self.allowed_and_bias()
        queries, keys = self.q.shape[2], self.k.shape[2]
        if queries == 1 and keys > 1:
            return True  # a step of what is written token by token
        if allowed is None:
            return False
        q_pos, k_pos = self._places(looks_back=True)
        later_QK = k_pos.order > q_pos.order.unsqueeze(-1)
        # Keys that no query sees are padding, and say nothing.
        # Nor does a row of padding that is hidden throughout, and so sees all alike.
        rows = ~allowed.all(-1, keepdim=True)
        seen_later = later_QK & allowed & rows
        could = later_QK & allowed.any(-2, keepdim=True)
        return bool(could.any()) and not bool(seen_later.any())

    def check_unchanged(self, site: str) -> None:
        """Raises UserError where the model has written over what was recorded."""
        if self.versions != versions_of(self.q, self.k, self.v, self.added):
            raise UserError(
                f"the model has written over the keys or values of {site} since, as a cache of fixed size does, so the "
                "map would be of others; look at the tape before the next step, or use a cache that grows"
            )

    def _places(self, looks_back: bool | None = None) -> tuple[Positions, Positions]:
        """Queries that are fewer than the keys of their own sequence are its last ones."""
        queries, keys, device = self.q.shape[2], self.k.shape[2], self.q.device
        if self.cross or queries > keys:  # fewer keys than tokens are no tokens: they were pooled
            q_pos = Positions.sequence(queries, frame="target", device=device)
            return q_pos, Positions.sequence(keys, frame="source", device=device)
        start = 0 if self.causal else max(0, keys - queries)
        k_pos = Positions.sequence(keys, device=device)
        return (
            k_pos if start == 0 and queries == keys else k_pos.slice(start, start + queries)
        ), k_pos

    def allowed_and_bias(self) -> tuple[Tensor | None, Tensor | None]:
        """`(B or 1, 1, Q or 1, K)` and `(B or 1, H, Q, K)`."""
        allowed, bias = None, None
        added = self.added
        if added is not None and added.dtype is torch.bool:
            allowed = added
        elif added is not None:
            allowed, bias = _hidden_by_numbers(added, self.q.shape[1], self.k.shape[2])
        if self.causal:
            queries, keys = self.q.shape[2], self.k.shape[2]
            before = torch.ones(queries, keys, dtype=torch.bool, device=self.q.device).tril()
            allowed = before[None, None] if allowed is None else allowed & before
        if allowed is not None and allowed.shape[1] > 1:
            # A key that some heads alone may look at is hidden from the others by what is added.
            of_any = allowed.any(1, keepdim=True)
            if not bool((allowed == of_any).all()):
                bias = torch.zeros((), device=allowed.device) if bias is None else bias
                bias = (bias + torch.zeros(allowed.shape, device=allowed.device)).masked_fill(
                    of_any & ~allowed, float("-inf")
                )
            allowed = of_any
        return allowed, bias


FAR = 5e3
"""Below the largest number of a row: hidden, as by the -1e4 and -1e9 of models written by hand."""


def _hidden_by_numbers(
    added: Tensor, heads: int, keys: int
) -> tuple[Bool[Tensor, "..."] | None, Tensor | None]:
    """Numbers that hide, minus infinity or near the least that there is, and what else is added."""
    # So far below the row's largest number the weight is exactly 0, unless scores differ by thousands, which the proof
    # that weights times values are the output would tell.
    least = torch.finfo(added.dtype).min / 4
    shown = (added > least) & (added > added.amax(-1, keepdim=True) - FAR)
    # A row that is hidden throughout, by finite numbers, looks at these keys alike: the sum forgets the scores.
    shown = shown | (~shown.any(-1, keepdim=True) & added.isfinite())
    rest = added.masked_fill(~shown, 0.0)
    allowed = None if bool(shown.all()) else shown
    bias = None
    if bool(rest.any()):
        wide = rest if rest.dtype is torch.float64 else rest.float()
        bias = wide.expand(-1, heads, -1, keys)
    return allowed, bias


def _of_each_head(tensor: Float[Tensor, "B G K E"], heads: int) -> Float[Tensor, "B H K E"]:
    """Keys or values for each head, where several share theirs."""
    groups = tensor.shape[1]
    return tensor if groups == heads else tensor.repeat_interleave(heads // groups, 1)


def versions_of(*tensors: Tensor | None) -> tuple[int, ...]:
    """How often each was written to, where PyTorch counts it: not in inference mode."""
    return tuple(
        -1 if tensor is None or tensor.is_inference() else tensor._version for tensor in tensors
    )
