"""Rotary position embedding on images: *Rotary Position Embedding for Vision Transformer* (Heo et al. 2024)."""

from __future__ import annotations

import math
from typing import Annotated, Literal, final

import torch
from annotated_types import Gt, Le
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Site, registry
from jarilab.encodings.numbers import frequencies, precise_on
from jarilab.encodings.rotary.rotary import Pairing, PairRotation, cosine_and_sine
from jarilab.positions.coordinates import Positions

BASES = {"axial": 100.0, "mixed": 10.0}


class PlaneRotation(PairRotation):
    """A rotation by rows and columns: of as many pairs for the ones as for the others."""

    axes = (2,)

    @staticmethod
    def components(name: str, site: Site, fraction: float) -> int:
        rotated = round(site.head_width * fraction)
        if rotated % 4 or rotated == 0:
            raise UserError(_uneven(name, site, fraction, rotated))
        return rotated


@final
@registry.register("rotary2d", "rope2d")
class Rotary2d(PlaneRotation):
    """Turns each pair of components of queries and keys by an angle that depends on row and column; the score then
    depends on how many rows and columns lie between them.

    frequencies: by how much. R components are rotated, R/2 pairs.
        axial: pairs 0 to R/4 - 1 turn by `row * base^(-4i/R)`, the others by `column * base^(-4i/R)`, as in Qwen2-VL.
        mixed: every pair of every head, in each layer, has a learned frequency for rows and one for columns, by whose
            sum it turns (RoPE-Mixed); they start out as two axes at right angles, turned at random for each head.
    base: slows the rotation. By default 100 for axial and 10 for mixed, as the paper has them.
    fraction: the share of each head that is rotated, R = fraction * E.
    pairing: half pairs component i with i + R/2, interleaved pairs 2i with 2i + 1.
    """

    def __init__(
        self,
        site: Site,
        *,
        frequencies: Literal["axial", "mixed"] = "axial",
        base: Annotated[float, Gt(1)] | None = None,
        fraction: Annotated[float, Gt(0), Le(1)] = 1.0,
        pairing: Pairing = "half",
    ):
        super().__init__(site, "rotary2d", fraction, pairing)
        self.frequencies, self.base = frequencies, base
        self.shared = frequencies == "axial"
        if frequencies == "mixed":
            self.frequency = nn.Parameter(torch.empty(site.heads, self.rotated // 2, 2))
            self.reset()

    def initial_value(
        self, name: str, parameter: Tensor, generator: torch.Generator | None
    ) -> None:
        """Of each head: `f_i (cos a, sin a)` and `f_i (-sin a, cos a)` with a random a and f_i = base^(-4i/R); the
        authors' `init_random_2d_freqs`."""
        heads = parameter.shape[0]
        share_H1 = torch.rand(heads, 1, generator=generator).to(parameter)
        turn_H1 = 2 * math.pi * share_H1
        size_F = self._falling(parameter.device).to(parameter)
        cosine_HF, sine_HF = turn_H1.cos() * size_F, turn_H1.sin() * size_F
        first_HF2 = torch.stack((cosine_HF, sine_HF), -1)
        second_HF2 = torch.stack((-sine_HF, cosine_HF), -1)
        parameter.copy_(torch.cat((first_HF2, second_HF2), 1))

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine, `(1 or B, 1 or H, L, R)`."""
        place = pos.plane().to(precise_on(pos.coordinates.device))
        if self.frequencies == "axial":
            both = place.unsqueeze(-1) * self._falling(place.device)
            angle = both.flatten(-2).unsqueeze(-3)
        else:
            frequency_H2F = self.frequency.to(place.dtype).transpose(-1, -2)
            angle = place.unsqueeze(-3) @ frequency_H2F
        if pos.unplaced is not None:
            angle = angle.masked_fill(pos.unplaced[..., None, :, None], 0.0)
        angle_BHLF = angle if angle.ndim == 4 else angle.unsqueeze(0)
        return cosine_and_sine(angle_BHLF, self.pairing)

    def _falling(self, device: torch.device) -> Float[Tensor, " F"]:
        """base^(-4i/R) for i = 0 ... R/4 - 1."""
        base = BASES[self.frequencies] if self.base is None else self.base
        return frequencies(self.rotated // 4, base, 4 / self.rotated, device)


def _uneven(name: str, site: Site, fraction: float, rotated: int) -> str:
    """Expected, got, and the nearest thing that works."""
    head_width, heads = site.head_width, site.heads
    works = max(4, 4 * round(rotated / 4))
    start = f"{name} rotates pairs by rows and pairs by columns, so a multiple of 4 components: "
    if fraction < 1 and works <= head_width:
        share = works / head_width
        return f"{start}fraction={fraction:g} of the head width {head_width} is {rotated}; use fraction={share:g}"
    better = max(4, 4 * math.ceil(head_width / 4))
    below = 4 * (head_width // 4)
    other = f", or fraction={below / head_width:g}" if below else ""
    wrong = f"got {rotated} (width {site.width}, {heads} heads)"
    return f"{start}{wrong}; use width {better * heads}{other}"
