"""A cache that a graph is given and gives back: keys and values as plain tensors, new ones behind those before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jarilab.core.shapes import Tensor
from jarilab.positions.coordinates import Positions


class GivenLayer:
    """What `LayerCache` is to one attention, without room for more: a graph has no loop to make use of it."""

    def __init__(self, held: Sequence[Tensor] = ()):
        self.held = tuple(held)

    @property
    def length(self) -> int:
        return self.held[0].shape[2] if self.held else 0

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        if self.held:
            pairs = zip(self.held, new, strict=True)
            new = tuple(torch.cat(pair, 2) for pair in pairs)
        self.held = new
        return new

    def filled(self) -> tuple[Tensor, ...]:
        return self.held


class GivenCache:
    """What `KVCache` is to a stack. k_pos: of all keys, those about to be read too."""

    positions: Any = None
    """A stack with a window drops keys by these; what a graph is given stays as long as it is."""
    writes: Any = None

    def __init__(self, own: Sequence[GivenLayer], source: Sequence[GivenLayer], k_pos: Positions):
        self.own, self.source, self.k_pos = list(own), list(source), k_pos

    def belong_to(self, origin: object) -> None:
        """To any source: whoever runs a graph gives it the keys."""

    def check_sources(self, sources: int) -> None:
        """As many as were given."""

    def extend(self, new: Positions) -> Positions:
        return self.k_pos
