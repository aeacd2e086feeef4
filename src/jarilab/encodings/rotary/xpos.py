"""Extrapolatable position embedding: *A Length-Extrapolatable Transformer* (Sun et al. 2022), section 3 and table 2."""

from __future__ import annotations

from typing import Annotated, final

import torch
from annotated_types import Gt

from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import ASKED, Encoding, Side, Site, registry
from jarilab.encodings.numbers import angles, frequencies
from jarilab.encodings.rotary.rotary import Pairing, check_pairs, of_components, turned
from jarilab.positions.coordinates import Positions

START = 0.4  # the authors' gamma: the fastest pair decays most, but not to nothing at once


@final
@registry.register("xpos")
class XPos(Encoding):
    """Rotary whose scores decay with distance, fast pairs first: a query at p is also multiplied by
    `zeta_i^(p / decay)` and a key by `zeta_i^(-p / decay)`, so that their product has `zeta_i^(distance / decay)`.

    It grows where a key lies ahead of its query, so it works only where none does. Powers are counted from the middle
    of the keys, which changes no product and keeps them finite up to distances of about 70 times `decay`.

    decay: zeta_i^1 is reached at this distance; the paper has 512. base, pairing: as rotary's.
    """

    causal_only = True
    keeps_norms = False

    def __init__(
        self,
        site: Site,
        *,
        decay: Annotated[float, Gt(0)] = 512.0,
        base: Annotated[float, Gt(1)] = 10000.0,
        pairing: Pairing = "half",
    ):
        super().__init__(site)
        check_pairs("xpos", site)
        self.decay, self.base = decay, base
        self.pairing: Pairing = pairing

    def rotation(
        self, pos: Positions, *, side: Side = ASKED, keys: Positions = ASKED
    ) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine times the power, `(1 or B, 1, L, E)`."""
        index, pairs = pos.index(), self.site.head_width // 2
        frequency_F = frequencies(pairs, self.base, 1 / pairs, index.device)
        angle_LF = angles(index, frequency_F)
        share_F = torch.arange(pairs, device=index.device, dtype=angle_LF.dtype) / pairs
        zeta_F = (share_F + START) / (1 + START)
        sign = 1 if side == "query" else -1
        far_L = (index - _middle(keys)).to(angle_LF.dtype)
        power_LF = zeta_F ** (sign * far_L.unsqueeze(-1) / self.decay)
        if pos.unplaced is not None:
            nowhere = pos.unplaced.unsqueeze(-1)
            angle_LF, power_LF = (
                angle_LF.masked_fill(nowhere, 0.0),
                power_LF.masked_fill(nowhere, 1.0),
            )
        shared = angle_LF.ndim == 2
        angle_BHLF = angle_LF[None, None] if shared else angle_LF[:, None]
        power_BHLF = power_LF[None, None] if shared else power_LF[:, None]
        cosine, sine = angle_BHLF.cos() * power_BHLF, angle_BHLF.sin() * power_BHLF
        return of_components(cosine, sine, self.pairing)

    def rotate(
        self, x: Float[Tensor, "B H L E"], rotation: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "B H L E"]:
        return turned(x, rotation, self.site.head_width, self.pairing)


def _middle(keys: Positions) -> Tensor:
    """The place between the first and the last key, of each row; whole, so that it costs no precision."""
    index = keys.index()
    if keys.length == 0:
        return index.new_zeros(())
    first, last = index.amin(-1, keepdim=True), index.amax(-1, keepdim=True)
    return ((first + last) / 2).round()
