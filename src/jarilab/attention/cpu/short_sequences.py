"""Attention over many short sequences on a CPU, with the batch as the innermost axis.

PyTorch's batched product handles tiny matrices, such as 7 tokens by a head of 8, one number after another. Here the
same entry of all matrices is contiguous, so that products and softmax are a few operations over long vectors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jarilab.attention.definition import AttentionCall
from jarilab.core.shapes import Float
from jarilab.nn.dropout import dropout

# From this many multiplications a matrix product on, PyTorch calls a library that is faster.
MAX_PRODUCTS = 400
# With fewer matrices, starting the operations takes longer than computing them.
MIN_MATRICES = 256


def is_fastest(call: AttentionCall) -> bool:
    """Whether this is the fastest kernel to train on a call."""
    if not call.q.requires_grad or call.score is not None or torch.compiler.is_compiling():
        return False
    batch, heads, queries, width = call.q.shape
    small = queries * call.k.shape[2] * max(width, call.v.shape[3]) < MAX_PRODUCTS
    many = queries > 1 and batch * heads >= MIN_MATRICES
    plain = not call.geometry.encoding.hooks & {"terms", "values"}
    return small and many and plain and call.q.device.type == "cpu"


def attend(call: AttentionCall) -> Float[Tensor, "B H Q W"]:
    """The output, in the dtype of the values; computed in float32 or better. N = H * B."""
    geometry, (batch, heads) = call.geometry, call.q.shape[:2]
    q_QEN, k_KEN, v_KWN = (_batch_last(tensor) for tensor in (call.q, call.k, call.v))
    scores_QKN = _Product.apply(q_QEN * call.scale, k_KEN)
    if geometry.additive is not None:
        additive_QKHB = geometry.additive.permute(2, 3, 1, 0)
        scores_QKHB = scores_QKN.unflatten(2, (heads, batch)) + additive_QKHB
        scores_QKN = scores_QKHB.flatten(2)
    weights_QKN = dropout(scores_QKN.softmax(1), call.dropout)
    y_QWN = _Product.apply(weights_QKN, v_KWN.transpose(0, 1))
    y_QWHB = y_QWN.to(call.v.dtype).unflatten(2, (heads, batch))
    y_BHQW = y_QWHB.permute(3, 2, 0, 1)
    return y_BHQW if geometry.has_key is None else y_BHQW * geometry.has_key


class _Product(torch.autograd.Function):
    """`sum over J of x[i, j] * y[k, j]` for each of N: `(I, J, N), (K, J, N) -> (I, K, N)`."""

    @staticmethod
    def forward(ctx: Any, x_IJN: Tensor, y_KJN: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x_IJN, y_KJN)
        sum_IKN = x_IJN[:, None, 0] * y_KJN[None, :, 0]
        for j in range(1, x_IJN.shape[1]):
            sum_IKN.addcmul_(x_IJN[:, None, j], y_KJN[None, :, j])
        return sum_IKN

    @staticmethod
    def backward(ctx: Any, d_IKN: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x_IJN, y_KJN = ctx.saved_tensors
        d_IKN = d_IKN.contiguous()
        d_x_IJN = _Product.apply(d_IKN, y_KJN.transpose(0, 1))
        d_y_KJN = _Product.apply(d_IKN.transpose(0, 1), x_IJN.transpose(0, 1))
        return d_x_IJN, d_y_KJN


def _batch_last(x_BHLE: Tensor) -> Float[Tensor, "L E N"]:
    """Heads and batch as the last, contiguous axis, in float32 or better."""
    dtype = torch.float64 if x_BHLE.dtype is torch.float64 else torch.float32
    # One copy changes layout and dtype. Without `copy`, a float32 tensor of one head or row would keep its strides.
    x_LEHB = x_BHLE.permute(2, 3, 1, 0)
    x_LEHB = x_LEHB.to(dtype, memory_format=torch.contiguous_format, copy=True)
    return x_LEHB.flatten(2)
