"""From distances to keys: rows that each begin one place earlier than the row above.

What depends on how far a key lies from a query is the same along every diagonal. Written with a row for each query and
a column for each distance, it is what a row for each query and a column for each key is, shifted; and a matrix whose
rows are one number shorter in memory than it says is shifted already. So nothing is looked up, and no gradient is
scattered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from jarilab.core.shapes import Float
from jarilab.positions.coordinates import Positions

LONG = 512
"""Keys from which on encodings shift instead of looking up."""


def first_distance(q_pos: Positions, k_pos: Positions) -> int | None:
    """How far the first key lies ahead of the first query, where the places of both follow each other, in all rows of a
    batch alike; None where they do not, or lie on several axes."""
    firsts = []
    for pos in (q_pos, k_pos):
        index = pos.coordinates[..., 0]
        bare = pos.unplaced is None and pos.relations is None and len(pos.axes) == 1
        if not bare or index.is_floating_point() or index.ndim > 1 or not len(index):
            return None
        if not bool((index.diff() == 1).all()):
            return None
        firsts.append(int(index[0]))
    return firsts[1] - firsts[0]


def shift_of(q_pos: Positions, k_pos: Positions) -> int | None:
    """`first_distance` where there are so many keys that shifting is worth it."""
    eager = q_pos.coordinates.device.type == "cpu" and not torch.compiler.is_compiling()
    return first_distance(q_pos, k_pos) if eager and k_pos.length >= LONG else None


def skewed(x: Float[Tensor, "N Q R"], keys: int) -> Float[Tensor, "N Q K"]:
    """`y[n, q, k] = x[n, q, k - q + Q - 1]`, for R = K + Q - 1 distances, the farthest behind the last query first."""
    return _Skew.apply(x, keys)


def unskewed(y: Float[Tensor, "N Q K"]) -> Float[Tensor, "N Q R"]:
    """What `skewed` made y of, and 0 elsewhere."""
    return _Unskew.apply(y)


class _Skew(torch.autograd.Function):
    # PyTorch's own gradient of as_strided asks for each number where else it is read.
    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: int) -> Tensor:  # type: ignore[override]
        return shifted(x.clone(memory_format=torch.contiguous_format), keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _unshifted(d_y), None


class _Unskew(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:  # type: ignore[override]
        return _unshifted(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> Tensor:  # type: ignore[override]
        return shifted(d_x.contiguous(), d_x.shape[2] - d_x.shape[1] + 1)


def shifted(x_NQR: Float[Tensor, "N Q R"], keys: int) -> Float[Tensor, "N Q K"]:
    """The same view of a contiguous x without a gradient. Where R is only K + 1, what would lie beyond a row's end is
    what the next row begins with; no two numbers are the same one even then."""
    count, queries, distances = x_NQR.shape
    strides = (queries * distances, distances - 1, 1)
    first = x_NQR.storage_offset() + queries - 1
    return x_NQR.as_strided((count, queries, keys), strides, first)


def _unshifted(y_NQK: Float[Tensor, "N Q K"]) -> Float[Tensor, "N Q R"]:
    count, queries, keys = y_NQK.shape
    x_NQR = y_NQK.new_zeros(count, queries, keys + queries - 1)
    shifted(x_NQR, keys).copy_(y_NQK)
    return x_NQR
