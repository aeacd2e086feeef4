"""The norms of the weighted values that a head adds to each query."""

from __future__ import annotations

import torch
from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.attention.module import Attention
from jarilab.attention.recurrent_attention import LuongAttention
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.record.capture import Tape


@torch.no_grad()
def value_norms_of(tape: Tape, site: str, head: int) -> Float[Tensor, "Q K"]:
    """The norms `|| weight_ij v_j W_O ||`, where W_O are the head's rows of it.

    Kobayashi et al. 2020, "Attention is Not Only a Weight". Values include what an encoding adds to them. For a
    recurrent decoder, W_O is the part of W_concat that multiplies the context.
    tape: of one input. Raises UserError for an unknown site or head.
    """
    out_DW = _output_weight(tape.head(site, head).owner, site, head)
    weights_QK = tape.weights(site)[0, head]
    out_DW = out_DW.to(weights_QK.dtype)
    norms = [_norms(recorded.call, out_DW, head) for recorded in tape.calls[site]]
    return weights_QK * torch.cat(norms)


def _output_weight(attention: nn.Module, site: str, head: int) -> Float[Tensor, "D W"]:
    """The matrix that the output of a head is multiplied by."""
    if isinstance(attention, LuongAttention):
        return attention.combine.weight[:, attention.site.d_model :]
    if not isinstance(attention, Attention):
        raise UserError(
            f"{site} is a {type(attention).__name__}: expected jarilab.Attention or the attention of a recurrent "
            "decoder, whose output projection is known; look at its map with tape.weights"
        )
    out_DHW = attention.out.weight.unflatten(1, (attention.site.n_heads, -1))
    return out_DHW[:, head]


def _norms(call: AttentionCall, out_DW: Float[Tensor, "D W"], head: int) -> Float[Tensor, "Q K"]:
    """The norm of each value for each query, after the output projection."""
    v_KW = call.v[0, head].to(out_DW.dtype)
    if "values" not in call.geometry.encoding.hooks:
        norms_K = torch.linalg.vector_norm(v_KW @ out_DW.t(), dim=-1)
        return norms_K.expand(call.q.shape[2], -1)
    columns = []
    for key, v_W in enumerate(v_KW):
        v_QW = v_W + _added_value(call, key, head, out_DW)
        mapped_QD = v_QW @ out_DW.t()
        columns.append(torch.linalg.vector_norm(mapped_QD, dim=-1))
    return torch.stack(columns, -1)


def _added_value(call: AttentionCall, key: int, head: int, like: Tensor) -> Float[Tensor, "Q W"]:
    """What the encoding adds to a key's value for each query."""
    geometry = call.geometry
    _, heads, queries, _ = call.q.shape
    # All weight on this key returns its value alone.
    weights = like.new_zeros(1, heads, queries, call.k.shape[2])
    weights[..., key] = 1.0
    added = geometry.encoding.values(weights, geometry.relation)
    assert added is not None
    return added[0, head]
