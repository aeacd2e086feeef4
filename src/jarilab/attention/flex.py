"""Attention by PyTorch's FlexAttention, which computes biases and masks inside the kernel.

For GPUs, where a materialized bias excludes PyTorch's flash kernel. No Q x K tensor is written, and hidden blocks are
skipped. Here biases and masks become functions of the indices of a query and a key; other kernels do the rest.
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
from jarilab.core.shapes import Bool, Float, Int
from jarilab.encodings.base import Encoding
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

BLOCK_SIZE = 128
MIN_WIDTH = 16
"""Of the queries, keys and values of a head, which PyTorch's kernel on a GPU requires."""

UNSUPPORTED_HOOKS = frozenset({"terms", "values"})


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """A bias by distance: `bias(h, q, k) = values[h, k_at[k] - q_at[q] - first]`.

    values: `(H, R)`, by distance from `first` on. slopes: `(H,)` if the bias is `-slopes[h] |k_at[k] - q_at[q]|`: a
    product takes the kernel a third of the time of a lookup. q_at, k_at: positions, `(B or 1, Q)` and `(B or 1, K)`.
    """

    values: Float[Tensor, "H R"]
    q_at: Int[Tensor, "#B Q"]
    k_at: Int[Tensor, "#B K"]
    first: int
    slopes: Float[Tensor, " H"] | None = None

    def score_mod(self, score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The score of one pair plus its bias, as FlexAttention's `score_mod`. b, h, q, k: indices."""
        q_at = self.q_at[_row(self.q_at, b), q]
        k_at = self.k_at[_row(self.k_at, b), k]
        if self.slopes is not None:
            return score - self.slopes[h] * (k_at - q_at).abs()
        return score + self.values[h, k_at - q_at - self.first]


@dataclass(frozen=True, eq=False)
class Blockwise:
    """Bias and mask without `(B, H, Q, K)` tensors; None for none. On a CPU `blocks` is None."""

    bias: DistanceBias | None
    blocks: BlockMask | None

    def detached(self) -> Blockwise:
        """The same without gradients."""
        bias = self.bias
        return (
            self if bias is None else replace(self, bias=replace(bias, values=bias.values.detach()))
        )


def _row(rows: Tensor, b: Tensor) -> Tensor:
    """Index of row b of the batch in `rows`, whose first axis may be 1."""
    return b if rows.shape[0] > 1 else torch.zeros_like(b)


def check(encodings: Sequence[Encoding], compares_by_product: bool, dropout: float) -> None:
    """Raises UserError for scores, dropout and encodings that FlexAttention does not support."""
    if not compares_by_product:
        raise UserError(
            "kernel=flex compares queries and keys by their product alone; use kernel=auto"
        )
    if dropout:
        raise UserError(
            f"kernel=flex has no dropout, got dropout={dropout:g}; use kernel=auto, or dropout=0"
        )
    if not all(_is_supported(encoding) for encoding in encodings):
        raise UserError(
            "kernel=flex expected an encoding whose bias depends on the distance alone, and this one depends on the "
            "content, on the weights or on both positions; use kernel=auto"
        )


def supports(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> bool:
    """Whether an encoding adds nothing, or a bias by distance alone, between these positions."""
    unbiased = "bias" not in encoding.hooks
    return _is_supported(encoding) and (unbiased or has_distance_bias(encoding, q_pos, k_pos))


def has_distance_bias(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> bool:
    """Whether an encoding has a bias that depends on the distance alone between these positions."""
    by_distance = "bias" in encoding.hooks and _is_by_distance(encoding)
    return by_distance and _are_integers_on_one_axis(q_pos) and _are_integers_on_one_axis(k_pos)


def _is_supported(encoding: Encoding) -> bool:
    if encoding.hooks & UNSUPPORTED_HOOKS:
        return False
    return "bias" not in encoding.hooks or _is_by_distance(encoding)


def _is_by_distance(encoding: Encoding) -> bool:
    varies = encoding.random_in_training or encoding.depends_on_length
    return encoding.shift_invariant and not varies and 1 in encoding.axes


def _are_integers_on_one_axis(pos: Positions) -> bool:
    """Whether all tokens have an integer position on one axis."""
    all_placed = pos.unplaced is None and pos.relations is None
    return all_placed and len(pos.axes) == 1 and not pos.coordinates.is_floating_point()


def blockwise_of(
    encoding: Encoding, q_pos: Positions, k_pos: Positions, mask: Mask | None
) -> Blockwise | None:
    """Bias and mask for FlexAttention; None if it does not support them."""
    if not supports(encoding, q_pos, k_pos):
        return None
    return Blockwise(distance_bias_of(encoding, q_pos, k_pos), mask_of(mask, q_pos, k_pos))


def mask_of(mask: Mask | None, q_pos: Positions, k_pos: Positions) -> BlockMask | None:
    """Which blocks of 128 queries and keys are visible, fully or partly; None if nothing is hidden."""
    rule = None if mask is None else mask.rule(q_pos, k_pos)
    if mask is None or rule is None:
        return None

    def allows(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return rule(row, query, key)

    blocks = mask.of_blocks(q_pos, k_pos, BLOCK_SIZE)
    if blocks is None:
        lengths = q_pos.length, k_pos.length
        return create_block_mask(allows, mask.rows, None, *lengths, q_pos.order.device)
    some, every = (
        seen.unsqueeze(1) for seen in blocks
    )  # an axis for the heads, which share a mask
    # The rest of a shorter last block is hidden.
    whole_Q, whole_K = (
        torch.arange(1, count + 1, device=some.device) * BLOCK_SIZE <= pos.length
        for count, pos in zip(some.shape[-2:], (q_pos, k_pos), strict=True)
    )
    every = every & whole_Q.unsqueeze(-1) & whole_K
    return BlockMask.from_kv_blocks(
        *_numbered(some & ~every),
        *_numbered(some & every),
        BLOCK_SIZE=BLOCK_SIZE,
        mask_mod=allows,
        seq_lengths=(q_pos.length, k_pos.length),
    )


def _numbered(blocks: Bool[Tensor, "B 1 Q K"]) -> tuple[Tensor, Tensor]:
    """How many blocks of keys are True for each block of queries, and their indices, those first."""
    first_B1QK = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), first_B1QK.int()


def has_fewer_distances_than_pairs(q_pos: Positions, k_pos: Positions) -> bool:
    """Whether `distance_bias_of` takes no more memory than a bias of all pairs.

    Synchronizes the device if the bounds are not known.
    """
    first, last = _distance_bounds(q_pos, k_pos)
    return last - first < q_pos.length * k_pos.length


def _distance_bounds(q_pos: Positions, k_pos: Positions) -> tuple[int, int]:
    """The least and the greatest distance that may occur."""
    (q_least, q_most), (k_least, k_most) = q_pos.bounds(), k_pos.bounds()
    return k_least - q_most, k_most - q_least


def distance_bias_of(encoding: Encoding, q_pos: Positions, k_pos: Positions) -> DistanceBias | None:
    """The bias at each distance that may occur; None if the encoding has no bias."""
    if "bias" not in encoding.hooks:
        return None
    first, last = _distance_bounds(q_pos, k_pos)
    device = q_pos.coordinates.device
    # One query at position 0, and a key at each distance.
    query = replace(Positions.sequence(1, device=device), frame=q_pos.frame)
    keys = Positions.sequence(last - first + 1, first, frame=k_pos.frame, device=device)
    bias_H1R = encoding.bias(query, keys)
    assert bias_H1R is not None
    values_HR = bias_H1R.reshape(-1, keys.length)
    q_at, k_at = torch.atleast_2d(q_pos.index()), torch.atleast_2d(k_pos.index())
    return DistanceBias(values_HR, q_at, k_at, first, encoding.bias_slopes(device))


def attend(
    q: Float[Tensor, "B H Q E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K W"],
    blockwise: Blockwise,
    scale: float,
) -> Float[Tensor, "B H Q W"]:
    """The output; exactly 0 for queries without any key. Raises UserError if PyTorch has no such kernel."""
    if q.device.type == "cuda" and min(q.shape[-1], v.shape[-1]) < MIN_WIDTH:
        raise UserError(
            f"kernel=flex expected heads of width {MIN_WIDTH} or more on a GPU, got {q.shape[-1]} for keys and "
            f"{v.shape[-1]} for values; use fewer heads, or kernel=auto"
        )
    score_mod = None if blockwise.bias is None else blockwise.bias.score_mod
    try:
        kernel = flex_attention if torch.compiler.is_compiling() else _kernel(q.device.type)
        return kernel(q, k, v, score_mod=score_mod, block_mask=blockwise.blocks, scale=scale)
    except NotImplementedError as error:
        raise UserError(f"kernel=flex: {error}; use kernel=auto") from None


@cache
def _kernel(device: str) -> Callable[..., Any]:
    """FlexAttention, compiled except on a CPU, where PyTorch computes it explicitly."""
    # Cached, so that all attentions of a process share the compiled kernels.
    return flex_attention if device == "cpu" else torch.compile(flex_attention)
