"""An attention call of another library.

Queries and keys are known as the model compared them, after any rotation. Whatever the model adds to scores is part of
the mask. That is enough to compute the map and to compare it with the output. Values before a rotation, and what a bias
consists of, are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, final

import torch

from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Int, Tensor
from jarilab.encodings.base import Encoding, Site
from jarilab.inspect.record.layout import FEATURES
from jarilab.inspect.record.sources import NOTHING, PARAMETER, SLICE, UNKNOWN, Sources
from jarilab.inspect.record.tracing import Trace
from jarilab.positions.coordinates import Positions

CHANNELS = "attends over channels"
"""The note of an attention whose queries and keys are channels."""


@final
class UnknownEncoding(Encoding):
    """The encoding of a foreign call: already applied to queries, keys and mask."""


Relation = Literal["self", "cross", "unknown"]
"""Whether queries and keys are of one sequence or of two."""
Placement = Literal["first", "last", "unknown"]
"""Which tokens of the keys' sequence the queries are, where they are fewer than the keys."""


@dataclass(frozen=True)
class CallFacts:
    """What an attention call reads, from the tensors that its queries and keys were computed from.

    relation: whether queries and keys are of one sequence. placement: as in `Placement`.
    rows, columns: the sources of queries and keys; None if those of the keys are not known.
    note: what is special. folded: the size of an axis that has batch and heads in an unknown order, else 0.
    """

    relation: Relation
    placement: Placement
    rows: Sources = NOTHING
    columns: Sources | None = None
    note: str = ""
    folded: int = 0


def facts_of(q: Trace, k: Trace, q_BHQE: Tensor, k_BHKE: Tensor, folded: int) -> CallFacts:
    """The facts of a call. q, k: the traces of queries and keys."""
    rows, columns, queries, keys = q.sources, k.sources, q_BHQE.shape[2], k_BHKE.shape[2]
    relation = _relation_of(_without_slices(rows), _without_slices(columns))
    slices, k_slices = (each - _without_slices(each) for each in (rows, columns))
    if relation == "self" and not (slices <= k_slices or k_slices <= slices):
        relation = "cross"  # of two parts of one tensor
    attentions, k_attentions = q.history.attentions, k.history.attentions
    is_one_stream = attentions <= k_attentions or k_attentions <= attentions
    if relation == "self" and rows == columns and not is_one_stream:
        relation = "cross"  # of an encoder and a decoder that read the same tokens
    is_self = relation == "self"
    longer = _without_slices(columns) - rows
    placement: Placement = "unknown"
    if is_self and queries < keys:
        if rows in k.history.first and rows not in k.history.last:
            # Other keys follow, as with `add_bias_kv`. Where a cache precedes as well, the place is not known.
            placement = "unknown" if k.grown else "first"
        elif k.grown or longer:
            placement = "last"
    factors, note = q.layout.factors(), ""
    if len(factors) > 1 and any(label == FEATURES for _, label in factors[-2]):
        note = CHANNELS
    elif is_self and queries > keys:
        note = "pooled keys"
    elif q.is_learned and (relation == "cross" or (is_self and columns == rows)):
        note = "learned queries"
    elif is_self and q.joint:
        note = "joint streams"
    return CallFacts(relation, placement, rows, columns, note, folded)


def _without_slices(sources: Sources) -> Sources:
    return frozenset(name for name in sources if not name.startswith(SLICE))


def _relation_of(rows: Sources, columns: Sources) -> Relation:
    """Whether queries and keys of these sources are of one sequence."""
    if not columns:
        return "unknown"
    if rows == columns:
        return "self"
    if rows < columns:
        # Keys may be longer by a cache or a prefix. Learned queries are another sequence, as in a resampler.
        return "cross" if all(name.startswith(PARAMETER) for name in rows) else "self"
    if any(name.startswith(UNKNOWN) for name in rows ^ columns):
        return "unknown"
    if columns < rows and all(name.startswith(PARAMETER) for name in rows - columns):
        return "self"
    return "cross"


@final
class DeferredWeights:
    """Weights `(B, H, Q, K)` that `compute` returns, computed from `tensors` when they are first read.

    Reading them raises UserError if the tensors have changed.
    """

    def __init__(self, compute: Callable[[], Tensor], tensors: Sequence[Tensor]):
        self._compute: Callable[[], Tensor] | None = compute
        self._tensors, self._versions = tuple(tensors), versions_of(*tensors)

    @cached_property
    def value(self) -> Float[Tensor, "B H Q K"]:
        assert self._compute is not None
        if self._versions != versions_of(*self._tensors):
            raise UserError(
                "the model has written over weights of an attention in chunks since they were recorded, so its map "
                "would be wrong; read tape.weights before the next step"
            )
        with torch._C.DisableTorchFunction():  # active modes do not see it
            value = self._compute()
        self._compute, self._tensors = None, ()
        return value


@dataclass(frozen=True, eq=False)
class ForeignCall:
    """The detached arguments of an attention call of another library.

    q, k, v: `(B, H, Q, E)`, `(B, G, K, E)`, `(B, G, K, W)`. H is a multiple of G: heads may share keys. E is 0 if the
        model computed its scores itself; `mask` then holds these scores.
    mask: added to the scores, or, if boolean, True where a query may attend; broadcasts to `(B, H, Q, K)`.
    is_causal: PyTorch's flag: query i attends to keys 0 to i. facts: what queries and keys are.
    verified: scores are recomputed from queries and keys; False if the model's own scores are used.
    explicit_weights: `(B, H, Q, K)`, the model's own weights where they are no plain softmax of its scores.
    backward_only: whether queries attend to earlier keys alone; None if the mask decides.
    """

    q: Float[Tensor, "B H Q E"]
    k: Float[Tensor, "B G K E"]
    v: Float[Tensor, "B G K W"]
    mask: Tensor | None
    is_causal: bool
    scale: float
    dropout: float
    facts: CallFacts
    verified: bool
    versions: tuple[int, ...] = ()
    backward_only: bool | None = None
    explicit_weights: Tensor | DeferredWeights | None = None

    @property
    def weights(self) -> Float[Tensor, "B H Q K"] | None:
        """The model's own weights, computed now if they were deferred."""
        weights = self.explicit_weights
        return weights.value if isinstance(weights, DeferredWeights) else weights

    @property
    def is_cross(self) -> bool:
        """Whether keys are of another sequence than queries."""
        return self.facts.relation == "cross"

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
            heads * q.shape[3], heads, q.shape[3], v.shape[3], self.looks_back_only(), self.is_cross
        )
        encoding = UnknownEncoding(site)
        geometry = Geometry(encoding, q_pos, k_pos, allowed, has_key, bias=bias, additive=None)
        return AttentionCall(
            q, k, v, geometry, self.scale, self.dropout, explicit_weights=self.weights
        )

    def select_rows(self, rows: slice | Int[Tensor, " R"]) -> ForeignCall:
        """The call of some inputs of the batch. Tensors with one row are shared by all inputs."""

        def select(tensor: Tensor) -> Tensor:
            return tensor[rows] if len(tensor) > 1 else tensor

        q, k, v = select(self.q), select(self.k), select(self.v)
        mask = None if self.mask is None else select(self.mask)
        weights = None if self.weights is None else select(self.weights)
        return replace(
            self,
            q=q,
            k=k,
            v=v,
            mask=mask,
            explicit_weights=weights,
            versions=versions_of(q, k, v, mask, weights),
            # A fact of the whole batch: the mask of a row without padding does not show it.
            backward_only=self.looks_back_only(),
        )

    def looks_back_only(self) -> bool:
        """Whether the mask hides all later keys, as a decoder's self-attention does."""
        if self.backward_only is not None:
            return self.backward_only
        if self.facts.relation != "self" or self.q.shape[2] > self.k.shape[2]:
            return False
        return self._hides_later_keys

    @cached_property
    def _hides_later_keys(self) -> bool:
        """Whether the mask hides later keys, if the queries are the last tokens or those of `facts`."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        if queries == 1 and keys > 1:
            return self.facts.placement == "last"  # a step of generation
        allowed, _ = self.allowed_and_bias()
        if allowed is None:
            return False
        start = self._start(assumed="last")
        order = torch.arange(keys, device=allowed.device)
        later_QK = order > order[start : start + queries].unsqueeze(-1)
        if self.facts.placement == "first":
            later_QK = later_QK & (order < queries)  # keys that were appended are no tokens
        # Rows that see all keys may be padding, hidden throughout, and rows that see none as well. Keys that no query
        # sees are padding.
        rows = ~allowed.all(-1, keepdim=True) & allowed.any(-1, keepdim=True)
        attended = later_QK & allowed & rows
        # Of a block of queries, whose place among the keys is only assumed, padding says nothing.
        is_block = queries != keys and self.facts.placement == "unknown"
        attending = allowed & rows if is_block else allowed
        attendable = later_QK & attending.any(-2, keepdim=True)
        hides_any = bool(rows.any())  # a mask may hide nothing
        return hides_any and bool(attendable.any()) and not bool(attended.any())

    @property
    def of_first_head(self) -> ForeignCall:
        """The call with the mask or the weights of its first head alone, which is quicker to look through."""
        parts = (self.mask, self.weights)
        mask, weights = (part if part is None or part.ndim < 4 else part[:, :1] for part in parts)
        return replace(self, mask=mask, explicit_weights=weights)

    @property
    def placed(self) -> bool:
        """Whether it is known which tokens the queries are: the positions of queries among the keys."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        if self.facts.relation == "unknown" or self.facts.note == CHANNELS:
            return False
        if self.facts.relation == "cross" or queries == keys:
            return True
        if queries > keys:
            return False  # the keys were pooled
        return self.is_causal or self.facts.placement != "unknown" or self._hides_later_keys

    def _start(self, assumed: Placement = "unknown") -> int:
        """The index of the first query among the keys."""
        placement = self.facts.placement if self.facts.placement != "unknown" else assumed
        if self.is_causal or placement == "first":
            return 0
        return self.k.shape[2] - self.q.shape[2] if placement == "last" else 0

    def check_unchanged(self, site: str) -> None:
        """Raises UserError if the model has written into the recorded tensors since."""
        weights = self.explicit_weights
        weights = None if isinstance(weights, DeferredWeights) else weights
        if self.versions != versions_of(self.q, self.k, self.v, self.mask, weights):
            raise UserError(
                f"the model has written over the keys or values of {site} since they were recorded, as a cache of "
                "fixed size does, so the map would be wrong; read the tape before the next step, or use a growing cache"
            )

    def _positions(self) -> tuple[Positions, Positions]:
        """Positions of queries and keys. Where `placed` is false, those of the queries are only counted."""
        queries, keys, device = self.q.shape[2], self.k.shape[2], self.q.device
        if self.facts.relation != "self" or queries > keys:
            q_pos = Positions.sequence(queries, frame="target", device=device)
            return q_pos, Positions.sequence(keys, frame="source", device=device)
        k_pos = Positions.sequence(keys, device=device)
        if queries == keys:
            return k_pos, k_pos
        start = self._start(assumed="last" if self._hides_later_keys else "unknown")
        return k_pos.slice(start, start + queries), k_pos

    def allowed_and_bias(self) -> tuple[Tensor | None, Tensor | None]:
        """The mask as booleans `(B or 1, 1, Q or 1, K)` and as a bias `(B or 1, H, Q, K)`."""
        allowed, bias = None, None
        mask, weights = self.mask, self.weights
        if weights is not None:
            sizes = weights.abs()
            visible = sizes > 0
            allowed = None if bool(visible.all()) else visible
            bias = sizes.log().masked_fill(~visible, 0.0)
        elif mask is not None and mask.dtype is torch.bool:
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
                hidden = by_any_head & ~allowed
                bias = torch.where(hidden, -torch.inf, 0.0 if bias is None else bias)
            allowed = by_any_head
        return allowed, bias


MAX_BIAS_RANGE = 5e3
"""A number this far below the largest of its row may hide its key, as the -1e4 and -1e9 of many models do."""


def _split_mask(
    mask: Tensor, heads: int, keys: int
) -> tuple[Bool[Tensor, "..."] | None, Tensor | None]:
    """Split an added mask into the keys that it leaves visible and the bias on these."""
    if not mask.numel():
        return None, None
    # Hidden keys have weight 0 unless scores differ by thousands. `Trust.rebuild_error` would show that.
    lowest = torch.finfo(mask.dtype).min / 4
    visible = (mask > lowest) & (mask > mask.amax(-1, keepdim=True) - MAX_BIAS_RANGE)
    low = (mask > lowest) & ~visible
    if bool(low.any()) and not _is_apart(mask, visible, low):
        visible = visible | low
    # A row hidden by finite numbers attends to all its keys equally: the sum rounds the scores away.
    visible = visible | (~visible.any(-1, keepdim=True) & mask.isfinite())
    rest = mask.masked_fill(~visible, 0.0)
    allowed = None if bool(visible.all()) else visible
    bias = None
    if bool(rest.any()):
        wide = rest if rest.dtype is torch.float64 else rest.float()
        bias = wide.expand(-1, heads, -1, keys)
    return allowed, bias


def _is_apart(mask: Tensor, visible: Bool[Tensor, "..."], low: Bool[Tensor, "..."]) -> bool:
    """Whether low numbers are a group of their own, as of a mask and not of scores that differ by thousands."""
    inf = float("inf")
    smallest, highest_low = (
        mask.masked_fill(~visible, inf).amin(-1),
        mask.masked_fill(~low, -inf).amax(-1),
    )
    gap = (smallest - highest_low).amin()
    spread = (mask.amax(-1) - smallest).amax()
    # Two masks that hide the same key add up to twice the gap.
    spread_low = (highest_low - mask.masked_fill(~low, inf).amin(-1)).amax()
    return bool((gap > spread) & (1.5 * gap > spread_low))


def repeat_groups(tensor: Float[Tensor, "B G K E"], heads: int) -> Float[Tensor, "B H K E"]:
    """Keys or values for each head, where several heads share theirs."""
    groups = tensor.shape[1]
    return tensor if groups == heads else tensor.repeat_interleave(heads // groups, 1)


def versions_of(*tensors: Tensor | None) -> tuple[int, ...]:
    """PyTorch's counts of in-place writes; -1 in inference mode, which does not count."""
    return tuple(
        -1 if tensor is None or tensor.is_inference() else tensor._version for tensor in tensors
    )
