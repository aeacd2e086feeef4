"""FIRE: *Functional Interpolation for Relative Positions Improves Long Context Transformers* (Li et al. 2024), section
3.2, and the code of its appendix."""

from __future__ import annotations

from typing import Annotated, Any, final

import torch
from annotated_types import Ge, Gt
from torch import nn

from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import freed, of_distances, positive, precise_on, uncast, wide
from jarilab.positions import Positions, distance, unrelated
from jarilab.shapes import Float, Tensor
from jarilab.skew import shift_of, skewed

AT_ONCE = 256
"""Queries between which few units of the network begin."""


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
        shift = shift_of(q_pos, k_pos) if 1 < q_pos.length <= AT_ONCE else None
        if shift is not None:
            return self._of_shifted(place, k_pos.length, shift, threshold)
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

    def _of_shifted(
        self, place_Q: Tensor, keys: int, shift: int, threshold: Tensor
    ) -> Float[Tensor, "H Q K"]:
        """The same for queries and keys that follow each other.

        What a unit of the network gives is linear where it is not 0, and at most distances it is 0 for all these
        queries or for none. There `MLP` is `near * psi(d) / psi(i) + level`, of sums over the units that are not 0.
        Only where a unit begins at one query and not at another is it asked for each pair.
        """
        queries = len(place_Q)
        away = torch.arange(shift - queries + 1, shift + keys, device=place_Q.device).abs()
        psi_D = self._psi(away)
        farthest_Q = torch.maximum(place_Q.to(threshold.dtype), threshold)
        inverse_Q = 1 / self._psi(farthest_Q)
        slope_F, begin_F = wide(self.inner.weight)[:, 0], wide(self.inner.bias)
        outer_HF = wide(self.outer.weight)
        with torch.no_grad():
            edges = torch.stack((inverse_Q.min(), inverse_Q.max()))
            into_EFD = edges.view(2, 1, 1) * (slope_F[:, None] * psi_D) + begin_F[:, None]
            first_FD, second_FD = into_EFD > 0
            moves_FD = first_FD != second_FD
            on_FD = (first_FD & second_FD).to(psi_D.dtype)
        near_HD = (outer_HF * slope_F) @ on_FD * psi_D
        level_HD = (outer_HF * begin_F) @ on_FD
        # near * inverse + level, in one product.
        both_H2D = torch.stack((near_HD, level_HD), 1)
        by_Q2 = torch.stack((inverse_Q, torch.ones_like(inverse_Q)), 1)
        bias_HQD = torch.bmm(by_Q2.expand(len(both_H2D), -1, -1), both_H2D)
        where, moved = [], []
        for unit in moves_FD.any(1).nonzero().flatten().tolist():
            for some in _runs(moves_FD[unit]):
                share_QD = inverse_Q.unsqueeze(-1) * psi_D[some]
                active_QD = (slope_F[unit] * share_QD + begin_F[unit]).relu()
                where.append(some)
                moved.append(outer_HF[:, unit].view(-1, 1, 1) * active_QD)
        bias_HQD = _Plus.apply(bias_HQD, where, *moved)
        return skewed(bias_HQD, keys)

    def _psi(self, x: Tensor) -> Tensor:
        slope = positive(self.free_slope)
        return (slope * x.to(slope.dtype)).log1p()


def _runs(true_D: Tensor) -> list[slice]:
    """Where it is True without a gap."""
    at = true_D.nonzero().flatten()
    ends = (at.diff() != 1).nonzero().flatten() + 1
    return [slice(int(run[0]), int(run[-1]) + 1) for run in at.tensor_split(ends)]


class _Plus(torch.autograd.Function):
    """Adds parts to some columns each, in place: each in turn would copy all columns for its gradient."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, where: list[slice], *parts: Tensor) -> Tensor:  # type: ignore[override]
        for some, part in zip(where, parts, strict=True):
            whole[..., some] += part
        ctx.where = where
        ctx.mark_dirty(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, d_whole: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return d_whole, None, *(d_whole[..., some] for some in ctx.where)
