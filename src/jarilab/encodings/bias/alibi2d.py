"""Linear biases of distance on an image: ALiBi's slopes (Press, Smith, Lewis 2022) times a distance in the plane."""

from __future__ import annotations

from typing import Literal, final

import torch

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.bias.alibi import slopes
from jarilab.positions.coordinates import Positions, offsets


@final
@registry.register("alibi2d")
class Alibi2d(Encoding):
    """Subtracts from the score a fixed slope, one per head, times the distance between two places: `-m_h d(i, j)`.

    distance: euclidean is the straight line, manhattan the steps along rows and columns, chebyshev the larger of both.
    """

    axes = (2,)

    def __init__(
        self, site: Site, *, distance: Literal["euclidean", "manhattan", "chebyshev"] = "euclidean"
    ):
        super().__init__(site)
        self.distance = distance

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        down, right = offsets(q_pos, k_pos)
        down, right = down.abs().float(), right.abs().float()
        if self.distance == "euclidean":
            # The gradient of a root of 0 is not a number, and each object query is at distance 0 of itself.
            same = (down == 0) & (right == 0)
            away = torch.hypot(down, right.masked_fill(same, 1.0)).masked_fill(same, 0.0)
        else:
            away = down + right if self.distance == "manhattan" else torch.maximum(down, right)
        slope_H11 = torch.tensor(slopes(self.site.heads), device=away.device).view(-1, 1, 1)
        return -slope_H11 * away.unsqueeze(-3)
