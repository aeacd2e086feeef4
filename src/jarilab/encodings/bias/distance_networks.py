"""Biases that a small network computes from the distance: CrossFormer's, FIRE and Swin V2's."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, final

import torch
from annotated_types import Ge, Gt
from torch import Generator, nn
from torch.nn import functional

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.distance_forms import AffineBias, RankOneBias
from jarilab.encodings.numbers import (
    at_least_float32,
    best_float_dtype,
    bias_by_distance,
    inverse_softplus,
    softplus,
    without_autocast,
    zero_out,
)
from jarilab.positions.coordinates import Positions, distance, offsets, undefined_pairs

SWIN_RANGE = 8.0  # Swin V2 scales the largest offset to this before the logarithm
SWIN_MAX_BIAS = 8.0  # a bias of Swin V2 lies between this and its negative


@final
@registry.register("dynamic_bias", "dynamic-bias", "continuous_bias")
class DynamicBias(Encoding):
    """Adds a small network of the distance d = j - i to the score: `MLP(sign(d) log(1 + |d|))`.

    The network has one output per head and serves all layers. Any distance has a bias, integer or not.

    Source: Dynamic position bias: *CrossFormer* (Wang et al. 2022), section 3.2, on the logarithm of distances of *Swin
    Transformer V2* (Liu et al. 2022), equation 4.

    hidden: width of the hidden layers, which have SiLU. depth: number of hidden layers. logarithm: of the distance, or
        the distance itself.
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
        widths = itertools.pairwise([1, *[hidden] * depth])
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in widths)
        # Without an offset: the softmax cancels what is added to all keys.
        self.out = nn.Linear(hidden, site.n_heads, bias=False)
        self.reset()

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        with without_autocast(q_pos.coordinates.device):
            return bias_by_distance(q_pos, k_pos, self._bias_of)

    def _bias_of(self, ahead_R: Tensor) -> Float[Tensor, "H R"]:
        out_HF = at_least_float32(self.out.weight)
        x_RF = ahead_R.to(out_HF.dtype).unsqueeze(-1)
        if self.logarithm:
            x_RF = x_RF.sign() * x_RF.abs().log1p()
        for layer in self.layers:
            weight = at_least_float32(layer.weight)  # type: ignore[arg-type]
            offset = at_least_float32(layer.bias)  # type: ignore[arg-type]
            x_RF = functional.silu(functional.linear(x_RF, weight, offset))
        return out_HF @ x_RF.t()


@final
@registry.register("fire")
class Fire(Encoding):
    """Adds a network of the distance relative to the query's position to the score.

    The bias is `MLP(psi(i - j) / psi(max(L, i)))` with `psi(x) = log(c x + 1)`, where c and L are learned and positions
    count from 0. The ratio lies between 0 and 1 at any length. Up to L the bias depends on the distance alone, beyond
    it on the position too, so moving both tokens changes it. Queries must never see later keys. c and L stay positive
    by a softplus, where the authors take absolute values.

    Source: FIRE: *Functional Interpolation for Relative Positions Improves Long Context Transformers* (Li et al. 2024),
    section 3.2, and the code of its appendix.

    hidden: width of the network's one hidden layer, which has ReLU. length: initial value of L. slope: initial value of
        c. shared: one network for all layers, the paper's FIRE-S, instead of one for each.
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
        # Without an offset: the softmax cancels what is added to all keys.
        self.outer = nn.Linear(hidden, site.n_heads, bias=False)
        self.free_slope = nn.Parameter(torch.empty(()))
        # L in units of `length`, so that a step of the optimizer moves it as much as the other parameters.
        self.free_share = nn.Parameter(torch.empty(()))
        self.reset()

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        if name == "free_slope":
            parameter.fill_(inverse_softplus(self.slope))
        elif name == "free_share":
            parameter.fill_(inverse_softplus(1.0))
        else:
            super().initial_value(name, parameter, generator)

    def threshold(self) -> Float[Tensor, ""]:
        """L."""
        return self.length * softplus(self.free_share)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        with without_autocast(q_pos.coordinates.device):
            return self._bias_of_positions(q_pos, k_pos)

    def _bias_of_positions(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        threshold = self.threshold()
        index = q_pos.index().to(best_float_dtype(q_pos.coordinates.device))
        # Up to L the bias depends on the distance alone, so the network computes each distance once. One query has as
        # many pairs as distances, and a CUDA graph of its step cannot read the data.
        by_distance = q_pos.length > 1 and not torch.compiler.is_compiling()
        if by_distance and bool((index <= threshold).all()):
            return bias_by_distance(q_pos, k_pos, lambda ahead_R: self._bias_of(ahead_R, threshold))
        ahead = distance(q_pos, k_pos)
        farthest = torch.maximum(index.to(threshold.dtype), threshold).unsqueeze(-1)
        bias_HR = self._bias_of(ahead.flatten(), farthest.expand(ahead.shape).flatten())
        bias = bias_HR.unflatten(1, ahead.shape).movedim(0, -3)
        return zero_out(bias, undefined_pairs(q_pos, k_pos))

    def _bias_of(self, ahead_R: Tensor, farthest: Tensor) -> Float[Tensor, "H R"]:
        ratio_R = self._psi(ahead_R.abs()) / self._psi(farthest)
        slope_1F = at_least_float32(self.inner.weight).t()
        hidden_RF = ratio_R.unsqueeze(-1) * slope_1F + at_least_float32(self.inner.bias)
        return at_least_float32(self.outer.weight) @ hidden_RF.relu().t()

    def affine_bias(self, q_pos: Positions, first: int, last: int) -> AffineBias:
        """The network as a function that is affine in 1 / psi(i), but for a few distances.

        At most distances the bias is `slope * psi(d) / psi(i) + level`, with sums over the active hidden units. A unit
        that is active for some of these queries only is an extra term.
        """
        device = q_pos.coordinates.device
        with without_autocast(device):
            threshold = self.threshold()
            index_Q = q_pos.index().to(best_float_dtype(device))
            distance_D = torch.arange(first, last + 1, device=device).abs()
            if bool(index_Q[-1] <= threshold):
                return AffineBias(self._bias_of(distance_D, threshold))
            psi_D = self._psi(distance_D)
            farthest_Q = torch.maximum(index_Q.to(threshold.dtype), threshold)
            return self._affine_in(psi_D, 1 / self._psi(farthest_Q))

    def _affine_in(self, psi_D: Tensor, inverse_Q: Tensor) -> AffineBias:
        slope_F = at_least_float32(self.inner.weight)[:, 0]
        offset_F = at_least_float32(self.inner.bias)
        outer_HF = at_least_float32(self.outer.weight)
        with torch.no_grad():
            # A unit is affine in 1 / psi(i) before its ReLU. Equal signs at both ends exclude a change between them.
            bounds = torch.stack((inverse_Q.min(), inverse_Q.max()))
            hidden_EFD = bounds.view(2, 1, 1) * (slope_F[:, None] * psi_D) + offset_F[:, None]
            first_FD, second_FD = hidden_EFD > 0
            active_FD = (first_FD & second_FD).to(psi_D.dtype)
            changing = _runs(first_FD != second_FD)
        slope_HD = (outer_HF * slope_F) @ active_FD * psi_D
        level_HD = (outer_HF * offset_F) @ active_FD
        extra_terms = []
        for unit, columns in changing:
            ratio_QD = inverse_Q.unsqueeze(-1) * psi_D[columns]
            unit_QD = (slope_F[unit] * ratio_QD + offset_F[unit]).relu()
            extra_terms.append(RankOneBias(columns, outer_HF[:, unit], unit_QD))
        return AffineBias(level_HD, inverse_Q, slope_HD, extra_terms)

    def _psi(self, x: Tensor) -> Tensor:
        slope = softplus(self.free_slope)
        return (slope * x.to(slope.dtype)).log1p()


def _runs(mask_FD: Tensor) -> list[tuple[int, slice]]:
    """Each run of consecutive True values in a row, as the row's number and a slice."""
    edges_FD = functional.pad(mask_FD.to(torch.int8), (1, 1)).diff(dim=1)
    starts, stops = ((edges_FD == edge).nonzero().tolist() for edge in (1, -1))
    return [
        (row, slice(start, stop)) for (row, start), (_, stop) in zip(starts, stops, strict=True)
    ]


@final
@registry.register("continuous_bias2d", "cpb", "swinv2", "swin_v2")
class ContinuousBias2d(Encoding):
    """Adds a small network of the offset in rows and columns to the score, between -8 and 8.

    Offsets are on a logarithmic scale, so that offsets beyond those of training are near ones of training. One network
    serves all layers. Tokens without a position have no bias.

    Source: The log-spaced continuous position bias: *Swin Transformer V2* (Liu et al. 2022), section 3.3, and its code.

    rows, columns: the largest offsets of the grids in training, h - 1 and w - 1 for a grid of h x w; larger ones work.
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
        self.last = nn.Linear(hidden, site.n_heads, bias=False)
        self.reset()

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        if name == "last.weight":
            # As the authors: biases start near 0.
            nn.init.normal_(parameter, std=0.02, generator=generator)

    def bias(self, q_pos: Positions, k_pos: Positions) -> Float[Tensor, "*B H Q K"]:
        down, right = offsets(q_pos, k_pos)
        by_offset = not down.is_floating_point() and not torch.compiler.is_compiling()
        compute = self._bias_by_offset if by_offset else self._bias_of_pairs
        bias = compute(down, right)
        return zero_out(bias, undefined_pairs(q_pos, k_pos))

    def _bias_by_offset(self, down: Tensor, right: Tensor) -> Float[Tensor, "*B H Q K"]:
        """The bias, from one evaluation of the network for each offset that a grid can have."""
        if not down.numel():
            return self._bias_of_pairs(down, right)
        max_down, max_right = int(down.abs().max()), int(right.abs().max())
        offset_count = (2 * max_down + 1) * (2 * max_right + 1)
        if offset_count > down.numel():  # a few tokens far from each other
            return self._bias_of_pairs(down, right)
        downs = torch.arange(-max_down, max_down + 1, device=down.device)
        rights = torch.arange(-max_right, max_right + 1, device=down.device)
        bias_RH = self._bias_of(*torch.meshgrid(downs, rights, indexing="ij")).flatten(0, 1)
        # The gradient of selecting whole columns is cheap, that of a lookup for each pair is not.
        bias_HR = bias_RH.t().contiguous()
        row, column = down + max_down, right + max_right
        columns = (row * len(rights) + column).flatten()
        return bias_HR.index_select(1, columns).view(-1, *down.shape).movedim(0, -3)

    def _bias_of_pairs(self, down: Tensor, right: Tensor) -> Float[Tensor, "*B H Q K"]:
        return self._bias_of(down, right).movedim(-1, -3)

    def _bias_of(self, down: Tensor, right: Tensor) -> Float[Tensor, "*P H"]:
        """The network's output, in float32 or better: in bfloat16 a number near 8 would be off by 0.03."""
        offset = torch.stack((down, right), -1).to(best_float_dtype(down.device))
        offset = offset / offset.new_tensor((self.rows, self.columns)) * SWIN_RANGE
        coordinate = offset.sign() * (1 + offset.abs()).log2() / math.log2(SWIN_RANGE)
        dtype = torch.promote_types(self.first.weight.dtype, torch.float32)
        with without_autocast(down.device):
            first, bias, last = self.first.weight, self.first.bias, self.last.weight
            hidden = functional.linear(coordinate.to(dtype), first.to(dtype), bias.to(dtype)).relu()
            logit = functional.linear(hidden, last.to(dtype))
        # The authors' `16 sigmoid(x)` is this plus 8. The constant changes no softmax and costs precision in bfloat16.
        return SWIN_MAX_BIAS * (logit / 2).tanh()
