"""Attention on a CPU, a block of queries at a time: no Q x K tensor of all heads, forward or backward.

A block is some consecutive queries and the keys that any of them sees. Its scores are written into buffers that all
blocks share and that fit into the cache. The backward pass recomputes them. What an encoding adds is computed block by
block as well (`score_terms.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable

from jarilab.attention.cpu.distance_terms import AffineBiasTerm, VectorTerm, accumulation_dtype
from jarilab.attention.cpu.hook_terms import HookTerm
from jarilab.attention.cpu.score_terms import (
    Block,
    BlockScores,
    BlockTerm,
    DistanceBiasTerm,
    HeadGroup,
    ScoreTerm,
    ScratchBuffers,
    TermSum,
)
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float
from jarilab.encodings.base import Encoding
from jarilab.encodings.skew import first_distance
from jarilab.nn.dropout import dropout_mask
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

# Queries of a block. Products in bfloat16 are slow with fewer rows (`benchmarks/long.py`).
MAX_ROWS = {torch.bfloat16: 256}
DEFAULT_MAX_ROWS = 128
# Bytes of the scores of a group of heads.
GROUP_BYTES = 2**20
# Bytes of the scores of all heads, for encodings whose hooks compute them at once. Blocks then have fewer queries.
HOOKS_BYTES = 2**23
MIN_ROWS = 64


def check(encodings: Sequence[Encoding], compares_by_product: bool) -> None:
    """Raises UserError for scores that are no products and encodings that draw random numbers."""
    if not compares_by_product:
        raise UserError(
            "kernel=blocks compares queries and keys by their product alone; use kernel=auto"
        )
    if any(encoding.random_in_training for encoding in encodings):
        raise UserError(
            "kernel=blocks expected an encoding that can be computed again in the backward pass, and this one draws "
            "random numbers; use kernel=auto"
        )


def attend(call: AttentionCall) -> Float[Tensor, "B H Q W"]:
    """The output, in the dtype of the values; exactly 0 for queries without any key.

    Raises UserError on an accelerator.
    """
    dtype, geometry, term = call.v.dtype, call.geometry, score_term_for(call)
    if geometry.q_pos.order.device.type != "cpu":
        raise UserError("kernel=blocks runs on a CPU only; use kernel=auto")
    # Both passes draw the same dropout from this seed, so that no mask is stored.
    seed = int(torch.randint(2**62, ())) if call.dropout else 0
    mask = _BlockMask(geometry.mask, geometry.q_pos, geometry.k_pos)
    attention = _BlockAttention(
        term, mask, call.scale, call.dropout, seed, dtype, call.q.shape, call.k.shape[2]
    )
    return _Blocks.apply(attention, call.q.to(dtype), call.k.to(dtype), call.v, *term.leaves)


def score_term_for(call: AttentionCall) -> ScoreTerm:
    """What the encoding of a call adds, in the cheapest form that the encoding offers."""
    geometry, terms = call.geometry, list[ScoreTerm]()
    encoding = geometry.encoding
    hooks = encoding.hooks & {"bias", "terms", "values"}
    ahead = first_distance(geometry.q_pos, geometry.k_pos) if hooks else None
    if ahead is not None:
        bias = None if geometry.blockwise is None else geometry.blockwise.bias
        max_distance = _max_visible_distance(geometry, ahead)
        if bias is not None:
            terms.append(DistanceBiasTerm(bias, ahead))
            hooks -= {"bias"}
        elif "bias" in hooks and encoding.affine_bias(geometry.q_pos.slice(0, 1), ahead, ahead):
            terms.append(AffineBiasTerm(call, ahead, max_distance))
            hooks -= {"bias"}
        if hooks & {"terms", "values"}:
            last = ahead + call.k.shape[2] - 1
            last = last if max_distance is None else min(last, max_distance + 1)
            vectors = encoding.distance_vectors(ahead - call.q.shape[2] + 1, last)
            if vectors is not None:
                terms.append(VectorTerm(vectors, call, ahead, max_distance))
                hooks -= {"terms", "values"}
    if hooks:
        terms.append(HookTerm(call, hooks))
    return terms[0] if len(terms) == 1 else TermSum(terms)


def _max_visible_distance(geometry: Geometry, ahead: int) -> int | None:
    """The largest distance that a causal mask leaves visible, if the order follows the positions; else None."""
    if geometry.mask is None or not geometry.mask.causal:
        return None
    q_order, k_order = geometry.q_pos.order, geometry.k_pos.order
    if not all(bool((order.diff() == 1).all()) for order in (q_order, k_order)):
        return None
    return ahead - int(k_order[0] - q_order[0])


class _Blocks(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(  # type: ignore[override]
        ctx: Any, attention: _BlockAttention, q: Tensor, k: Tensor, v: Tensor, *leaves: Tensor
    ) -> Tensor:
        ctx.attention = attention
        ctx.save_for_backward(q, k, v, *leaves)
        return attention.output(q, k, v)

    @staticmethod
    @custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        # Reading the saved leaves lets PyTorch notice parameters that were changed in place.
        q_BHQE, k_BHKE, v_BHKW, *_ = ctx.saved_tensors
        return None, *ctx.attention.gradients(q_BHQE, k_BHKE, v_BHKW, d_y)


@dataclass(eq=False)
class _BlockMask:
    """A mask, block by block."""

    mask: Mask | None
    q_pos: Positions
    k_pos: Positions

    def blocks(self, size: int) -> list[Block]:
        """All blocks of up to `size` queries that see any key."""
        blocks = []
        queries, keys = self.q_pos.length, self.k_pos.length
        for first in range(0, queries, size):
            rows = slice(first, min(first + size, queries))
            allowed = self.allowed(rows, slice(0, keys))
            if allowed is None:
                blocks.append(Block(rows, slice(0, keys), slice(0, 0)))
                continue
            # `any` and `all` over another axis than the last take 15 times as long as amax and amin of bytes.
            allowed_RK = allowed.flatten(0, 2).view(torch.uint8)
            any_K, all_K = allowed_RK.amax(0), allowed_RK.amin(0)
            visible = _nonzero_range(any_K)
            if visible.stop:
                blocks.append(Block(rows, visible, _nonzero_range(1 - all_K[visible])))
        return blocks

    def allowed(self, rows: slice, keys: slice) -> Bool[Tensor, "#B 1 #Q K"] | None:
        """True where a query sees a key; None if all see all."""
        return None if self.mask is None else self.mask.part(self.q_pos, self.k_pos, rows, keys)

    def additive(
        self, block: Block, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "#B 1 #Q K"] | None, Float[Tensor, "#B 1 #Q 1"] | None]:
        """What to add to the scores of `block.masked`, and the factor of the output.

        The first is minus infinity where a key is hidden. The second is 0 for queries without any key, whose scores
        stay finite. Either is None if not needed.
        """
        if block.masked.stop == block.masked.start:
            return None, None
        start = block.keys.start
        keys = slice(start + block.masked.start, start + block.masked.stop)
        allowed = self.allowed(block.rows, keys)
        assert allowed is not None
        has_key = None
        # If some keys are seen by all queries, every query has a key.
        if block.masked.stop - block.masked.start == block.size[1]:
            # A row of minus infinity would make the softmax NaN.
            has_key = allowed.any(-1, keepdim=True)
            allowed = allowed | ~has_key
            has_key = None if bool(has_key.all()) else has_key.to(dtype)
        hidden = torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, -math.inf)
        return hidden, has_key


def _nonzero_range(values_K: Tensor) -> slice:
    """From the first nonzero entry to the last."""
    indices = values_K.nonzero()
    return slice(int(indices[0]), int(indices[-1]) + 1) if len(indices) else slice(0, 0)


@dataclass(eq=False)
class _BlockAttention:
    """One attention, forward and backward with the same blocks and the same dropout."""

    term: ScoreTerm
    mask: _BlockMask
    scale: float
    dropout: float
    seed: int
    dtype: torch.dtype
    size: torch.Size
    keys: int

    @cached_property
    def blocks(self) -> list[Block]:
        rows = MAX_ROWS.get(self.dtype, DEFAULT_MAX_ROWS)
        if self.term.uses_hooks:
            batch, heads = self.size[:2]
            row_bytes = batch * heads * self.keys * self.dtype.itemsize
            rows = min(rows, max(MIN_ROWS, HOOKS_BYTES // max(1, row_bytes)))
        return self.mask.blocks(rows)

    def output(self, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "B H Q W"]:
        batch, heads, queries, _ = self.size
        term = self.term
        q_NQE, k_NKE = _flatten_heads(term.shift_queries(q) * self.scale), _flatten_heads(k)
        v_NKW = _flatten_heads(term.shift_values(v))
        # Zeros: `blocks` omits queries without any key.
        y_NQW = v.new_zeros(batch * heads, queries, v.shape[3])
        buffers, generator = ScratchBuffers(self.dtype), self._generator()
        for block in self.blocks:
            block_term = term.block_term(block, q, k, buffers, needs_grad=False)
            hidden, has_key = self.mask.additive(block, self.dtype)
            for group in self._groups(block):
                n = group.indices
                part = BlockScores(group, q_NQE[n, block.rows], k_NKE[n, block.keys])
                weights_NQK = self._weights(block, part, block_term, hidden, buffers)
                weights_NQK, _ = self._dropped(weights_NQK, generator)
                sum_NQW = torch.bmm(weights_NQK, v_NKW[n, block.keys])
                added_NQW = block_term.output(group, weights_NQK)
                if added_NQW is not None:
                    sum_NQW += added_NQW
                if has_key is not None:
                    sum_NQW = (group.split(sum_NQW) * group.select(has_key)).flatten(0, 1)
                y_NQW[n, block.rows] = sum_NQW
        return y_NQW.view(batch, heads, queries, v.shape[3])

    def gradients(self, q: Tensor, k: Tensor, v: Tensor, d_y: Tensor) -> list[Tensor | None]:
        """Gradients of q, k, v and the leaves of the score term."""
        term = self.term
        q_NQE, k_NKE = _flatten_heads(term.shift_queries(q) * self.scale), _flatten_heads(k)
        v_NKW, d_y_NQW = _flatten_heads(term.shift_values(v)), _flatten_heads(d_y)
        d_q, d_k, d_v = (_zeros_like(tensor) for tensor in (q_NQE, k_NKE, v_NKW))
        buffers, generator = ScratchBuffers(self.dtype), self._generator()
        term.begin_backward()
        for block in self.blocks:
            block_term = term.block_term(block, q, k, buffers, needs_grad=True)
            hidden, has_key = self.mask.additive(block, self.dtype)
            for group in self._groups(block):
                n, rows, keys = group.indices, block.rows, block.keys
                part = BlockScores(group, q_NQE[n, rows], k_NKE[n, keys])
                weights_NQK = self._weights(block, part, block_term, hidden, buffers)
                dropped, mask = self._dropped(weights_NQK, generator)
                d_sum = d_y_NQW[n, rows]
                if has_key is not None:
                    d_sum = (group.split(d_sum) * group.select(has_key)).flatten(0, 1)
                d_v[n, keys] += buffers.product("keys", dropped.transpose(1, 2), d_sum)
                d_weights = buffers.product("scores", d_sum, v_NKW[n, keys].transpose(1, 2))
                block_term.output_backward(group, dropped, d_sum, d_weights)
                if mask is not None:
                    d_weights *= mask
                # In place: each row is read as a whole before it is written.
                d_scores = torch.ops.aten._softmax_backward_data.out(
                    d_weights, weights_NQK, -1, self.dtype, grad_input=d_weights
                )
                d_q_NQE = self.scale * torch.bmm(d_scores, part.k)
                block_term.scores_backward(part, d_scores, d_q_NQE, d_k[n, keys])
                d_q[n, rows] += d_q_NQE
                d_k[n, keys] += buffers.product("keys", d_scores.transpose(1, 2), part.q)
            block_term.finish_backward(d_q.view(q.shape), d_k.view(k.shape))
        pairs = ((d_q, q), (d_k, k), (d_v, v))
        gradients = [gradient.view(tensor.shape).to(self.dtype) for gradient, tensor in pairs]
        return [*gradients, *term.gradients(d_v.view(v.shape))]

    def _weights(
        self,
        block: Block,
        part: BlockScores,
        block_term: BlockTerm,
        hidden: Tensor | None,
        buffers: ScratchBuffers,
    ) -> Float[Tensor, "N Q K"]:
        """Attention weights of a group of heads, in a shared buffer."""
        group, k_NEK = part.group, part.k.transpose(1, 2)
        scores_NQK = buffers.product("scores", part.q, k_NEK, block_term.initial_scores(group))
        block_term.add_to_scores(part, scores_NQK)
        if hidden is not None:
            group.split(scores_NQK)[..., block.masked].add_(group.select(hidden))
        return torch.softmax(scores_NQK, -1, out=buffers.buffer("weights", scores_NQK.shape))

    def _groups(self, block: Block) -> Iterator[HeadGroup]:
        """Groups of heads whose scores fit into GROUP_BYTES."""
        batch, heads = self.size[:2]
        rows, keys = block.size
        count = max(1, GROUP_BYTES // (rows * keys * self.dtype.itemsize))
        if self.term.needs_all_weights:
            count = batch * heads
        group_batch, group_heads = max(1, count // heads), min(count, heads)
        # The same order in both passes: the groups draw their dropout from one generator.
        for b in range(0, batch, group_batch):
            for h in range(0, heads, group_heads):
                batch_rows = slice(b, min(b + group_batch, batch))
                yield HeadGroup(batch_rows, slice(h, min(h + group_heads, heads)), heads)

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def _dropped(self, weights_NQK: Tensor, generator: Any) -> tuple[Tensor, Tensor | None]:
        """Weights after dropout, and their factors; the same in forward and backward."""
        if not self.dropout:
            return weights_NQK, None
        mask, scale = dropout_mask(weights_NQK, self.dropout, generator)
        mask *= scale
        return weights_NQK * mask, mask


def _flatten_heads(x_BHLE: Tensor) -> Float[Tensor, "N L E"]:
    """Batch and heads as one axis."""
    return x_BHLE.flatten(0, 1).contiguous()


def _zeros_like(tensor: Tensor) -> Tensor:
    """Zeros to accumulate a gradient in."""
    return torch.zeros(tensor.shape, dtype=accumulation_dtype(tensor.dtype))
