"""FIRE: *Functional Interpolation for Relative Positions Improves Long Context Transformers* (Li et al. 2024), section
3.2, and the code of its appendix."""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Ge, Gt
from torch import nn
from torch.nn import functional

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.by_distance import AffineBias, RankOneBias
from jarilab.encodings.numbers import freed, of_distances, positive, precise_on, uncast, wide
from jarilab.positions.coordinates import Positions, distance, unrelated


@final
@registry.register("fire")
class Fire(Encoding):
    """Adds to the score a network of how far a key lies behind in proportion to how far it could:
    `MLP(psi(i - j) / psi(max(L, i)))` with `psi(x) = log(c x + 1)`, c and L learned.

    The query's place i says how far a key could lie behind, so that what is far stays between 0 and 1 at any length;
    up to L the distance alone counts. Moving both therefore changes something, and i is counted from 0. Defined where
    queries never see later keys. c and L are kept positive by softplus, where the authors take absolute values.

    hidden: width of the network's one hidden layer, ReLU in it. length: L at the start. slope: c at the start. shared:
        one network for all layers, the paper's FIRE-S, in place of one for each.
    """

    shift_invariant = False
    causal_only = True
    cross = False

    def __init__(
        self,
        site: Site,
        *,
        hidden: Annotated[int, Ge(1)] = 32,
        length: Annotated[float, Gt(0)] = 512.0,
        slope: Annotated[float, Gt(0)] = 0.1,
        shared: bool = False,
    ):
        super().__init__(site)
        self.hidden, self.length, self.slope = hidden, length, slope
        self.shared = shared
        self.inner = nn.Linear(1, hidden)
        # Without a bias of its own: what is added to all keys the softmax removes.
        self.outer = nn.Linear(hidden, site.heads, bias=False)
        self.free_slope = nn.Parameter(torch.empty(()))
        # Times `length`, so that a step of the optimizer moves it as much as the others.
        self.free_share = nn.Parameter(torch.empty(()))
        self.reset()

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        if name == "free_slope":
            parameter.fill_(freed(self.slope))
        elif name == "free_share":
            parameter.fill_(freed(1.0))
        else:
            super().initial_value(name, parameter, generator)

    def threshold(self) -> Float[Tensor, ""]:
        """L."""
        return self.length * positive(self.free_share)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        with uncast(q_pos.coordinates.device):
            return self._of_pairs(q_pos, k_pos)

    def _of_pairs(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        threshold = self.threshold()
        place = q_pos.index().to(precise_on(q_pos.coordinates.device))
        if not torch.compiler.is_compiling() and bool((place <= threshold).all()):
            return of_distances(q_pos, k_pos, lambda ahead_R: self._of(ahead_R, threshold))
        ahead = distance(q_pos, k_pos)
        farthest = torch.maximum(place.to(threshold.dtype), threshold).unsqueeze(-1)
        bias_HR = self._of(ahead.flatten(), farthest.expand(ahead.shape).flatten())
        bias = bias_HR.unflatten(1, ahead.shape).movedim(0, -3)
        apart = unrelated(q_pos, k_pos)
        return bias if apart is None else bias.masked_fill(apart.unsqueeze(-3), 0.0)

    def _of(self, ahead_R: Tensor, farthest: Tensor) -> Float[Tensor, "H R"]:
        share_R = self._psi(ahead_R.abs()) / self._psi(farthest)
        into_RF = share_R.unsqueeze(-1) * wide(self.inner.weight).t() + wide(self.inner.bias)
        return wide(self.outer.weight) @ into_RF.relu().t()

    def affine_bias(self, q_pos: Positions, first: int, last: int) -> AffineBias:
        """What a unit of the network gives is linear where it is not 0, and at most distances it is 0 for all these
        queries or for none. There `MLP` is `near * psi(d) / psi(i) + level`, of sums over the units that are not 0.
        Only where a unit begins at one query and not at another is it asked for each pair.
        """
        device = q_pos.coordinates.device
        with uncast(device):
            threshold = self.threshold()
            place_Q = q_pos.index().to(precise_on(device))
            away_D = torch.arange(first, last + 1, device=device).abs()
            if bool(place_Q[-1] <= threshold):
                return AffineBias(self._of(away_D, threshold))
            psi_D = self._psi(away_D)
            farthest_Q = torch.maximum(place_Q.to(threshold.dtype), threshold)
            return self._in_proportion(psi_D, 1 / self._psi(farthest_Q))

    def _in_proportion(self, psi_D: Tensor, inverse_Q: Tensor) -> AffineBias:
        slope_F, begin_F = wide(self.inner.weight)[:, 0], wide(self.inner.bias)
        outer_HF = wide(self.outer.weight)
        with torch.no_grad():
            edges = torch.stack((inverse_Q.min(), inverse_Q.max()))
            into_EFD = edges.view(2, 1, 1) * (slope_F[:, None] * psi_D) + begin_F[:, None]
            first_FD, second_FD = into_EFD > 0
            on_FD = (first_FD & second_FD).to(psi_D.dtype)
            moves = _runs(first_FD != second_FD)
        near_HD = (outer_HF * slope_F) @ on_FD * psi_D
        level_HD = (outer_HF * begin_F) @ on_FD
        more = []
        for unit, some in moves:
            share_QD = inverse_Q.unsqueeze(-1) * psi_D[some]
            active_QD = (slope_F[unit] * share_QD + begin_F[unit]).relu()
            more.append(RankOneBias(some, outer_HF[:, unit], active_QD))
        return AffineBias(level_HD, inverse_Q, near_HD, more)

    def _psi(self, x: Tensor) -> Tensor:
        slope = positive(self.free_slope)
        return (slope * x.to(slope.dtype)).log1p()


def _runs(true_FD: Tensor) -> list[tuple[int, slice]]:
    """Rows, and where they are True without a gap."""
    edges_FD = functional.pad(true_FD.to(torch.int8), (1, 1)).diff(dim=1)
    begins, ends = ((edges_FD == edge).nonzero().tolist() for edge in (1, -1))
    return [(row, slice(begin, end)) for (row, begin), (_, end) in zip(begins, ends, strict=True)]
