"""Positions 0, 1, 2, ...."""

from __future__ import annotations

from typing import final

import torch

from jarilab.core.shapes import Tensor
from jarilab.tasks.policies.base import PositionPolicy, Sequences, registry


@final
@registry.register("sequential")
class Sequential(PositionPolicy):
    """Positions 0, 1, 2, ..., without counting padding before a text; each document of a row starts at 0.

    restart: whether documents start at 0; otherwise positions continue through the row, as in GPT-2's training.
    """

    plain = True

    def __init__(self, *, restart: bool = True):
        self.restart = restart

    def places(self, sequences: Sequences, seed: int | None) -> Tensor:
        if self.restart or sequences.documents is None:
            return sequences.index
        return torch.arange(sequences.ids.shape[1], device=sequences.ids.device)
