"""Kernelised biases: *KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation* (Chi et al. 2022),
equations 2 and 3."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import nn

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import of_distances, positive, wide
from jarilab.positions.coordinates import Positions

Kernel = Literal["log", "power"]

LEAST = 0.01  # the authors' smallest parameter


@final
@registry.register("kerple")
class Kerple(Encoding):
    """Subtracts from the score `r1 log(1 + r2 |i - j|)`, or `r1 |i - j|^r2` with r2 below 2, both learned for each head
    of each layer.

    They are kept positive by softplus, and the exponent below 2 by `2 sigmoid`, where the authors clamp them at 0.01:
    a clamped one learns no more. They start as theirs do, r1 between 0 and 2 and r2 between 0 and 1, or for `power` the
    other way round.

    kernel: the logarithm, which the paper found best, or the power.
    """

    shared = False

    def __init__(self, site: Site, *, kernel: Kernel = "log"):
        super().__init__(site)
        self.kernel: Kernel = kernel
        self.free_r1 = nn.Parameter(torch.empty(site.heads))
        self.free_r2 = nn.Parameter(torch.empty(site.heads))
        self.reset()

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        nn.init.uniform_(parameter, LEAST, 1, generator=generator)
        doubled = (self.kernel, name) in (("log", "free_r1"), ("power", "free_r2"))
        value = parameter.double() * (2 if doubled else 1)
        bounded = self.kernel == "power" and name == "free_r2"
        parameter.copy_((value / 2).logit(eps=1e-6) if bounded else value.expm1().log())

    def coefficients(self) -> tuple[Float[Tensor, " H"], Float[Tensor, " H"]]:
        """r1 and r2."""
        if self.kernel == "log":
            return positive(self.free_r1), positive(self.free_r2)
        return positive(self.free_r1), 2 * wide(self.free_r2).sigmoid()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        return of_distances(q_pos, k_pos, self._of)

    def _of(self, ahead_R: Tensor) -> Float[Tensor, "H R"]:
        r1_H1, r2_H1 = (each.unsqueeze(-1) for each in self.coefficients())
        away_R = ahead_R.abs().to(r1_H1.dtype)
        if self.kernel == "log":
            return -r1_H1 * (r2_H1 * away_R).log1p()
        # The slope of a power below 1 is infinite at 0.
        here = away_R == 0
        power_HR = away_R.masked_fill(here, 1.0) ** r2_H1
        return -r1_H1 * power_HR.masked_fill(here, 0.0)
