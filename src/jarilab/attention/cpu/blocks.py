"""Attention on a CPU, some queries at a time: nothing of Q x K is ever held for all heads, forward or backward.

A block is some queries that follow each other and the keys that any of them may look at. Its scores are written into
memory that all blocks share, small enough to stay near the processor. The backward pass works them out again: one
product more than keeping them, and yet faster from some hundred keys on, since memory is slower than products. What an
encoding adds is asked for block by block too (`added.py`).
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

from jarilab.attention.added_by import added_by
from jarilab.attention.cpu.added import Added, Block, Group, Met, Opened
from jarilab.attention.definition import AttentionCall
from jarilab.attention.room import Room
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float
from jarilab.encodings.base import Encoding
from jarilab.nn.dropout import dropout_mask
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

ROWS = {torch.bfloat16: 256}
"""Queries of a block: products in bfloat16 are slow with fewer. `benchmarks/long.py` measures it."""
ROWS_ELSE = 128
GROUP_BYTES = 2**20
"""Of the scores that are worked out at once, of as many heads as there is room for."""

HOOKS_BYTES = 2**23
"""Of the scores of all heads, where an encoding's hooks make something for them: blocks have fewer queries then."""
LEAST_ROWS = 64


def check(encodings: Sequence[Encoding], compares_by_product: bool) -> None:
    """Raises UserError for what cannot be worked out block by block, or not again."""
    if not compares_by_product:
        raise UserError(
            "kernel=blocks compares queries and keys by their product alone; use kernel=auto"
        )
    if any(encoding.random_in_training for encoding in encodings):
        raise UserError(
            "kernel=blocks asks an encoding again in the backward pass, and this one draws random numbers, others each "
            "time; use kernel=auto"
        )


def attend(call: AttentionCall) -> Float[Tensor, "B H Q W"]:
    """The output, in the dtype of the values; exactly 0 for queries without any key."""
    dtype, geometry, added = call.v.dtype, call.geometry, added_by(call)
    if geometry.q_pos.order.device.type != "cpu":
        raise UserError("kernel=blocks is for a CPU; use kernel=auto")
    seed = int(torch.randint(2**62, ())) if call.dropout else 0
    hidden = _Hidden(geometry.mask, geometry.q_pos, geometry.k_pos)
    work = _Work(
        added, hidden, call.scale, call.dropout, seed, dtype, call.q.shape, call.k.shape[2]
    )
    return _Blocks.apply(work, call.q.to(dtype), call.k.to(dtype), call.v, *added.leaves)


class _Blocks(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx: Any, work: _Work, q: Tensor, k: Tensor, v: Tensor, *leaves: Tensor) -> Tensor:  # type: ignore[override]
        ctx.work = work
        ctx.save_for_backward(q, k, v, *leaves)
        return work.output(q, k, v)

    @staticmethod
    @custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        # Reading them is also how PyTorch notices that someone has changed a parameter since.
        q_BHQE, k_BHKE, v_BHKW, *_ = ctx.saved_tensors
        return None, *ctx.work.gradients(q_BHQE, k_BHKE, v_BHKW, d_y)


@dataclass(eq=False)
class _Hidden:
    """Which keys a mask hides, block by block."""

    mask: Mask | None
    q_pos: Positions
    k_pos: Positions

    def blocks(self, size: int) -> list[Block]:
        """All that have any key."""
        found = []
        queries, keys = self.q_pos.length, self.k_pos.length
        for first in range(0, queries, size):
            rows = slice(first, min(first + size, queries))
            allowed = self.allowed(rows, slice(0, keys))
            if allowed is None:
                found.append(Block(rows, slice(0, keys), slice(0, 0)))
                continue
            # As numbers: over another axis than the last, `any` and `all` take fifteen times as long as these.
            number_RK = allowed.flatten(0, 2).view(torch.uint8)
            by_any_K, by_all_K = number_RK.amax(0), number_RK.amin(0)
            seen = _range(by_any_K)
            if seen.stop:
                part = _range(1 - by_all_K[seen])
                found.append(Block(rows, seen, part))
        return found

    def allowed(self, rows: slice, keys: slice) -> Bool[Tensor, "#B 1 #Q K"] | None:
        """True where a query may look at a key; None where all may."""
        return None if self.mask is None else self.mask.part(self.q_pos, self.k_pos, rows, keys)

    def of(
        self, block: Block, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "#B 1 #Q K"] | None, Float[Tensor, "#B 1 #Q 1"] | None]:
        """What is added to the scores of `block.part`, minus infinity where hidden; and 0 for queries without any key,
        whose row is opened, where there are such."""
        if block.part.stop == block.part.start:
            return None, None
        start = block.keys.start
        keys = slice(start + block.part.start, start + block.part.stop)
        allowed = self.allowed(block.rows, keys)
        assert allowed is not None
        has_key = None
        if block.part.stop - block.part.start == block.size[1]:  # else there are keys that all see
            has_key = allowed.any(-1, keepdim=True)
            allowed = allowed | ~has_key
            has_key = None if bool(has_key.all()) else has_key.to(dtype)
        hidden = torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, -math.inf)
        return hidden, has_key


def _range(number_K: Tensor) -> slice:
    """From the first that is not 0 to the last."""
    at = number_K.nonzero()
    return slice(int(at[0]), int(at[-1]) + 1) if len(at) else slice(0, 0)


@dataclass(eq=False)
class _Work:
    """One attention, forward and, with the same blocks and the same drops, backward."""

    added: Added
    hidden: _Hidden
    scale: float
    dropout: float
    seed: int
    dtype: torch.dtype
    size: torch.Size
    keys: int

    @cached_property
    def blocks(self) -> list[Block]:
        most = ROWS.get(self.dtype, ROWS_ELSE)
        if self.added.by_hooks:
            batch, heads = self.size[:2]
            row = batch * heads * self.keys * self.dtype.itemsize
            room = HOOKS_BYTES // max(1, row)
            most = min(most, max(LEAST_ROWS, room))
        return self.hidden.blocks(most)

    def output(self, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "B H Q W"]:
        batch, heads, queries, _ = self.size
        added = self.added
        q_NQE, k_NKE = _flat(added.to_queries(q) * self.scale), _flat(k)
        v_NKW = _flat(added.to_values(v))
        y_NQW = v.new_zeros(batch * heads, queries, v.shape[3])
        room, draws = Room(self.dtype), self._draws()
        for block in self.blocks:
            opened = added.open(block, q, k, room, graph=False)
            hidden, has_key = self.hidden.of(block, self.dtype)
            for group in self._groups(block):
                n = group.numbers
                met = Met(group, q_NQE[n, block.rows], k_NKE[n, block.keys])
                weights_NQK = self._weights(block, met, opened, hidden, room)
                weights_NQK, _ = self._dropped(weights_NQK, draws)
                sum_NQW = torch.bmm(weights_NQK, v_NKW[n, block.keys])
                more = opened.output(group, weights_NQK)
                if more is not None:
                    sum_NQW += more
                if has_key is not None:
                    sum_NQW = (group.split(sum_NQW) * group.of(has_key)).flatten(0, 1)
                y_NQW[n, block.rows] = sum_NQW
        return y_NQW.view(batch, heads, queries, v.shape[3])

    def gradients(self, q: Tensor, k: Tensor, v: Tensor, d_y: Tensor) -> list[Tensor | None]:
        """Of q, k, v and what the encoding adds is made of."""
        added = self.added
        q_NQE, k_NKE = _flat(added.to_queries(q) * self.scale), _flat(k)
        v_NKW, d_y_NQW = _flat(added.to_values(v)), _flat(d_y)
        d_q, d_k, d_v = (_zeros(like) for like in (q_NQE, k_NKE, v_NKW))
        room, draws = Room(self.dtype), self._draws()
        added.begin()
        for block in self.blocks:
            opened = added.open(block, q, k, room, graph=True)
            hidden, has_key = self.hidden.of(block, self.dtype)
            for group in self._groups(block):
                n, rows, keys = group.numbers, block.rows, block.keys
                met = Met(group, q_NQE[n, rows], k_NKE[n, keys])
                weights_NQK = self._weights(block, met, opened, hidden, room)
                dropped, mask = self._dropped(weights_NQK, draws)
                d_sum = d_y_NQW[n, rows]
                if has_key is not None:
                    d_sum = (group.split(d_sum) * group.of(has_key)).flatten(0, 1)
                d_v[n, keys] += room.product("of keys", dropped.transpose(1, 2), d_sum)
                d_weights = room.product("scores", d_sum, v_NKW[n, keys].transpose(1, 2))
                opened.take_output(group, dropped, d_sum, d_weights)
                if mask is not None:
                    d_weights *= mask
                # In place, which the formula allows: each row is read as a whole before it is written.
                d_scores = torch.ops.aten._softmax_backward_data.out(
                    d_weights, weights_NQK, -1, self.dtype, grad_input=d_weights
                )
                d_q_NQE = self.scale * torch.bmm(d_scores, met.k)
                opened.take(met, d_scores, d_q_NQE, d_k[n, keys])
                d_q[n, rows] += d_q_NQE
                d_k[n, keys] += room.product("of keys", d_scores.transpose(1, 2), met.q)
            opened.close(d_q.view(q.shape), d_k.view(k.shape))
        found = [d.view(like.shape).to(self.dtype) for d, like in ((d_q, q), (d_k, k), (d_v, v))]
        return [*found, *added.gradients(d_v.view(v.shape))]

    def _weights(
        self, block: Block, met: Met, opened: Opened, hidden: Tensor | None, room: Room
    ) -> Float[Tensor, "N Q K"]:
        k_NEK = met.k.transpose(1, 2)
        scores_NQK = room.product("scores", met.q, k_NEK, opened.scores(met.group))
        opened.add(met, scores_NQK)
        if hidden is not None:
            met.group.split(scores_NQK)[..., block.part].add_(met.group.of(hidden))
        return torch.softmax(scores_NQK, -1, out=room.of("weights", scores_NQK.shape))

    def _groups(self, block: Block) -> Iterator[Group]:
        """All heads of all rows of the batch, as many at once as there is room for."""
        batch, heads = self.size[:2]
        rows, keys = block.size
        count = max(1, GROUP_BYTES // (rows * keys * self.dtype.itemsize))
        if self.added.whole:
            count = batch * heads
        of_batch, of_heads = max(1, count // heads), min(count, heads)
        for b in range(0, batch, of_batch):
            for h in range(0, heads, of_heads):
                some = slice(b, min(b + of_batch, batch)), slice(h, min(h + of_heads, heads))
                yield Group(*some, heads)

    def _draws(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def _dropped(self, weights_NQK: Tensor, draws: Any) -> tuple[Tensor, Tensor | None]:
        """The weights after dropout, and what they were multiplied by: the same in the backward pass as before."""
        if not self.dropout:
            return weights_NQK, None
        mask, scale = dropout_mask(weights_NQK, self.dropout, draws)
        mask *= scale
        return weights_NQK * mask, mask


def _flat(x_BHLE: Tensor) -> Float[Tensor, "N L E"]:
    """One number for batch and head."""
    return x_BHLE.flatten(0, 1).contiguous()


def _zeros(like: Tensor) -> Tensor:
    """For a sum of many parts, which bfloat16 would lose."""
    return torch.zeros(like.shape, dtype=torch.promote_types(like.dtype, torch.float32))
