"""The log-spaced continuous position bias: *Swin Transformer V2* (Liu et al. 2022), section 3.3, and its code."""

from __future__ import annotations

import math
from typing import Annotated, final

import torch
from annotated_types import Ge
from torch import nn
from torch.nn import functional

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import precise_on
from jarilab.positions.coordinates import Positions, offsets, unrelated

REACH = 8.0  # the largest offset is scaled to this before the logarithm
LARGEST = 8.0  # a bias lies between this and its negative


@final
@registry.register("continuous_bias2d", "cpb", "swinv2", "swin_v2")
class ContinuousBias2d(Encoding):
    """Adds to the score of each head a number between -8 and 8 that a small network makes of how many rows and columns
    lie between query and key, counted on a logarithmic scale: offsets that training never had are near ones that it
    had. One network for all layers.

    The authors' `16 sigmoid(x)` is `8 tanh(x / 2)` and 8 more, which changes no softmax and costs bfloat16 precision.
    Tokens without a place get no bias: 0, neither near nor far.

    rows, columns: the largest offsets of the grids in training, a grid of h x w has h - 1 and w - 1; larger ones work.
        Windows of 8 x 8, which Swin V2 begins with, have 7.
    hidden: width of the network's hidden layer.
    """

    axes = (2,)

    def __init__(
        self,
        site: Site,
        *,
        rows: Annotated[int, Ge(1)] = 7,
        columns: Annotated[int, Ge(1)] = 7,
        hidden: Annotated[int, Ge(1)] = 512,
    ):
        super().__init__(site)
        self.rows, self.columns, self.hidden = rows, columns, hidden
        self.first = nn.Linear(2, hidden)
        self.last = nn.Linear(hidden, site.heads, bias=False)
        self.reset()

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        if name == "last.weight":
            nn.init.normal_(
                parameter, std=0.02, generator=generator
            )  # as the authors: hardly any bias at first

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        down, right = offsets(q_pos, k_pos)
        whole = not down.is_floating_point() and not torch.compiler.is_compiling()
        bias = self._by_offset(down, right) if whole else self._of(down, right).movedim(-1, -3)
        apart = unrelated(q_pos, k_pos)
        return bias if apart is None else bias.masked_fill(apart.unsqueeze(-3), 0.0)

    def _by_offset(self, down: Tensor, right: Tensor) -> Float[Tensor, "*B H Q K"]:
        """The network once for each offset of a grid: far fewer than pairs of tokens, where these fill the grid."""
        if not down.numel():
            return self._of(down, right).movedim(-1, -3)
        most_down, most_right = int(down.abs().max()), int(right.abs().max())
        offsets_in_grid = (2 * most_down + 1) * (2 * most_right + 1)
        if offsets_in_grid > down.numel():  # a few tokens that stand far apart
            return self._of(down, right).movedim(-1, -3)
        each_down = torch.arange(-most_down, most_down + 1, device=down.device)
        each_right = torch.arange(-most_right, most_right + 1, device=down.device)
        bias_RH = self._of(*torch.meshgrid(each_down, each_right, indexing="ij")).flatten(0, 1)
        # The gradient of picking whole columns is cheap, that of a lookup for every pair is not.
        bias_HR = bias_RH.t().contiguous()
        row, column = down + most_down, right + most_right
        picked = (row * len(each_right) + column).flatten()
        found = bias_HR.index_select(1, picked).view(-1, *down.shape)
        return found.movedim(0, -3)

    def _of(self, down: Tensor, right: Tensor) -> Float[Tensor, "*P H"]:
        """What the network makes of offsets, in float32 or better: in bfloat16 a number near 8 would be off by 0.03."""
        share = torch.stack((down, right), -1).to(precise_on(down.device))
        share = share / share.new_tensor((self.rows, self.columns)) * REACH
        coordinate = share.sign() * (1 + share.abs()).log2() / math.log2(REACH)
        dtype = torch.promote_types(self.first.weight.dtype, torch.float32)
        with torch.autocast(down.device.type, enabled=False):
            first, bias, last = self.first.weight, self.first.bias, self.last.weight
            hidden = functional.linear(coordinate.to(dtype), first.to(dtype), bias.to(dtype)).relu()
            logit = functional.linear(hidden, last.to(dtype))
        return LARGEST * (logit / 2).tanh()
