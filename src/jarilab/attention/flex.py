"""Attention by PyTorch's FlexAttention, block by block: what an encoding adds and a mask hides is worked out inside the
kernel, so that nothing writes Q x K numbers out, and blocks that a mask hides are not computed.

It is for GPUs, where an added bias takes PyTorch's other kernel off its fast path. What it can do is lowered here to
functions of the numbers of a query and a key; the rest stays with the other kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int
from jarilab.encodings.base import Encoding
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

UNABLE = frozenset({"terms", "values"})
"""Hooks that FlexAttention has no place for."""


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """What is added to the scores, by distance alone: `bias(h, q, k) = values[h, k_at[k] - q_at[q] - first]`.

    values: `(H, R)` in the order of distance, from `first` on. q_at, k_at: the places, `(B or 1, Q)` and `(B or 1, K)`.
    """

    values: Float[Tensor, "H R"]
    q_at: Int[Tensor, "#B Q"]
    k_at: Int[Tensor, "#B K"]
    first: int

    def added(self, score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """FlexAttention's `score_mod`."""
        q_at = self.q_at[_row(self.q_at, b), q]
        k_at = self.k_at[_row(self.k_at, b), k]
        return score + self.values[h, k_at - q_at - self.first]


@dataclass(frozen=True, eq=False)
class Blockwise:
    """What stands between queries and keys in place of tensors `(B, H, Q, K)`; None for nothing. On a CPU the kernel
    makes its own blocks of a mask."""

    bias: DistanceBias | None
    blocks: BlockMask | None

    def detached(self) -> Blockwise:
        """Without a graph."""
        bias = self.bias
        return (
            self if bias is None else replace(self, bias=replace(bias, values=bias.values.detach()))
        )


def _row(of_rows: Tensor, b: Tensor) -> Tensor:
    """The row that a batch's row b reads: its own, or the one that all share."""
    return b if of_rows.shape[0] > 1 else torch.zeros_like(b)


def check(encodings: Sequence[Encoding], compares_by_product: bool, dropout: float) -> None:
    """Raises UserError for what FlexAttention cannot do."""
    if not compares_by_product:
        raise UserError(
            "kernel=flex compares queries and keys by their product alone; use kernel=auto"
        )
    if dropout:
        raise UserError(
            f"kernel=flex drops no weights, got dropout {dropout:g}; use kernel=auto, or dropout 0"
        )
    if not all(_able(encoding) for encoding in encodings):
        raise UserError(
            "kernel=flex adds to a score what depends on the distance alone, and this encoding adds what depends on "
            "the content, on the weights or on both places; use kernel=auto"
        )


def supports(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> bool:
    """Whether what an encoding adds between these places is a function of the distance alone, or nothing."""
    bare = "bias" not in encoding.hooks
    return _able(encoding) and (bare or has_distance_bias(encoding, q_pos, k_pos))


def has_distance_bias(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> bool:
    """Whether it has a bias, which between these places depends on the distance alone."""
    by_distance = "bias" in encoding.hooks and _by_distance(encoding)
    return by_distance and _is_line(q_pos) and _is_line(k_pos)


def _able(encoding: Encoding) -> bool:
    if encoding.hooks & UNABLE:
        return False
    return "bias" not in encoding.hooks or _by_distance(encoding)


def _by_distance(encoding: Encoding) -> bool:
    varies = encoding.random_in_training or encoding.depends_on_length
    return encoding.shift_invariant and not varies and 1 in encoding.axes


def _is_line(pos: Positions) -> bool:
    """Whole places on one axis, each token with its own."""
    bare = pos.unplaced is None and pos.relations is None
    return bare and len(pos.axes) == 1 and not pos.coordinates.is_floating_point()


def blockwise_of(
    encoding: Encoding, q_pos: Positions, k_pos: Positions, mask: Mask | None
) -> Blockwise | None:
    """What takes the place of bias and mask; None where the kernel cannot do it."""
    if not supports(encoding, q_pos, k_pos):
        return None
    return Blockwise(distance_bias_of(encoding, q_pos, k_pos), mask_of(mask, q_pos, k_pos))


def mask_of(mask: Mask | None, q_pos: Positions, k_pos: Positions) -> BlockMask | None:
    """Which blocks of 128 queries and keys are looked at, wholly or in part; None where nothing is hidden."""
    allows = None if mask is None else mask.rule(q_pos, k_pos)
    if mask is None or allows is None:
        return None
    device = q_pos.order.device
    return create_block_mask(
        lambda row, head, query, key: allows(row, query, key),
        mask.rows,
        None,
        q_pos.length,
        k_pos.length,
        device,
    )


def distance_bias_of(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> DistanceBias | None:
    """What the encoding adds at each distance there can be; None where it adds nothing by place alone."""
    if "bias" not in encoding.hooks:
        return None
    (q_least, q_most), (k_least, k_most) = q_pos.bounds(), k_pos.bounds()
    first, last = k_least - q_most, k_most - q_least
    device = q_pos.coordinates.device
    # One query at 0 sees all distances, as keys.
    at_0 = replace(Positions.sequence(1, device=device), frame=q_pos.frame)
    away = Positions.sequence(last - first + 1, first, frame=k_pos.frame, device=device)
    bias_H1R = encoding.bias(at_0, away)
    assert bias_H1R is not None
    values_HR = bias_H1R.reshape(-1, away.length)
    return DistanceBias(
        values_HR, torch.atleast_2d(q_pos.index()), torch.atleast_2d(k_pos.index()), first
    )


def attend(
    q: Float[Tensor, "B H Q E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K W"],
    blockwise: Blockwise,
    scale: float,
) -> Float[Tensor, "B H Q W"]:
    """The output; exactly 0 for queries without any key. Raises UserError where PyTorch has no such kernel."""
    added = None if blockwise.bias is None else blockwise.bias.added
    try:
        return _kernel(q.device.type)(
            q, k, v, score_mod=added, block_mask=blockwise.blocks, scale=scale
        )
    except NotImplementedError as error:
        raise UserError(f"kernel=flex: {error}; use kernel=auto") from None


@cache
def _kernel(device: str) -> Callable[..., Any]:
    """Compiled where it is meant to be fast; elsewhere PyTorch's own explicit form of it."""
    return flex_attention if device == "cpu" else torch.compile(flex_attention)
