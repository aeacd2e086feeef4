"""Fast ways to compute an AttentionCall. Each equals the definition in `call.py`, forward and gradient: a law.

| kernel | what it does | where it wins |
| --- | --- | --- |
| explicit | batched product, softmax, batched product | CPU: short sequences; bfloat16 up to some 512 keys; dropout |
| fused | PyTorch's scaled_dot_product_attention | long sequences, GPUs; memory without Q x K where nothing is added |
| definition | float32 einsum of `call.py` | nowhere: to compare with |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from jarilab.attention import call as definition
from jarilab.attention.call import AttentionCall
from jarilab.errors import UserError
from jarilab.nn.dropout import dropout
from jarilab.shapes import Tensor

Kernel = Literal["auto", "explicit", "fused", "definition"]

# The longest keys for which the explicit products beat the fused kernel on a CPU, forward and backward. Measured on
# 2 cores with AVX-512 BF16, PyTorch 2.13; `benchmarks/kernels.py` measures it again.
LONGEST_EXPLICIT = {torch.float32: 48, torch.bfloat16: 1024}


def attend(call: AttentionCall, kernel: Kernel = "auto") -> Tensor:
    """The output of an attention, `(B, H, Q, E')`, in the dtype of its values."""
    chosen = choose(call) if kernel == "auto" else kernel
    return _KERNELS[chosen](call)


def choose(call: AttentionCall) -> str:
    """The kernel for a call of this device, dtype and length."""
    if "values" in call.geometry.encoding.hooks or call.score is not None:
        return "explicit"  # the one needs the weights themselves, the other is no product
    # With dropout PyTorch has no fused kernel on a CPU, but the same products and a slower dropout.
    short = call.k.shape[2] <= LONGEST_EXPLICIT.get(call.q.dtype, 0)
    return "explicit" if call.q.device.type == "cpu" and (short or call.dropout) else "fused"


def check(kernel: str, hooks: frozenset[str], score: nn.Module | None = None) -> None:
    """Refuse, when a model is built, a kernel that cannot do what the encoding or the score needs. Raises UserError."""
    if kernel == "fused" and score is not None:
        raise UserError(
            "the fused kernel compares queries and keys by their product alone, and this score is a sum within a tanh; "
            "use kernel=explicit or auto, or score=dot or score=general"
        )
    if kernel == "fused" and "values" in hooks:
        raise UserError(
            "the fused kernel never holds the attention weights, and the encoding's `values` hook needs them; "
            "use kernel=explicit or auto, or switch that part of the encoding off"
        )


def _explicit(call: AttentionCall) -> Tensor:
    geometry = call.geometry
    batch, heads, queries, width = call.q.shape
    keys = call.k.shape[2]
    q = call.q.reshape(batch * heads, queries, width)
    k = call.k.reshape(batch * heads, keys, width)
    v = call.v.reshape(batch * heads, keys, call.v.shape[3])
    terms = geometry.encoding.terms(call.q, call.k, geometry.relation)
    if call.score is not None:
        scores = call.score(call.q, call.k)
        scores = call.scale * (scores if terms is None else scores + terms)
    elif terms is None:
        # The scale goes to the queries, the smallest of the tensors at hand.
        scores = torch.bmm(q * call.scale, k.transpose(1, 2))
    else:
        terms = terms.reshape(batch * heads, queries, keys)
        scores = torch.baddbmm(terms, q, k.transpose(1, 2), beta=call.scale, alpha=call.scale)
    scores = scores.view(batch, heads, queries, keys)
    if geometry.additive is not None:
        # Not in place: writing into a view costs autograd a copy of the whole.
        scores = scores + geometry.additive.to(scores.dtype)
    weights = dropout(_softmax(scores), call.dropout)
    output = torch.bmm(weights.view(batch * heads, queries, keys), v).view(
        batch, heads, queries, v.shape[2]
    )
    added = geometry.encoding.values(weights, geometry.relation)
    if added is not None:
        output = output + added
    return output if geometry.has_key is None else output * geometry.has_key


def _softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis. PyTorch's is not vectorised on a CPU where that is shorter than a vector of 64 bytes;
    along the first axis it always is, which is faster even with the two transpositions."""
    keys = scores.shape[-1]
    if scores.device.type != "cpu" or not scores.numel() or keys * scores.element_size() >= 64:
        return scores.softmax(-1)
    if scores.shape[-2] == 1 and scores.requires_grad:
        # The gradient would come out transposed, and a product of single rows copies such a one row by row, which takes
        # longer than all the rest of a recurrent decoder's attention.
        return scores.softmax(-1)
    return scores.reshape(-1, keys).t().contiguous().softmax(0).t().contiguous().view(scores.shape)


def _fused(call: AttentionCall) -> Tensor:
    geometry = call.geometry
    check("fused", geometry.encoding.hooks, call.score)
    terms = geometry.encoding.terms(call.q, call.k, geometry.relation)
    if terms is None and geometry.bias is None:
        mask = None if geometry.causal else geometry.allowed
    else:
        mask = geometry.additive
        if terms is not None:
            mask = call.scale * terms if mask is None else call.scale * terms + mask
        assert mask is not None
        mask = mask.to(call.q.dtype).expand(*call.q.shape[:2], *mask.shape[2:])
    output = functional.scaled_dot_product_attention(
        call.q,
        call.k,
        call.v,
        mask,
        dropout_p=call.dropout,
        is_causal=geometry.causal and mask is None,
        scale=call.scale,
    )
    return output if geometry.has_key is None else output * geometry.has_key


def _definition(call: AttentionCall) -> Tensor:
    return definition.output(call).to(call.v.dtype)


_KERNELS: dict[str, Callable[[AttentionCall], Tensor]] = {
    "explicit": _explicit,
    "fused": _fused,
    "definition": _definition,
}
