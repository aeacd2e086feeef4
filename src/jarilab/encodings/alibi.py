"""Attention with linear biases: *Train Short, Test Long* (Press, Smith, Lewis 2022), section 3."""

from __future__ import annotations

import math
from typing import final

import torch

from jarilab.encodings.base import Encoding, Site, registry
from jarilab.positions import Positions, distance
from jarilab.shapes import Float, Tensor


@final
@registry.register("alibi")
class Alibi(Encoding):
    """Subtracts from the score a fixed slope, one per head, times the distance: `-m_h |i - j|`.

    With a causal mask that is the paper's; without one it is the symmetric variant its authors suggest for encoders.
    The slope is added after scaling and never learnt.
    """

    def __init__(self, site: Site):
        super().__init__(site)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        away = distance(q_pos, k_pos).abs().unsqueeze(-3).float()
        slope_H11 = torch.tensor(slopes(self.site.heads), device=away.device).view(-1, 1, 1)
        return -slope_H11 * away


def slopes(heads: int) -> list[float]:
    """`2^(-8/n), 2^(-16/n), ...` for n heads where n is a power of two.

    Any other n takes the slopes of the power of two below, then every other one of the power above, as the authors'
    code and the Bloom and MPT models have it. They are not in falling order then, and differ from the paper's formula
    (12 heads: largest 0.7071 against 0.63).
    """
    below = 2 ** math.floor(math.log2(heads))
    above = 2 * below
    others = range(0, 2 * (heads - below), 2)
    regular = [2 ** (-8 * (h + 1) / below) for h in range(below)]
    return regular + [2 ** (-8 * (h + 1) / above) for h in others]
