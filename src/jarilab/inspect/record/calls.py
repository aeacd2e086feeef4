"""What is asked of a recorded call: who may look at whom, and the same call for some of its queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from jarilab.attention.definition import AttentionCall
from jarilab.attention.geometry import Geometry
from jarilab.core.shapes import Bool, Int, Tensor

BLOCK = 2**22
"""How many weights are worked out at a time; a map needs some four times as many numbers while it is computed."""


def allowed_links(call: AttentionCall) -> Bool[Tensor, "#B 1 Q K"]:
    """Who may look at whom, a query without any key at none."""
    geometry = call.geometry
    size = call.q.shape[2], call.k.shape[2]
    if geometry.allowed is None:
        return torch.ones(1, 1, *size, dtype=torch.bool, device=call.q.device)
    allowed = geometry.allowed
    if geometry.has_key is not None:
        allowed = allowed & geometry.has_key
    return allowed.expand(-1, -1, *size)


def blocks(call: AttentionCall) -> Iterator[tuple[slice, AttentionCall]]:
    """The same attention a few queries at a time, so that what is computed of it at once stays bounded."""
    batch, heads, queries, _ = call.q.shape
    weights_of_a_query = batch * heads * call.k.shape[2]
    size = max(1, BLOCK // max(1, weights_of_a_query))
    if size >= queries:
        yield slice(0, queries), call
        return
    for first in range(0, queries, size):
        rows = slice(first, min(first + size, queries))
        yield rows, of_queries(call, rows)


def of_queries(call: AttentionCall, rows: slice | Int[Tensor, " R"]) -> AttentionCall:
    """The same attention for some of its queries alone."""
    return replace(call, q=call.q[:, :, rows], geometry=_of_queries(call.geometry, rows))


def _of_queries(whole: Geometry, rows: slice | Int[Tensor, " R"]) -> Geometry:
    def cut(of_queries: Tensor | None) -> Tensor | None:
        if of_queries is None or of_queries.shape[-2] == 1:
            return of_queries
        return of_queries[..., rows, :]

    places = whole.q_pos
    unplaced = None if places.unplaced is None else places.unplaced[..., rows]
    coordinates = places.coordinates[..., rows, :]
    q_pos = replace(places, coordinates=coordinates, order=places.order[rows], unplaced=unplaced)
    relation = None
    if whole.relation is not None:
        relation = whole.encoding.relation(q_pos, whole.k_pos)
    return replace(
        whole,
        q_pos=q_pos,
        relation=relation,
        allowed=cut(whole.allowed),
        has_key=cut(whole.has_key),
        bias=cut(whole.bias),
        additive=None,
    )
