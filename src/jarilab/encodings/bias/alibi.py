"""Attention with linear biases: *Train Short, Test Long* (Press, Smith, Lewis 2022), section 3."""

from __future__ import annotations

import math
from typing import Literal, final

import torch
from torch import nn

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import of_distances, wide
from jarilab.positions.coordinates import Positions, distance

Slopes = Literal["fixed", "learned", "sides"]


@final
@registry.register("alibi")
class Alibi(Encoding):
    """Subtracts from the score a slope, one per head, times the distance: `-m_h |i - j|`.

    With a causal mask that is the paper's; without one it is the symmetric variant its authors suggest for encoders.
    The slope is added after scaling. Learned ones start at the fixed ones and are kept positive as powers of e; they
    are those of all layers. The authors found that models with learned slopes read no longer texts than they learned.

    slopes: `fixed`, the paper's; `learned`; or `sides`, learned ones for the keys before a query, and others for those
        after it where there are any (LittleBird, Lee et al. 2022).
    """

    def __init__(self, site: Site, *, slopes: Slopes = "fixed"):
        super().__init__(site)
        self.slopes: Slopes = slopes
        if slopes != "fixed":
            sides = 1 if slopes == "learned" or site.causal else 2
            self.logarithms = nn.Parameter(torch.empty(sides, site.heads))
            self.reset()

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        parameter.copy_(torch.tensor(slopes(self.site.heads)).log().expand_as(parameter))

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        if self.slopes != "fixed":
            return of_distances(q_pos, k_pos, self._of)
        ahead = distance(q_pos, k_pos)
        away = ahead.abs().unsqueeze(-3).float()
        slope_H11 = torch.tensor(slopes(self.site.heads), device=away.device).view(-1, 1, 1)
        return -slope_H11 * away

    def _of(self, ahead_R: Tensor) -> Float[Tensor, "H R"]:
        slope_SH1 = wide(self.logarithms).exp().unsqueeze(-1)
        away_R = ahead_R.abs().to(slope_SH1.dtype)
        before_HR = -slope_SH1[0] * away_R
        return torch.where(ahead_R > 0, -slope_SH1[-1] * away_R, before_HR)


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
