"""An attention call of another library.

Queries and keys are known as the model compared them, after any rotation. Whatever the model adds to scores is part of
the mask. That is enough to compute the map and to compare it with the output. Values before a rotation, and what a bias
consists of, are not known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch

from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.encodings.base import Encoding, Site
from jarilab.positions.coordinates import Positions


@final
class UnknownEncoding(Encoding):
    """The encoding of a foreign call: already applied to queries, keys and mask."""


@dataclass(frozen=True, eq=False)
class ForeignCall:
    """The detached arguments of an attention call of another library.

    q, k, v: `(B, H, Q, E)`, `(B, G, K, E)`, `(B, G, K, W)`. H is a multiple of G: heads may share keys. E is 0 if the
        model computed its scores itself; `mask` then holds these scores.
    mask: added to the scores, or, if boolean, True where a query may attend; broadcasts to `(B, H, Q, K)`.
    is_causal: PyTorch's flag: query i attends to keys 0 to i. is_cross: keys are of another sequence.
    verified: scores are recomputed from queries and keys; False if the model's own scores are used.
    backward_only: whether queries attend to earlier keys alone; None if the mask decides.
    """

    q: Float[Tensor, "B H Q E"]
    k: Float[Tensor, "B G K E"]
    v: Float[Tensor, "B G K W"]
    mask: Tensor | None
    is_causal: bool
    scale: float
    dropout: float
    is_cross: bool
    verified: bool
    versions: tuple[int, ...] = ()
    backward_only: bool | None = None

    @cached_property
    def as_attention_call(self) -> AttentionCall:
        """The same call in the form of jarilab, with positions for queries and keys."""
        q, heads = self.q, self.q.shape[1]
        k, v = repeat_groups(self.k, heads), repeat_groups(self.v, heads)
        allowed, bias = self.allowed_and_bias()
        has_key = None
        if allowed is not None:
            has_key = allowed.any(-1, keepdim=True)
            allowed = allowed | ~has_key
            if bias is not None:
                # The rows of a head whose bias hides all keys give zeros, as PyTorch's kernels do.
                has_key = has_key & (allowed & ~bias.isneginf()).any(-1, keepdim=True)
                bias = bias.masked_fill(~has_key, 0.0)
            has_key = None if bool(has_key.all()) else has_key
        q_pos, k_pos = self._positions()
        site = Site(
            heads * q.shape[3],
            heads,
            q.shape[3],
            v.shape[3],
            self.looks_back_only(),
            self.is_cross,
        )
        encoding = UnknownEncoding(site)
        geometry = Geometry(encoding, q_pos, k_pos, allowed, has_key, bias=bias, additive=None)
        return AttentionCall(q, k, v, geometry, self.scale, self.dropout)

    def select_rows(self, rows: slice | Int[Tensor, " R"]) -> ForeignCall:
        """The call of some inputs of the batch. Tensors with one row are shared by all inputs."""

        def select(tensor: Tensor) -> Tensor:
            return tensor[rows] if len(tensor) > 1 else tensor

        q, k, v = select(self.q), select(self.k), select(self.v)
        mask = None if self.mask is None else select(self.mask)
        # A fact of the whole batch: the mask of a row without padding does not show it.
        backward_only = self.looks_back_only()
        versions = versions_of(q, k, v, mask)
        return replace(
            self, q=q, k=k, v=v, mask=mask, versions=versions, backward_only=backward_only
        )

    def looks_back_only(self) -> bool:
        """Whether the mask hides all later keys, as a decoder's self-attention does."""
        if self.backward_only is not None:
            return self.backward_only
        queries, keys = self.q.shape[2], self.k.shape[2]
        if self.is_cross or queries > keys:
            return False
        allowed, _ = self.allowed_and_bias()
        if queries == 1 and keys > 1:
            return True  # a step of generation
        if allowed is None:
            return False
        q_pos, k_pos = self._positions()
        later_QK = k_pos.order > q_pos.order.unsqueeze(-1)
        # Rows that see all keys may be padding, hidden throughout. Keys that no query sees are padding.
        rows = ~allowed.all(-1, keepdim=True)
        attended = later_QK & allowed & rows
        attendable = later_QK & allowed.any(-2, keepdim=True)
        return bool(attendable.any()) and not bool(attended.any())

    def check_unchanged(self, site: str) -> None:
        """Raises UserError if the model has written into the recorded tensors since."""
        if self.versions != versions_of(self.q, self.k, self.v, self.mask):
            raise UserError(
                f"the model has written over the keys or values of {site} since they were recorded, as a cache of "
                "fixed size does, so the map would be wrong; read the tape before the next step, or use a growing cache"
            )

    def _positions(self) -> tuple[Positions, Positions]:
        """Positions of queries and keys; queries fewer than their keys are the last of the sequence."""
        queries, keys, device = self.q.shape[2], self.k.shape[2], self.q.device
        if self.is_cross or queries > keys:  # fewer keys than queries: the keys were pooled
            q_pos = Positions.sequence(queries, frame="target", device=device)
            return q_pos, Positions.sequence(keys, frame="source", device=device)
        k_pos = Positions.sequence(keys, device=device)
        if queries == keys:
            return k_pos, k_pos
        start = 0 if self.is_causal else keys - queries
        return k_pos.slice(start, start + queries), k_pos

    def allowed_and_bias(self) -> tuple[Tensor | None, Tensor | None]:
        """The mask as booleans `(B or 1, 1, Q or 1, K)` and as a bias `(B or 1, H, Q, K)`."""
        allowed, bias = None, None
        mask = self.mask
        if mask is not None and mask.dtype is torch.bool:
            allowed = mask
        elif mask is not None:
            allowed, bias = _split_mask(mask, self.q.shape[1], self.k.shape[2])
        if self.is_causal:
            queries, keys = self.q.shape[2], self.k.shape[2]
            causal = torch.ones(queries, keys, dtype=torch.bool, device=self.q.device).tril()
            allowed = causal[None, None] if allowed is None else allowed & causal
        if allowed is not None and allowed.shape[1] > 1:
            # `allowed` has one axis for all heads. The bias hides keys that only some heads may attend to.
            by_any_head = allowed.any(1, keepdim=True)
            if not bool((allowed == by_any_head).all()):
                bias = torch.zeros((), device=allowed.device) if bias is None else bias
                bias = (bias + torch.zeros(allowed.shape, device=allowed.device)).masked_fill(
                    by_any_head & ~allowed, float("-inf")
                )
            allowed = by_any_head
        return allowed, bias


MAX_BIAS_RANGE = 5e3
"""A number this far below the largest of its row hides its key, as the -1e4 and -1e9 of many models do."""


def _split_mask(
    mask: Tensor, heads: int, keys: int
) -> tuple[Bool[Tensor, "..."] | None, Tensor | None]:
    """Split an added mask into the keys that it leaves visible and the bias on these."""
    # Hidden keys have weight 0 unless scores differ by thousands. `Trust.rebuild_error` would show that.
    lowest = torch.finfo(mask.dtype).min / 4
    visible = (mask > lowest) & (mask > mask.amax(-1, keepdim=True) - MAX_BIAS_RANGE)
    # A row hidden by finite numbers attends to all its keys equally: the sum rounds the scores away.
    visible = visible | (~visible.any(-1, keepdim=True) & mask.isfinite())
    rest = mask.masked_fill(~visible, 0.0)
    allowed = None if bool(visible.all()) else visible
    bias = None
    if bool(rest.any()):
        wide = rest if rest.dtype is torch.float64 else rest.float()
        bias = wide.expand(-1, heads, -1, keys)
    return allowed, bias


def repeat_groups(tensor: Float[Tensor, "B G K E"], heads: int) -> Float[Tensor, "B H K E"]:
    """Keys or values for each head, where several heads share theirs."""
    groups = tensor.shape[1]
    return tensor if groups == heads else tensor.repeat_interleave(heads // groups, 1)


def versions_of(*tensors: Tensor | None) -> tuple[int, ...]:
    """PyTorch's counts of in-place writes; -1 in inference mode, which does not count."""
    return tuple(
        -1 if tensor is None or tensor.is_inference() else tensor._version for tensor in tensors
    )
