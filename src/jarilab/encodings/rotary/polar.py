"""PoPE: components of queries and keys as points in polar coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, final

import torch
from annotated_types import Gt
from torch import Generator, nn

from jarilab.core.shapes import Bool, Float, Tensor
from jarilab.encodings.base import PROVIDED, Encoding, Site, registry
from jarilab.encodings.numbers import angles, frequencies, zero_out
from jarilab.positions.coordinates import Positions, undefined_pairs


@dataclass(frozen=True, eq=False)
class PolarAngles:
    """Cosines, then sines, of the angles of all components.

    q_waves: of queries, `(*B, 1, Q, 2E)`. k_waves: of keys, `(*B, H, K, 2E)`, with the phases of each head. excluded:
    True for pairs in which a token has no position.
    """

    q_waves: Float[Tensor, "*X 1 Q F"]
    k_waves: Float[Tensor, "*Y H K F"]
    excluded: Bool[Tensor, "*B Q K"] | None


@final
@registry.register("pope", "polar")
class Pope(Encoding):
    """Replaces q.k by `sum_e softplus(q_e) softplus(k_e) cos((j - i) base^(-e/E) + phase_e)`.

    The magnitude of a component is content and never negative; its angle is position alone. In rotary the angle of a
    pair depends on both. The phases are learned for each head, between -2 pi and 0. For tokens without a position q.k
    does not change.

    Source: PoPE: *Decoupling the "What" and "Where" With Polar Coordinate Positional Embeddings* (Gopalakrishnan et al.
    2025), as x-transformers has it.

    base: of the frequencies; a larger one rotates more slowly.
    """

    def __init__(self, site: Site, *, base: Annotated[float, Gt(1)] = 10000.0):
        super().__init__(site)
        self.base = base
        self.phase = nn.Parameter(torch.empty(site.n_heads, site.d_head))
        self.reset()

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        nn.init.zeros_(parameter)

    def relation(self, q_pos: Positions, k_pos: Positions) -> PolarAngles:
        q_angle, k_angle = self._angles(q_pos), self._angles(k_pos)
        phase_H1E = self.phase.clamp(-2 * math.pi, 0.0).unsqueeze(1)
        k_angle = k_angle + phase_H1E.to(k_angle.dtype)
        return PolarAngles(_waves(q_angle), _waves(k_angle), undefined_pairs(q_pos, k_pos))

    def _angles(self, pos: Positions) -> Float[Tensor, "*B 1 L E"]:
        index, width = pos.index(), self.site.d_head
        frequency_E = frequencies(width, self.base, 1 / width, index.device)
        return angles(index, frequency_E).unsqueeze(-3)

    def terms(
        self,
        q: Float[Tensor, "B H Q E"],
        k: Float[Tensor, "B H K E"],
        relation: PolarAngles,
        *,
        product: Float[Tensor, "B H Q K"] = PROVIDED,
    ) -> Float[Tensor, "B H Q K"]:
        q_polar, k_polar = _to_cartesian(q, relation.q_waves), _to_cartesian(k, relation.k_waves)
        # The attention adds q.k, which these terms replace.
        terms_BHQK = q_polar @ k_polar.transpose(-1, -2) - product
        return zero_out(terms_BHQK, relation.excluded)


def _waves(angle: Tensor) -> Tensor:
    return torch.cat((angle.cos(), angle.sin()), -1).float()


def _to_cartesian(x: Tensor, waves: Tensor) -> Tensor:
    """Cartesian coordinates of components with magnitude softplus(x)."""
    magnitude = nn.functional.softplus(x)
    return torch.cat((magnitude, magnitude), -1) * waves.to(x.dtype)
