"""How much of each value the weights of a head bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from jarilab.attention.definition import AttentionCall
from jarilab.attention.module import Attention
from jarilab.attention.recurrent import LuongAttention
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.record.capture import Tape, look_inside


def valued(model: nn.Module, inputs: Sequence[Any], site: str, head: int) -> Float[Tensor, "Q K"]:
    """`valued_of` while the model runs on `inputs`, a batch of one."""
    return valued_of(look_inside(model, inputs), site, head)


@torch.no_grad()
def valued_of(tape: Tape, site: str, head: int) -> Float[Tensor, "Q K"]:
    """The length of what each key brings to each query: `|| weight_ij v_j W_O ||`, W_O being the head's rows of it
    (Kobayashi et al. 2020, "Attention is Not Only a Weight"). A recurrent decoder's W_O is the half of W_concat that
    its context goes through.

    What an encoding adds to the values counts with them. tape: of one input. Raises UserError for an unknown site or
    head.
    """
    out_DW = _out(tape.head(site, head).owner, site, head)
    weights_QK = tape.weights(site)[0, head]
    out_DW = out_DW.to(weights_QK.dtype)
    norms = [_norms(recorded.call, out_DW, head) for recorded in tape.calls[site]]
    return weights_QK * torch.cat(norms)


def _out(attention: nn.Module, site: str, head: int) -> Float[Tensor, "D W"]:
    """What the output of a head is multiplied by."""
    if isinstance(attention, LuongAttention):
        return attention.combine.weight[:, attention.site.d_model :]
    if not isinstance(attention, Attention):
        raise UserError(
            f"{site} is a {type(attention).__name__}: expected jarilab.Attention or the attention of a recurrent "
            "decoder, whose output projection is known; look at its map with tape.weights"
        )
    of_heads_DHW = attention.out.weight.unflatten(1, (attention.site.n_heads, -1))
    return of_heads_DHW[:, head]


def _norms(call: AttentionCall, out_DW: Float[Tensor, "D W"], head: int) -> Float[Tensor, "Q K"]:
    """The length of each value as each query sees it, mapped."""
    v_KW = call.v[0, head].to(out_DW.dtype)
    if "values" not in call.geometry.encoding.hooks:
        lengths_K = torch.linalg.vector_norm(v_KW @ out_DW.t(), dim=-1)
        return lengths_K.expand(call.q.shape[2], -1)
    columns = []
    for key, v_W in enumerate(v_KW):
        v_QW = v_W + _added_to(call, key, head, out_DW)
        mapped_QD = v_QW @ out_DW.t()
        columns.append(torch.linalg.vector_norm(mapped_QD, dim=-1))
    return torch.stack(columns, -1)


def _added_to(call: AttentionCall, key: int, head: int, like: Tensor) -> Float[Tensor, "Q W"]:
    """What the encoding adds to a key's value, as each query sees it: what comes out with all weight on this key."""
    geometry = call.geometry
    _, heads, queries, _ = call.q.shape
    alone = like.new_zeros(1, heads, queries, call.k.shape[2])
    alone[..., key] = 1.0
    added = geometry.encoding.values(alone, geometry.relation)
    assert added is not None
    return added[0, head]
