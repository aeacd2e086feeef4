"""Where edits of a forward can be: its attentions, as those who draw random edits see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from jarilab.core.shapes import Int, Tensor
from jarilab.inspect.record.calls import allowed_links
from jarilab.inspect.record.capture import Tape, record

Spot = tuple[int, int]
"""The number of a query, and of a key."""
Spots = Int[Tensor, "N 2"]
NOWHERE: Spot = (-1, -1)
"""No query and no key."""


@dataclass(frozen=True, eq=False)
class Opening:
    """A site. kind: encoder, decoder or cross. links: each query with each key that it may look at. choices: how many
    keys the query of each link has."""

    kind: str
    n_heads: int
    links: Spots
    choices: Int[Tensor, " N"]

    @cached_property
    def contested(self) -> Spots:
        """Links whose query has another key."""
        return self.links[self.choices > 1]


Openings = dict[str, Opening]
"""By the name of the site."""


def openings_of(model: nn.Module, run: Callable[[], Any]) -> Openings:
    """Every attention of a forward. run: calls the model, on a batch of one."""
    with torch.no_grad(), record(model) as tape:
        run()
    return {site: _opening(tape, site) for site in tape.sites}


def _opening(tape: Tape, site: str) -> Opening:
    links, choices = [], []
    calls = [recorded.call for recorded in tape.calls[site]]
    for call in calls:
        allowed_QK = allowed_links(call).all(0).squeeze(0).cpu()
        query_N, key_N = allowed_QK.nonzero().unbind(1)
        q_order = call.geometry.q_pos.order.cpu()
        k_order = call.geometry.k_pos.order.cpu()
        of_call = q_order[query_N], k_order[key_N]
        links.append(torch.stack(of_call, 1))
        choices.append(allowed_QK.sum(1)[query_N])
    return Opening(
        kind=tape.site(site).kind,
        n_heads=calls[0].q.shape[1],
        links=torch.cat(links),
        choices=torch.cat(choices),
    )
