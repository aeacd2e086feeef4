"""Conversion between columns of distances and columns of keys.

A matrix with a column for each distance becomes one with a column for each key by moving each row one column to the
left of the row above. `as_strided` does this without an index or a scattered gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from jarilab.core.shapes import Float
from jarilab.positions.coordinates import Positions

MIN_SKEWED_KEYS = 512
"""Number of keys from which on encodings skew instead of gathering."""


def first_distance(q_pos: Positions, k_pos: Positions) -> int | None:
    """The distance from the first query to the first key, if the positions of both are consecutive.

    None if they are not, differ between rows of a batch, or have several axes.
    """
    firsts = []
    for pos in (q_pos, k_pos):
        index = pos.coordinates[..., 0]
        is_sequence = pos.unplaced is None and pos.relations is None and len(pos.axes) == 1
        if not is_sequence or index.is_floating_point() or index.ndim > 1 or not len(index):
            return None
        if not bool((index.diff() == 1).all()):
            return None
        firsts.append(int(index[0]))
    return firsts[1] - firsts[0]


def skew_offset(q_pos: Positions, k_pos: Positions) -> int | None:
    """`first_distance` if skewing is faster than gathering: on a CPU, with enough keys; else None."""
    is_eager = q_pos.coordinates.device.type == "cpu" and not torch.compiler.is_compiling()
    return first_distance(q_pos, k_pos) if is_eager and k_pos.length >= MIN_SKEWED_KEYS else None


def skew(x: Float[Tensor, "N Q R"], keys: int) -> Float[Tensor, "N Q K"]:
    """`y[n, q, k] = x[n, q, k - q + Q - 1]`, for R = K + Q - 1 distances.

    The first distance is that from the last query to the first key.
    """
    return _Skew.apply(x, keys)


def unskew(y: Float[Tensor, "N Q K"]) -> Float[Tensor, "N Q R"]:
    """The x with `skew(x) = y`, and 0 elsewhere."""
    return _Unskew.apply(y)


class _Skew(torch.autograd.Function):
    # PyTorch's own gradient of as_strided checks each number for overlaps.
    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: int) -> Tensor:  # type: ignore[override]
        return skewed_view(x.clone(memory_format=torch.contiguous_format), keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _unskew(d_y), None


class _Unskew(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:  # type: ignore[override]
        return _unskew(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> Tensor:  # type: ignore[override]
        return skewed_view(d_x.contiguous(), d_x.shape[2] - d_x.shape[1] + 1)


def skewed_view(x_NQR: Float[Tensor, "N Q R"], keys: int) -> Float[Tensor, "N Q K"]:
    """`skew` as a view of a contiguous x, without a gradient. R may be as small as K + 1."""
    # With R = K + 1 a row of the view reaches into the next row of x; no two entries are the same number even then.
    count, queries, distances = x_NQR.shape
    strides = (queries * distances, distances - 1, 1)
    first = x_NQR.storage_offset() + queries - 1
    return x_NQR.as_strided((count, queries, keys), strides, first)


def _unskew(y_NQK: Float[Tensor, "N Q K"]) -> Float[Tensor, "N Q R"]:
    count, queries, keys = y_NQK.shape
    x_NQR = y_NQK.new_zeros(count, queries, keys + queries - 1)
    skewed_view(x_NQR, keys).copy_(y_NQK)
    return x_NQR
