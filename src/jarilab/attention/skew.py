"""From distances to keys: rows that each begin one place earlier than the row above.

What depends on how far a key lies from a query is the same along every diagonal. Written with a row for each query and
a column for each distance, it is what a row for each query and a column for each key is, shifted; and a matrix whose
rows are one number shorter in memory than it says is shifted already. So nothing is looked up.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from jarilab.shapes import Float


def skewed(x: Float[Tensor, "N Q R"], keys: int) -> Float[Tensor, "N Q K"]:
    """`y[n, q, k] = x[n, q, k - q + Q - 1]`, for R = K + Q - 1 distances, the farthest behind the last query first."""
    return _Skew.apply(x, keys)


def unskewed(y: Float[Tensor, "N Q K"]) -> Float[Tensor, "N Q R"]:
    """What `skewed` made y of, and 0 elsewhere; also what takes its gradient back."""
    count, queries, keys = y.shape
    x_NQR = y.new_zeros(count, queries, keys + queries - 1)
    _shifted(x_NQR, keys).copy_(y)
    return x_NQR


class _Skew(torch.autograd.Function):
    # PyTorch's own gradient of as_strided asks for each number where else it is read.
    @staticmethod
    def forward(ctx, x: Tensor, keys: int) -> Tensor:  # type: ignore[override]
        return _shifted(x.clone(memory_format=torch.contiguous_format), keys)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_y: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return unskewed(d_y), None


def _shifted(x_NQR: Float[Tensor, "N Q R"], keys: int) -> Float[Tensor, "N Q K"]:
    count, queries, distances = x_NQR.shape
    strides = (queries * distances, distances - 1, 1)
    return x_NQR.as_strided((count, queries, keys), strides, queries - 1)
