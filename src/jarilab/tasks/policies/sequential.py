"""Positions as every text has them."""

from __future__ import annotations

from typing import final

import torch

from jarilab.core.shapes import Tensor
from jarilab.tasks.policies.base import Policy, Sequences, registry


@final
@registry.register("sequential")
class Sequential(Policy):
    """0, 1, 2, ...; padding before a text is not counted, and each of several documents in a row starts at 0.

    restart: whether documents start anew; otherwise places run on through the row, as GPT-2 was trained.
    """

    plain = True

    def __init__(self, *, restart: bool = True):
        self.restart = restart

    def places(self, sequences: Sequences, seed: int | None) -> Tensor:
        if self.restart or sequences.documents is None:
            return sequences.index
        return torch.arange(sequences.ids.shape[1], device=sequences.ids.device)
