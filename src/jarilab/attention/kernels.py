"""Fast ways to compute an AttentionCall. Each equals the definition in `definition.py`, forward and gradient: a law.

| kernel | what it does | where it wins |
| --- | --- | --- |
| explicit | batched product, softmax, batched product | CPU: short sequences; bfloat16 up to some 512 keys; dropout |
| fused | PyTorch's scaled_dot_product_attention | long sequences, GPUs; memory without Q x K where nothing is added |
| blocks | explicit, some queries at a time | CPU: long sequences where anything is added, hidden or dropped |
| flex | PyTorch's FlexAttention | GPUs: biases by distance, windows, packed documents; never a tensor of Q x K |
| definition | float32 einsum of `definition.py` | nowhere: to compare with |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from jarilab.attention import definition, flex
from jarilab.attention.cpu import blocks, short_sequences
from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry
from jarilab.attention.softmax import softmax
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
# PyTorch's kernel instead of explicit products, on a CPU. Of other dtypes it is taken at every length.
MIN_FUSED_KEYS = {torch.float32: 49, torch.bfloat16: 1025}
# Blocks of queries, on a CPU, for as many queries, too. In float32 they win from 256 on, but by less than 5 % without
# dropout.
MIN_BLOCKS_KEYS = {torch.float32: 512, torch.bfloat16: 1024}
# FlexAttention, on a GPU. Not measured on one yet.
MIN_FLEX_KEYS = 128

# The most scores of a call for which one operation beats three, whatever the length.
FEWEST_EXPLICIT = 1024
# Queries that the fused kernel is slow for, where there are many rows, and that are cheaper to turn than the keys.
FEW_QUERIES = 8


def attend(call: AttentionCall, kernel: Kernel = "auto") -> Tensor:
    """The output of an attention, `(B, H, Q, E')`, in the dtype of its values."""
    chosen = choose(call) if kernel == "auto" else kernel
    by_blocks = _BY_BLOCKS.get(chosen)
    return _KERNELS[chosen](call.materialized) if by_blocks is None else by_blocks(call)


def choose(call: AttentionCall) -> str:
    """The kernel for a call of this device, dtype and length."""
    if call.score is not None:
        return "explicit"  # it is no product
    if call.q.device.type != "cpu":
        if "values" in call.geometry.encoding.hooks:
            return "explicit"  # it needs the weights themselves
        return "fused" if call.geometry.blockwise is None or call.dropout else "flex"
    if call.geometry.blockwise is not None or _bare_and_long(call):
        return "blocks"
    if "values" in call.geometry.encoding.hooks:
        return "explicit"
    # With dropout PyTorch has no fused kernel on a CPU, but the same products and a slower dropout.
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
    """Where the time is that of starting each operation, as for one query of one row, one is better than three."""
    return q.shape[:3].numel() * keys <= FEWEST_EXPLICIT


def attend_bare(
    q: Float[Tensor, "B H Q E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K W"],
    geometry: Geometry,
    scale: float,
    kernel: Kernel,
) -> Float[Tensor, "B H Q W"]:
    """`attend` in evaluation, of a bare geometry: where that takes PyTorch's kernel for few scores, at once."""
    if kernel == "auto" and q.dtype is not torch.float64 and few_scores(q, k.shape[2]):
        return functional.scaled_dot_product_attention(q, k, v, scale=scale)
    return attend(AttentionCall(q, k, v, geometry, scale), kernel)


def _bare_and_long(call: AttentionCall) -> bool:
    """Where nothing is added PyTorch's kernel is the fastest in float32, and in bfloat16 it is not."""
    geometry, queries, keys = call.geometry, call.q.shape[2], call.k.shape[2]
    if call.q.dtype is not torch.bfloat16 or torch.compiler.is_compiling():
        return False
    ruled = geometry.allowed is None or geometry.mask is not None
    bare = ruled and not geometry.encoding.hooks & {"bias", "terms", "values"}
    return bare and min(queries, keys) >= MIN_BLOCKS_KEYS[torch.bfloat16]


def is_blockwise(
    kernel: Kernel,
    hooks: frozenset[str],
    q_pos: Positions,
    k_pos: Positions,
    mask: Mask | None,
    dropout: float,
) -> bool:
    """Whether an attention between these places is computed block by block, as far as that can be done: where it was
    asked for, and where something that the flash kernel does not know is added or hidden, or on a CPU dropped, in
    blocks that are worth it."""
    if kernel != "auto":
        return kernel in ("flex", "blocks")
    device, shortest = q_pos.order.device.type, min(q_pos.length, k_pos.length)
    if device == "cuda":
        known = "bias" not in hooks and (mask is None or mask.plain_causal)
        return shortest >= MIN_FLEX_KEYS and not known and not dropout
    if device != "cpu" or torch.compiler.is_compiling():
        return False
    halved = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16
    if shortest < MIN_BLOCKS_KEYS[torch.bfloat16 if halved else torch.float32]:
        return False
    ruled = mask is None or mask.plain_causal or mask.of_keys
    return bool(dropout) or not ruled or bool(hooks & {"bias", "terms", "values"})


def check(
    kernel: str,
    encodings: Sequence[Encoding],
    score: nn.Module | None = None,
    dropout: float = 0.0,
) -> None:
    """Refuse, when a model is built, a kernel that cannot do what the encoding or the score needs. Raises UserError."""
    hooks = frozenset[str]().union(*(encoding.hooks for encoding in encodings))
    if kernel == "flex":
        flex.check(encodings, score is None, dropout)
    if kernel == "blocks":
        blocks.check(encodings, score is None)
    if kernel == "fused":
        _check_fused(hooks, score)


def _check_fused(hooks: frozenset[str], score: nn.Module | None) -> None:
    """Raises UserError for what the fused kernel cannot do."""
    if score is not None:
        raise UserError(
            "the fused kernel compares queries and keys by their product alone, and this score is a sum within a tanh; "
            "use kernel=explicit or auto, or score=dot or score=general"
        )
    if "values" in hooks:
        raise UserError(
            "the fused kernel never holds the attention weights, and the encoding's `values` hook needs them; "
            "use kernel=explicit or auto, or switch that part of the encoding off"
        )


def _explicit(call: AttentionCall) -> Tensor:
    if short_sequences.fits(call):
        return short_sequences.attend(call)
    geometry = call.geometry
    scores_BHQK = _explicit_scores(call)
    if geometry.additive is not None:
        # Not in place: writing into a view costs autograd a copy of the whole.
        scores_BHQK = scores_BHQK + geometry.additive.to(scores_BHQK.dtype)
    weights_BHQK = dropout(softmax(scores_BHQK), call.dropout)
    y_BHQE = _explicit_sum(weights_BHQK, call.v)
    added_BHQE = geometry.encoding.values(weights_BHQK, geometry.relation)
    if added_BHQE is not None:
        y_BHQE = y_BHQE + added_BHQE
    return y_BHQE if geometry.has_key is None else y_BHQE * geometry.has_key


def _explicit_scores(call: AttentionCall) -> Float[Tensor, "B H Q K"]:
    """`scale * (q.k + terms)`; the call's score in place of q.k."""
    compared: list[Tensor] = []

    def product() -> Tensor:
        compared.append(_products(call))
        return compared[0]

    terms_BHQK = call.terms(product)
    if compared or call.score is not None:
        product_BHQK = compared[0] if compared else product()
        both_BHQK = product_BHQK if terms_BHQK is None else product_BHQK + terms_BHQK
        return call.scale * both_BHQK
    return _products(call, call.scale, terms_BHQK)


def _products(
    call: AttentionCall, scale: float = 1.0, terms_BHQK: Tensor | None = None
) -> Float[Tensor, "B H Q K"]:
    """`scale * (q.k + terms)`, as products of N = B * H matrices; the call's score as it is."""
    if call.score is not None:
        return call.score(call.q, call.k)
    batch, heads, queries, width = call.q.shape
    keys = call.k.shape[2]
    q_NQE = call.q.reshape(batch * heads, queries, width)
    k_NEK = call.k.reshape(batch * heads, keys, width).transpose(1, 2)
    if terms_BHQK is None and queries <= FEW_QUERIES and q_NQE.dtype is torch.bfloat16:
        # The other way round: in bfloat16 keys that are turned are copied first, which takes longer than all the rest.
        scores_NKQ = torch.bmm(k_NEK.transpose(1, 2), (q_NQE * scale).transpose(1, 2))
        scores_NQK = scores_NKQ.transpose(1, 2).contiguous()
    elif terms_BHQK is None:
        # The scale goes to the queries, the smallest of the tensors at hand.
        scores_NQK = torch.bmm(q_NQE * scale, k_NEK)
    else:
        terms_NQK = terms_BHQK.reshape(batch * heads, queries, keys)
        scores_NQK = torch.baddbmm(terms_NQK, q_NQE, k_NEK, beta=scale, alpha=scale)
    return scores_NQK.view(batch, heads, queries, keys)


def _explicit_sum(
    weights_BHQK: Float[Tensor, "B H Q K"], v_BHKE: Float[Tensor, "B H K W"]
) -> Float[Tensor, "B H Q W"]:
    """The values, summed with these weights."""
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
    """What PyTorch's kernel adds to q.k, or which keys it hides; None where its causal rule, or none, will do."""
    geometry = call.geometry
    terms_BHQK = call.terms(partial(_products, call))
    if terms_BHQK is None and geometry.bias is None:
        return None if geometry.causal else geometry.allowed
    added = geometry.additive
    if terms_BHQK is not None:
        scaled_BHQK = call.scale * terms_BHQK
        added = scaled_BHQK if added is None else scaled_BHQK + added
    assert added is not None
    return added.to(call.q.dtype).expand(*call.q.shape[:2], *added.shape[2:])


def _flex(call: AttentionCall) -> Tensor:
    geometry = call.geometry
    check("flex", [geometry.encoding], call.score, call.dropout)
    blockwise = geometry.blockwise
    # Nobody asked for it when the places were known, or on a CPU, where the mask's blocks are another kernel's.
    if blockwise is None or blockwise.blocks is None:
        blockwise = flex.blockwise_of(
            geometry.encoding, geometry.q_pos, geometry.k_pos, geometry.mask
        )
    if blockwise is None:
        raise UserError(
            "kernel=flex adds what depends on the distance of whole places on one axis, and these tokens have other "
            "places, or none; use kernel=auto"
        )
    return flex.attend(call.q, call.k, call.v, blockwise, call.scale)


def _blocks(call: AttentionCall) -> Tensor:
    check("blocks", [call.geometry.encoding], call.score)
    return blocks.attend(call)


def _definition(call: AttentionCall) -> Tensor:
    return definition.output(call).to(call.v.dtype)


# These need nothing written out.
_BY_BLOCKS: dict[str, Callable[[AttentionCall], Tensor]] = {"flex": _flex, "blocks": _blocks}
_KERNELS: dict[str, Callable[[AttentionCall], Tensor]] = {
    "explicit": _explicit,
    "fused": _fused,
    "definition": _definition,
}
