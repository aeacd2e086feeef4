"""Transformer-XL's relative positions: *Transformer-XL* (Dai et al. 2019), section 3.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import torch
from annotated_types import Gt
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.by_distance import ByDistance, Vectors
from jarilab.encodings.numbers import angles, frequencies
from jarilab.positions.coordinates import Positions, unrelated

STEP = 64
"""Distances between those whose sine is asked for. It changes no number by more than its last digit in float64."""


@dataclass(frozen=True, eq=False)
class Waves:
    """Cosine and sine of each place times each frequency, of queries and keys `(*B, 1, L, F)`; apart: True for pairs of
    which one has no place."""

    q_cosine: Float[Tensor, "*B 1 Q F"]
    q_sine: Float[Tensor, "*B 1 Q F"]
    k_cosine: Float[Tensor, "*B 1 K F"]
    k_sine: Float[Tensor, "*B 1 K F"]
    apart: Bool[Tensor, "... Q K"] | None


@final
@registry.register("transformer_xl", "transformer-xl", "txl")
class TransformerXL(Encoding):
    """Adds to q.k, before scaling, how much any query wants the key's content, `u.k`, and how much this query wants the
    distance, `(q + v).W_R r(i - j)`, where r is the sinusoid of a distance, sines first.

    u and v are learned for each head and shared by the layers; each layer has a W_R of its own.

    The sinusoid of a difference is made of those of its ends, so that no tensor of Q x K vectors is needed and any
    places will do.

    base: slows the waves.
    """

    shared = False
    of_stack = ("u", "v")

    def __init__(self, site: Site, *, base: Annotated[float, Gt(1)] = 10000.0):
        super().__init__(site)
        if site.width % 2:
            raise UserError(
                f"transformer_xl has as many sines as cosines: expected an even width, got {site.width}"
            )
        self.base = base
        self.u = nn.Parameter(torch.empty(site.heads, site.head_width))
        self.v = nn.Parameter(torch.empty(site.heads, site.head_width))
        self.position = nn.Linear(site.width, site.heads * site.head_width, bias=False)
        self.reset()

    def relation(self, q_pos: Positions, k_pos: Positions) -> Waves:
        apart = unrelated(q_pos, k_pos)
        return Waves(*self._waves(q_pos), *self._waves(k_pos), apart)

    def _waves(self, pos: Positions) -> tuple[Tensor, Tensor]:
        index, count = pos.index(), self.site.width // 2
        frequency_F = frequencies(count, self.base, 1 / count, index.device)
        angle = angles(index, frequency_F).unsqueeze(-3)
        return angle.cos(), angle.sin()

    def terms(
        self, q: Float[Tensor, "B H Q E"], k: Float[Tensor, "B H K E"], relation: Waves
    ) -> Float[Tensor, "B H Q K"]:
        u_H1E, v_H1E = self.u.to(q.dtype).unsqueeze(1), self.v.to(q.dtype).unsqueeze(1)
        w_HED = self.position.weight.to(q.dtype).unflatten(0, (self.site.heads, -1))
        # What this query wants of each wave of the distance: of its sine, and of its cosine.
        sine_BHQF, cosine_BHQF = ((q + v_H1E) @ w_HED).chunk(2, -1)
        q_cosine, q_sine = relation.q_cosine.to(q.dtype), relation.q_sine.to(q.dtype)
        k_both = torch.cat((relation.k_cosine, relation.k_sine), -1).to(q.dtype)
        # sin(i - j) = sin i cos j - cos i sin j; cos(i - j) = cos i cos j + sin i sin j.
        with_cosine = sine_BHQF * q_sine + cosine_BHQF * q_cosine
        with_sine = cosine_BHQF * q_sine - sine_BHQF * q_cosine
        by_distance_BHQK = torch.cat((with_cosine, with_sine), -1) @ k_both.transpose(-1, -2)
        by_content_BH1K = u_H1E @ k.transpose(-1, -2)
        terms_BHQK = by_distance_BHQK + by_content_BH1K
        if relation.apart is not None:
            terms_BHQK = terms_BHQK.masked_fill(relation.apart.unsqueeze(-3), 0.0)
        return terms_BHQK

    def by_distance(self, first: int, last: int) -> ByDistance:
        """`W_R r` of each distance, which takes less than to turn each query and key once they are many."""
        sine_RF, cosine_RF = self._waves_behind(-last, -first)
        waves_RD = torch.cat((sine_RF, cosine_RF), -1).flip(0).to(self.u.dtype)
        w_HED = self.position.weight.unflatten(0, (self.site.heads, -1))
        waves_HRD = waves_RD.expand(len(w_HED), -1, -1)
        keys = Vectors(torch.bmm(waves_HRD, w_HED.transpose(1, 2)), first)
        return ByDistance(keys=keys, content_bias=self.u, position_bias=self.v)

    def _waves_behind(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Sine and cosine of whole distances: those of multiples of a step, turned by what is left, since to ask for
        each would take as long as the product with W_R."""
        count, device = self.site.width // 2, self.u.device
        frequency_F = frequencies(count, self.base, 1 / count, device)
        steps = -(-(last - first + 1) // STEP)
        coarse = angles(first + STEP * torch.arange(steps, device=device), frequency_F).unsqueeze(1)
        fine = angles(torch.arange(STEP, device=device), frequency_F)
        sine = coarse.sin() * fine.cos() + coarse.cos() * fine.sin()
        cosine = coarse.cos() * fine.cos() - coarse.sin() * fine.sin()
        wanted = slice(0, last - first + 1)
        return sine.flatten(0, 1)[wanted], cosine.flatten(0, 1)[wanted]
