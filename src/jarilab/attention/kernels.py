"""Fast kernels for an AttentionCall. Each equals the definition, forward and gradient; a law checks it.

| kernel | computes | fastest for |
| --- | --- | --- |
| explicit | batched product, softmax, batched product | CPU: short sequences, bfloat16 to some 512 keys, dropout |
| fused | PyTorch's scaled_dot_product_attention | long sequences, GPUs; no Q x K tensor if nothing is added |
| blocks | explicit, a block of queries at a time | CPU: long sequences with a bias, a mask or dropout |
| flex | PyTorch's FlexAttention | GPUs: biases by distance, windows, packed documents; never a Q x K tensor |
| definition | float32 einsum of `definition.py` | never; for comparison |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from jarilab.attention import definition, flex
from jarilab.attention.cpu import blocks, short_sequences
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding
from jarilab.nn.dropout import dropout
from jarilab.positions.coordinates import Positions
from jarilab.positions.masks import Mask

Kernel = Literal["auto", "explicit", "fused", "blocks", "flex", "definition"]

# The number of keys from which a kernel is the faster one, forward and backward in one thread. Measured with PyTorch
# 2.13 on an AMD EPYC with AVX-512 BF16 and an Intel Xeon with AMX (benchmarks/kernels.py, docs/results/long.md). The
# bits of a result depend on them.
# PyTorch's kernel instead of explicit products, on a CPU. In other dtypes it is always used.
MIN_FUSED_KEYS = {torch.float32: 49, torch.bfloat16: 1025}
# Blocks on a CPU, if there are as many queries. In float32 they win from 256 on, but by 4 to 6 % without dropout.
MIN_BLOCKS_KEYS = {torch.float32: 512, torch.bfloat16: 1024}
# FlexAttention, on a GPU. The limit was not measured.
MIN_FLEX_KEYS = 128

# Up to this many scores, one fused operation is faster than three, at any length.
MAX_FUSED_SCORES = 1024
# With this many queries or fewer, the fused kernel is slow for large batches, and queries are cheaper to transpose than
# keys.
FEW_QUERIES = 8


def attend(call: AttentionCall, kernel: Kernel = "auto") -> Tensor:
    """The output of an attention, `(B, H, Q, W)`, in the dtype of its values."""
    name = choose(call) if kernel == "auto" else kernel
    blockwise = _BLOCKWISE_KERNELS.get(name)
    return _KERNELS[name](call.materialized) if blockwise is None else blockwise(call)


def choose(call: AttentionCall) -> str:
    """The fastest kernel for the device, dtype and length of a call."""
    if call.score is not None:
        return "explicit"  # the score is no product
    if call.q.device.type != "cpu":
        if "values" in call.geometry.encoding.hooks:
            return "explicit"  # the hook reads the weights
        return "fused" if call.geometry.blockwise is None or call.dropout else "flex"
    if call.geometry.blockwise is not None or _bare_and_long(call):
        return "blocks"
    if "values" in call.geometry.encoding.hooks:
        return "explicit"
    # With dropout PyTorch computes explicit products on a CPU too, with a slower dropout.
    if call.dropout:
        return "explicit"
    dtype, keys = call.q.dtype, call.k.shape[2]
    if torch.compiler.is_compiling() or call.q.requires_grad or dtype is torch.float64:
        return "explicit" if keys < MIN_FUSED_KEYS.get(dtype, 1) else "fused"
    if few_scores(call.q, keys):
        return "fused"
    few = call.q.shape[2] <= FEW_QUERIES or keys < MIN_FUSED_KEYS.get(dtype, 1)
    return "explicit" if few else "fused"


def few_scores(q: Float[Tensor, "B H Q E"], keys: int) -> bool:
    """Whether starting the operations takes most of the time, as for one query of one row."""
    return q.shape[:3].numel() * keys <= MAX_FUSED_SCORES


def attend_bare(
    q: Float[Tensor, "B H Q E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K W"],
    geometry: Geometry,
    scale: float,
    kernel: Kernel,
) -> Float[Tensor, "B H Q W"]:
    """`attend` in evaluation for a plain geometry; few scores skip the choice of a kernel."""
    if kernel == "auto" and q.dtype is not torch.float64 and few_scores(q, k.shape[2]):
        return functional.scaled_dot_product_attention(q, k, v, scale=scale)
    return attend(AttentionCall(q, k, v, geometry, scale), kernel)


def _bare_and_long(call: AttentionCall) -> bool:
    """Whether blocks are the fastest although nothing is added: in bfloat16 with many keys."""
    geometry, queries, keys = call.geometry, call.q.shape[2], call.k.shape[2]
    if call.q.dtype is not torch.bfloat16 or torch.compiler.is_compiling():
        return False
    has_rules = geometry.allowed is None or geometry.mask is not None
    bare = has_rules and not geometry.encoding.hooks & {"bias", "terms", "values"}
    return bare and min(queries, keys) >= MIN_BLOCKS_KEYS[torch.bfloat16]


def is_blockwise(
    kernel: Kernel,
    hooks: frozenset[str],
    q_pos: Positions,
    k_pos: Positions,
    mask: Mask | None,
    dropout: float,
    width: int = flex.MIN_WIDTH,
) -> bool:
    """Whether to compute an attention block by block, if its encoding supports that.

    True if `kernel` requests it. Also true for long sequences with something that PyTorch's fused kernel lacks: a bias,
    a mask other than padding or causal, or dropout on a CPU. width: of a head's queries, keys and values, the least.
    """
    if kernel != "auto":
        return kernel in ("flex", "blocks")
    device, shortest = q_pos.order.device.type, min(q_pos.length, k_pos.length)
    if device == "cuda":
        simple = "bias" not in hooks and (mask is None or mask.plain_causal)
        long_enough = shortest >= MIN_FLEX_KEYS and width >= flex.MIN_WIDTH
        return long_enough and not simple and not dropout
    if device != "cpu" or torch.compiler.is_compiling():
        return False
    half = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16
    if shortest < MIN_BLOCKS_KEYS[torch.bfloat16 if half else torch.float32]:
        return False
    simple = mask is None or mask.plain_causal or mask.of_keys
    return bool(dropout) or not simple or bool(hooks & {"bias", "terms", "values"})


def check(
    kernel: str,
    encodings: Sequence[Encoding],
    score: nn.Module | None = None,
    dropout: float = 0.0,
) -> None:
    """Raises UserError if a kernel does not support the encoding, the score or dropout.

    Called when a model is built.
    """
    hooks = {hook for encoding in encodings for hook in encoding.hooks}
    if kernel == "flex":
        flex.check(encodings, score is None, dropout)
    if kernel == "blocks":
        blocks.check(encodings, score is None)
    if kernel == "fused":
        _check_fused(hooks, score)


def _check_fused(hooks: AbstractSet[str], score: nn.Module | None) -> None:
    """Raises UserError for scores that are no products and for the hook `values`."""
    if score is not None:
        raise UserError(
            "the fused kernel expected scores that are products of queries and keys, and this score is a sum within a "
            "tanh; use kernel=explicit or auto, or score=dot or score=general"
        )
    if "values" in hooks:
        raise UserError(
            "the fused kernel does not materialize the attention weights, and the encoding's `values` hook needs them; "
            "use kernel=explicit or auto, or switch that part of the encoding off"
        )


def _explicit(call: AttentionCall) -> Tensor:
    if short_sequences.is_fastest(call):
        return short_sequences.attend(call)
    geometry = call.geometry
    scores_BHQK = _explicit_scores(call)
    if geometry.additive is not None:
        # Not in place: autograd would copy the whole tensor to write into a view.
        scores_BHQK = scores_BHQK + geometry.additive.to(scores_BHQK.dtype)
    weights_BHQK = dropout(softmax(scores_BHQK), call.dropout)
    y_BHQE = _explicit_sum(weights_BHQK, call.v)
    values_BHQE = geometry.encoding.values(weights_BHQK, geometry.relation)
    if values_BHQE is not None:
        y_BHQE = y_BHQE + values_BHQE
    return y_BHQE if geometry.has_key is None else y_BHQE * geometry.has_key


def _explicit_scores(call: AttentionCall) -> Float[Tensor, "B H Q K"]:
    """`scale * (q.k + terms)`, with the call's score in place of q.k if it has one."""
    computed: list[Tensor] = []  # q.k, if the encoding asks for it

    def product() -> Tensor:
        computed.append(_products(call))
        return computed[0]

    terms_BHQK = call.terms(product)
    if computed or call.score is not None:
        product_BHQK = computed[0] if computed else product()
        sum_BHQK = product_BHQK if terms_BHQK is None else product_BHQK + terms_BHQK
        return call.scale * sum_BHQK
    return _products(call, call.scale, terms_BHQK)


def _products(
    call: AttentionCall, scale: float = 1.0, terms_BHQK: Tensor | None = None
) -> Float[Tensor, "B H Q K"]:
    """`scale * (q.k + terms)` as a product of N = B * H matrices, or the call's score unscaled."""
    if call.score is not None:
        return call.score(call.q, call.k)
    batch, heads, queries, width = call.q.shape
    keys = call.k.shape[2]
    q_NQE = call.q.reshape(batch * heads, queries, width)
    k_NEK = call.k.reshape(batch * heads, keys, width).transpose(1, 2)
    gaps = not call.k.is_contiguous()
    if terms_BHQK is None and queries <= FEW_QUERIES and gaps and q_NQE.dtype is torch.bfloat16:
        # Transposed: in bfloat16 keys with gaps are copied first, and faster as they are than transposed.
        scores_NKQ = torch.bmm(k_NEK.transpose(1, 2), (q_NQE * scale).transpose(1, 2))
        scores_NQK = scores_NKQ.transpose(1, 2).contiguous()
    elif terms_BHQK is None:
        # Scale the queries, the smallest tensor.
        scores_NQK = torch.bmm(q_NQE * scale, k_NEK)
    else:
        terms_NQK = terms_BHQK.reshape(batch * heads, queries, keys)
        scores_NQK = torch.baddbmm(terms_NQK, q_NQE, k_NEK, beta=scale, alpha=scale)
    return scores_NQK.view(batch, heads, queries, keys)


def _explicit_sum(
    weights_BHQK: Float[Tensor, "B H Q K"], v_BHKE: Float[Tensor, "B H K W"]
) -> Float[Tensor, "B H Q W"]:
    """`weights . values` as a product of N = B * H matrices."""
    batch, heads, queries, keys = weights_BHQK.shape
    width = v_BHKE.shape[3]
    weights_NQK = weights_BHQK.view(batch * heads, queries, keys)
    v_NKE = v_BHKE.reshape(batch * heads, keys, width)
    return torch.bmm(weights_NQK, v_NKE).view(batch, heads, queries, width)


def _fused(call: AttentionCall) -> Tensor:
    geometry = call.geometry
    _check_fused(geometry.encoding.hooks, call.score)
    mask_BHQK = _fused_mask(call)
    y_BHQE = functional.scaled_dot_product_attention(
        call.q,
        call.k,
        call.v,
        mask_BHQK,
        dropout_p=call.dropout,
        is_causal=geometry.causal and mask_BHQK is None,
        scale=call.scale,
    )
    return y_BHQE if geometry.has_key is None else y_BHQE * geometry.has_key


def _fused_mask(call: AttentionCall) -> Tensor | None:
    """The `attn_mask` of PyTorch's kernel; None if `is_causal` or no mask suffices."""
    geometry = call.geometry
    terms_BHQK = call.terms(partial(_products, call))
    if terms_BHQK is None and geometry.bias is None:
        return None if geometry.causal else geometry.allowed
    additive = geometry.additive
    if terms_BHQK is not None:
        scaled_BHQK = call.scale * terms_BHQK
        additive = scaled_BHQK if additive is None else scaled_BHQK + additive
    assert additive is not None
    return additive.to(call.q.dtype).expand(*call.q.shape[:2], *additive.shape[2:])


def _flex(call: AttentionCall) -> Tensor:
    geometry = call.geometry
    check("flex", [geometry.encoding], call.score, call.dropout)
    blockwise = geometry.blockwise
    # The geometry may have been built for another kernel, or for a CPU without a BlockMask.
    if blockwise is None or blockwise.blocks is None:
        blockwise = flex.blockwise_of(
            geometry.encoding, geometry.q_pos, geometry.k_pos, geometry.mask
        )
    if blockwise is None:
        raise UserError(
            "kernel=flex expected integer positions on one axis, each token with its own, and got others; use "
            "kernel=auto"
        )
    return flex.attend(call.q, call.k, call.v, blockwise, call.scale)


def _blocks(call: AttentionCall) -> Tensor:
    check("blocks", [call.geometry.encoding], call.score)
    return blocks.attend(call)


def softmax(scores_BHQK: Float[Tensor, "B H Q K"]) -> Float[Tensor, "B H Q K"]:
    """Softmax over the last axis, vectorized for few keys on a CPU."""
    # PyTorch does not vectorize along a last axis shorter than 64 bytes. Along the first axis it does, which is faster
    # even with two transpositions.
    queries, keys = scores_BHQK.shape[-2:]
    if scores_BHQK.device.type != "cpu" or not scores_BHQK.numel():
        return scores_BHQK.softmax(-1)
    if queries > 1 and scores_BHQK.dtype is torch.bfloat16 and _leaves_large_remainder(keys):
        return _SoftmaxInFloat32.apply(scores_BHQK)  # type: ignore[no-any-return]
    if keys * scores_BHQK.element_size() >= 64:
        return scores_BHQK.softmax(-1)
    if queries == 1 and scores_BHQK.requires_grad:
        # The gradient would come out transposed, and a product of single rows copies such a tensor row by row. That
        # takes longer than the rest of a recurrent decoder's attention.
        return scores_BHQK.softmax(-1)
    columns_KR = scores_BHQK.reshape(-1, keys).t().contiguous()
    return columns_KR.softmax(0).t().contiguous().view(scores_BHQK.shape)


def _leaves_large_remainder(keys: int) -> bool:
    """Whether PyTorch computes 16 or more bfloat16 numbers one by one, beside at most one vector of 32."""
    return keys < 64 and keys % 32 >= 16 and not torch.compiler.is_compiling()


class _SoftmaxInFloat32(torch.autograd.Function):
    """Softmax of bfloat16 over the last axis, computed in float32 and saved in bfloat16."""

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


# These need no materialized geometry.
_BLOCKWISE_KERNELS: dict[str, Callable[[AttentionCall], Tensor]] = {
    "flex": _flex,
    "blocks": _blocks,
}
_KERNELS: dict[str, Callable[[AttentionCall], Tensor]] = {
    "explicit": _explicit,
    "fused": _fused,
    "definition": lambda call: definition.output(call).to(call.v.dtype),
}
