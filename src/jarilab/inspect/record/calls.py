"""Attention calls a block of queries at a time: their allowed links and their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import torch

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Int, Tensor

MAX_BLOCK_WEIGHTS = 2**22
"""Weights that are computed at a time. Computing a map takes about four times as many numbers."""


def allowed_links(call: AttentionCall) -> Bool[Tensor, "#B 1 Q K"]:
    """True where a query of any head may attend to a key; a query without keys has none."""
    geometry = call.geometry
    size = call.q.shape[2], call.k.shape[2]
    if geometry.allowed is None:
        return torch.ones(1, 1, *size, dtype=torch.bool, device=call.q.device)
    allowed = geometry.allowed
    if geometry.has_key is not None:
        allowed = allowed & geometry.has_key.any(1, keepdim=True)
    return allowed.expand(-1, -1, *size)


def blocks(call: AttentionCall) -> Iterator[tuple[slice, AttentionCall]]:
    """The call in blocks of queries of at most `MAX_BLOCK_WEIGHTS` weights, each with its rows."""
    batch, heads, queries, _ = call.q.shape
    weights_per_query = batch * heads * call.k.shape[2]
    size = max(1, MAX_BLOCK_WEIGHTS // max(1, weights_per_query))
    if size >= queries:
        yield slice(0, queries), call
        return
    for first in range(0, queries, size):
        rows = slice(first, min(first + size, queries))
        yield rows, select_queries(call, rows)


def select_queries(call: AttentionCall, rows: slice | Int[Tensor, " R"]) -> AttentionCall:
    """The same call with some of its queries."""

    def select(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor.shape[-2] == 1:
            return tensor
        return tensor[..., rows, :]

    weights, geometry = call.explicit_weights, call.geometry
    weights = None if weights is None else weights[:, :, rows]
    q_pos = geometry.q_pos.select(rows)
    relation = None
    if geometry.relation is not None:
        relation = geometry.encoding.relation(q_pos, geometry.k_pos)
    geometry = replace(
        geometry,
        q_pos=q_pos,
        relation=relation,
        allowed=select(geometry.allowed),
        has_key=select(geometry.has_key),
        bias=select(geometry.bias),
        additive=None,
    )
    return replace(call, q=call.q[:, :, rows], geometry=geometry, explicit_weights=weights)


def select_inputs(call: AttentionCall, rows: slice | Int[Tensor, " R"]) -> AttentionCall:
    """The same call for some inputs of the batch. Tensors with one row are shared by all inputs."""

    def select(tensor: Tensor | None) -> Tensor | None:
        is_shared = tensor is None or tensor.ndim < 4 or len(tensor) == 1
        return tensor if tensor is None or is_shared else tensor[rows]

    index_R = torch.arange(len(call.q), device=call.q.device)[rows]
    geometry = call.geometry
    q_pos = geometry.q_pos.select_rows(index_R)
    k_pos = q_pos
    if geometry.k_pos is not geometry.q_pos:
        k_pos = geometry.k_pos.select_rows(index_R)
    relation = geometry.relation
    if relation is not None:
        relation = geometry.encoding.relation(q_pos, k_pos)
    selected = replace(
        geometry,
        q_pos=q_pos,
        k_pos=k_pos,
        relation=relation,
        allowed=select(geometry.allowed),
        has_key=select(geometry.has_key),
        bias=select(geometry.bias),
        additive=None,
        mask=None,
    )
    states = tuple(state[rows] for state in call.states)
    return replace(
        call, q=call.q[rows], k=call.k[rows], v=call.v[rows], geometry=selected, states=states
    )


def check_has_values(q: Tensor) -> None:
    """Raises UserError for a tensor on the meta device, of which no map can be computed."""
    if q.is_meta:
        raise UserError(
            "expected tensors with values, got some on the meta device, whose attention has no map; load the weights "
            "before recording, as with from_pretrained"
        )


def check_has_sites(sites: Collection[str]) -> None:
    """Raises UserError for the sites of an empty tape."""
    if not sites:
        raise UserError(
            "expected a tape with maps, got an empty one; run the model inside the block of jarilab.record, and pass "
            "at least one site if you pass sites"
        )


def largest(x: Tensor) -> float:
    """The largest absolute value; 0 for an empty tensor."""
    return float(x.abs().max()) if x.numel() else 0.0
