"""Memory that block after block is written into: to ask the system for it anew would take longer than the work."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Room:
    """Tensors by name, whose numbers are anybody's until they are written."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self.held: dict[tuple[str, torch.dtype], Tensor] = {}

    def of(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        size, key = math.prod(shape), (name, dtype or self.dtype)
        if key not in self.held or self.held[key].numel() < size:
            self.held[key] = torch.empty(size, dtype=key[1])
        return self.held[key][:size].view(*shape)

    def product(self, name: str, x: Tensor, y: Tensor, added: Tensor | None = None) -> Tensor:
        """`x @ y`, and what is added to it."""
        out = self.of(name, (x.shape[0], x.shape[1], y.shape[2]))
        return torch.bmm(x, y, out=out) if added is None else torch.baddbmm(added, x, y, out=out)
