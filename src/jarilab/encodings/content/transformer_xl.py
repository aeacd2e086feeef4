"""Transformer-XL's scores of content and distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import torch
from annotated_types import Gt
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.distance_forms import DistanceVectors, VectorTable
from jarilab.encodings.numbers import angles, frequencies, zero_out
from jarilab.positions.coordinates import Positions, undefined_pairs

# Distances between those whose sine is computed. It changes no number by more than its last digit in float64.
STEP = 64


@dataclass(frozen=True, eq=False)
class Waves:
    """Cosine and sine of position times frequency.

    q_cosine, q_sine: of queries, `(*B, 1, Q, F)`. k_cosine, k_sine: of keys, `(*B, 1, K, F)`. excluded: True for pairs
    in which a token has no position.
    """

    q_cosine: Float[Tensor, "*B 1 Q F"]
    q_sine: Float[Tensor, "*B 1 Q F"]
    k_cosine: Float[Tensor, "*B 1 K F"]
    k_sine: Float[Tensor, "*B 1 K F"]
    excluded: Bool[Tensor, "... Q K"] | None


@final
@registry.register("transformer_xl", "transformer-xl", "txl")
class TransformerXL(Encoding):
    """Adds `u.k + (q + v).W_R r(i - j)` to q.k before scaling, where r is a sinusoid of the distance.

    `u.k` is a bias for the content of the key, `(q + v).W_R r(i - j)` the query's product with the distance. r has
    sines first. u and v are learned for each head and shared by the layers; each layer has its own W_R.

    Source: Transformer-XL's relative positions: *Transformer-XL* (Dai et al. 2019), section 3.3.

    base: of the frequencies; a larger one slows the waves.
    """

    shared = False
    shared_parameters = ("u", "v")

    def __init__(self, site: Site, *, base: Annotated[float, Gt(1)] = 10000.0):
        super().__init__(site)
        if site.d_model % 2:
            raise UserError(
                f"transformer_xl has as many sines as cosines: expected an even width, got {site.d_model}; use "
                f"d_model={site.d_model + 1}"
            )
        self.base = base
        self.u = nn.Parameter(torch.empty(site.n_heads, site.d_head))
        self.v = nn.Parameter(torch.empty(site.n_heads, site.d_head))
        self.position = nn.Linear(site.d_model, site.n_heads * site.d_head, bias=False)
        self.reset()

    def relation(self, q_pos: Positions, k_pos: Positions) -> Waves:
        excluded = undefined_pairs(q_pos, k_pos)
        return Waves(*self._waves(q_pos), *self._waves(k_pos), excluded)

    def _waves(self, pos: Positions) -> tuple[Tensor, Tensor]:
        index, count = pos.index(), self.site.d_model // 2
        frequency_F = frequencies(count, self.base, 1 / count, index.device)
        angle = angles(index, frequency_F).unsqueeze(-3)
        return angle.cos(), angle.sin()

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Waves
    ) -> Float[Tensor, "B H Q K"]:
        # The sinusoid of a difference is computed from those of both positions: this needs no tensor of Q x K vectors
        # and works for any positions.
        u_H1E, v_H1E = self.u.to(q.dtype).unsqueeze(1), self.v.to(q.dtype).unsqueeze(1)
        w_HED = self.position.weight.to(q.dtype).unflatten(0, (self.site.n_heads, -1))
        # Each query's coefficients of the sines and of the cosines of the distance.
        sine_BHQF, cosine_BHQF = ((q + v_H1E) @ w_HED).chunk(2, -1)
        q_cosine, q_sine = relation.q_cosine.to(q.dtype), relation.q_sine.to(q.dtype)
        k_waves = torch.cat((relation.k_cosine, relation.k_sine), -1).to(q.dtype)
        # sin(i - j) = sin i cos j - cos i sin j; cos(i - j) = cos i cos j + sin i sin j.
        with_cosine = sine_BHQF * q_sine + cosine_BHQF * q_cosine
        with_sine = cosine_BHQF * q_sine - sine_BHQF * q_cosine
        distance_BHQK = torch.cat((with_cosine, with_sine), -1) @ k_waves.transpose(-1, -2)
        content_BH1K = u_H1E @ k.transpose(-1, -2)
        return zero_out(distance_BHQK + content_BH1K, relation.excluded)

    def distance_vectors(self, first: int, last: int) -> DistanceVectors:
        """`W_R r` of each distance, which is faster than the waves of positions if queries and keys are many."""
        sine_RF, cosine_RF = self._waves_of_distances(-last, -first)
        waves_RD = torch.cat((sine_RF, cosine_RF), -1).flip(0).to(self.u.dtype)
        w_HED = self.position.weight.unflatten(0, (self.site.n_heads, -1))
        waves_HRD = waves_RD.expand(len(w_HED), -1, -1)
        keys = VectorTable(torch.bmm(waves_HRD, w_HED.transpose(1, 2)), first)
        return DistanceVectors(keys=keys, content_bias=self.u, position_bias=self.v)

    def _waves_of_distances(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Sine and cosine of the integer distances from `first` to `last`, `(R, F)`."""
        # From those of multiples of STEP and of the remainders: computing each would take as long as the product with
        # W_R.
        count, device = self.site.d_model // 2, self.u.device
        frequency_F = frequencies(count, self.base, 1 / count, device)
        steps = -(-(last - first + 1) // STEP)
        coarse = angles(first + STEP * torch.arange(steps, device=device), frequency_F).unsqueeze(1)
        fine = angles(torch.arange(STEP, device=device), frequency_F)
        sine = coarse.sin() * fine.cos() + coarse.cos() * fine.sin()
        cosine = coarse.cos() * fine.cos() - coarse.sin() * fine.sin()
        wanted = slice(0, last - first + 1)
        return sine.flatten(0, 1)[wanted], cosine.flatten(0, 1)[wanted]
