"""PoPE: *Decoupling the "What" and "Where" With Polar Coordinate Positional Embeddings* (Gopalakrishnan et al. 2025),
as x-transformers has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, final

import torch
from annotated_types import Gt
from torch import nn

from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import ASKED, Encoding, Site, registry
from jarilab.encodings.numbers import angles, frequencies
from jarilab.positions.coordinates import Positions, unrelated


@dataclass(frozen=True, eq=False)
class Polar:
    """Cosine, then sine, of each component's angle, of queries `(*B, 1, Q, 2E)` and of keys, whose heads have phases of
    their own, `(*B, H, K, 2E)`; apart: True for pairs of which one has no place."""

    q_waves: Float[Tensor, "*X 1 Q F"]
    k_waves: Float[Tensor, "*Y H K F"]
    apart: Bool[Tensor, "*B Q K"] | None


@final
@registry.register("pope", "polar")
class Pope(Encoding):
    """In place of q.k, `sum_e softplus(q_e) softplus(k_e) cos((j - i) base^(-e/E) + phase_e)`: how much is wanted is a
    component's size, which is never negative, and where it is wanted is its angle alone. In rotary the angle of a pair
    has both. The phases are learned for each head, between -2 pi and 0.

    A token without a place has q.k as it is.

    base: slows the angles.
    """

    def __init__(self, site: Site, *, base: Annotated[float, Gt(1)] = 10000.0):
        super().__init__(site)
        self.base = base
        self.phase = nn.Parameter(torch.empty(site.heads, site.head_width))
        self.reset()

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        nn.init.zeros_(parameter)

    def relation(self, q_pos: Positions, k_pos: Positions) -> Polar:
        q_angle, k_angle = self._angles(q_pos), self._angles(k_pos)
        phase_H1E = self.phase.clamp(-2 * math.pi, 0.0).unsqueeze(1)
        turned = k_angle + phase_H1E.to(k_angle.dtype)
        return Polar(_waves(q_angle), _waves(turned), unrelated(q_pos, k_pos))

    def _angles(self, pos: Positions) -> Float[Tensor, "*B 1 L E"]:
        index, width = pos.index(), self.site.head_width
        frequency_E = frequencies(width, self.base, 1 / width, index.device)
        return angles(index, frequency_E).unsqueeze(-3)

    def terms(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: Polar,
        *,
        product: Float[Tensor, "B H Q K"] = ASKED,
    ) -> Float[Tensor, "B H Q K"]:
        q_polar, k_polar = _in_plane(q, relation.q_waves), _in_plane(k, relation.k_waves)
        terms_BHQK = q_polar @ k_polar.transpose(-1, -2) - product
        if relation.apart is not None:
            terms_BHQK = terms_BHQK.masked_fill(relation.apart.unsqueeze(-3), 0.0)
        return terms_BHQK


def _waves(angle: Tensor) -> Tensor:
    return torch.cat((angle.cos(), angle.sin()), -1).float()


def _in_plane(x: Tensor, waves: Tensor) -> Tensor:
    """Each component as the two coordinates of a point at its distance and angle."""
    size = nn.functional.softplus(x)
    return torch.cat((size, size), -1) * waves.to(x.dtype)
