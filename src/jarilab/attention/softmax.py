"""Softmax over few keys, which PyTorch is slow at on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from jarilab.core.shapes import Float, Tensor


def softmax(scores_BHQK: Float[Tensor, "B H Q K"]) -> Float[Tensor, "B H Q K"]:
    """Softmax over the last axis. PyTorch's is not vectorised on a CPU where that is shorter than a vector of 64 bytes;
    along the first axis it always is, which is faster even with the two transpositions."""
    queries, keys = scores_BHQK.shape[-2:]
    if scores_BHQK.device.type != "cpu" or not scores_BHQK.numel():
        return scores_BHQK.softmax(-1)
    if queries > 1 and scores_BHQK.dtype is torch.bfloat16 and _leaves_most_of_a_vector(keys):
        return _SoftmaxInFloat32.apply(scores_BHQK)  # type: ignore[no-any-return]
    if keys * scores_BHQK.element_size() >= 64:
        return scores_BHQK.softmax(-1)
    if queries == 1 and scores_BHQK.requires_grad:
        # The gradient would come out transposed, and a product of single rows copies such a one row by row, which takes
        # longer than all the rest of a recurrent decoder's attention.
        return scores_BHQK.softmax(-1)
    columns_KR = scores_BHQK.reshape(-1, keys).t().contiguous()
    return columns_KR.softmax(0).t().contiguous().view(scores_BHQK.shape)


def _leaves_most_of_a_vector(keys: int) -> bool:
    """Whether PyTorch would take 16 or more of so few numbers in bfloat16 one by one, beside a vector of 32 at most."""
    return keys < 64 and keys % 32 >= 16 and not torch.compiler.is_compiling()


class _SoftmaxInFloat32(torch.autograd.Function):
    """Softmax of bfloat16 over the last axis by way of float32, of which nothing is kept."""

    @staticmethod
    def forward(ctx: Any, scores_BHQK: Tensor) -> Tensor:  # type: ignore[override]
        weights_BHQK = scores_BHQK.float().softmax(-1).to(scores_BHQK.dtype)
        ctx.save_for_backward(weights_BHQK)
        return weights_BHQK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_BHQK: Tensor) -> Tensor:  # type: ignore[override]
        (weights_BHQK,) = ctx.saved_tensors
        gradient = torch.ops.aten._softmax_backward_data
        if weights_BHQK.shape[-1] >= 32:
            return gradient(d_BHQK, weights_BHQK, -1, weights_BHQK.dtype)
        precise_BHQK = gradient(d_BHQK.float(), weights_BHQK.float(), -1, torch.float32)
        return precise_BHQK.to(weights_BHQK.dtype)
