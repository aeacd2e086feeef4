"""Dynamic position bias: *CrossFormer* (Wang et al. 2022), section 3.2, on the logarithm of distances of *Swin
Transformer V2* (Liu et al. 2022), equation 4."""

from __future__ import annotations

import itertools
from typing import Annotated, final

from annotated_types import Ge
from torch import nn
from torch.nn import functional

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import of_distances, uncast, wide
from jarilab.positions.coordinates import Positions


@final
@registry.register("dynamic_bias", "dynamic-bias", "continuous_bias")
class DynamicBias(Encoding):
    """Adds to the score a small network of the distance, `MLP(sign(d) log(1 + |d|))`, one output for each head, so that
    any distance has a bias, whole or not. One network for all layers.

    hidden: width of its hidden layers, SiLU in them. depth: how many of them. logarithm: of the distance, or the
        distance itself.
    """

    def __init__(
        self,
        site: Site,
        *,
        hidden: Annotated[int, Ge(1)] = 32,
        depth: Annotated[int, Ge(1)] = 2,
        logarithm: bool = True,
    ):
        super().__init__(site)
        self.hidden, self.depth, self.logarithm = hidden, depth, logarithm
        widths = [1, *[hidden] * depth]
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)
        # Without a bias of its own: what is added to all keys the softmax removes.
        self.out = nn.Linear(hidden, site.heads, bias=False)
        self.reset()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        with uncast(q_pos.coordinates.device):
            return of_distances(q_pos, k_pos, self._of)

    def _of(self, ahead_R: Tensor) -> Float[Tensor, "H R"]:
        out_HF = wide(self.out.weight)
        x_RF = ahead_R.to(out_HF.dtype).unsqueeze(-1)
        if self.logarithm:
            x_RF = x_RF.sign() * x_RF.abs().log1p()
        for layer in self.layers:
            weight, offset = wide(layer.weight), wide(layer.bias)  # type: ignore[arg-type]
            x_RF = functional.silu(functional.linear(x_RF, weight, offset))
        return out_HF @ x_RF.t()
