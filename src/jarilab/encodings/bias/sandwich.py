"""Sandwich: *Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis* (Chi et al. 2023),
section 6 and appendix E."""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Ge, Gt

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import angles, frequencies, of_distances
from jarilab.positions.coordinates import Positions


@final
@registry.register("sandwich")
class Sandwich(Encoding):
    """Adds to the score the product of the sinusoids of both places, `sum of cos((i - j) / base^(2k / width))` over
    width / 2 waves, divided by a number for each head, `8 h / H` for head h of 1 to H. Nothing is learned.

    It falls like a logarithm of the distance. What it is at distance 0 the softmax removes.

    width: of the sinusoids, whatever the model's; the paper has 128. base: slows the waves.
    """

    def __init__(
        self,
        site: Site,
        *,
        width: Annotated[int, Ge(2)] = 128,
        base: Annotated[float, Gt(1)] = 10000.0,
    ):
        super().__init__(site)
        self.width, self.base = width, base

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        return of_distances(q_pos, k_pos, self._of)

    def _of(self, ahead_R: Tensor) -> Float[Tensor, "H R"]:
        waves = self.width // 2
        frequency_F = frequencies(waves, self.base, 2 / self.width, ahead_R.device)
        product_R = angles(ahead_R, frequency_F).cos().sum(-1)
        head_H = torch.arange(1, self.site.heads + 1, device=ahead_R.device)
        ratio_H1 = (8 * head_H / self.site.heads).unsqueeze(-1)
        return (product_R / ratio_H1).float()
