"""Rotary position embedding: *RoFormer* (Su et al. 2021), equations 14 to 16."""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from annotated_types import Gt, Le

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import angles, frequencies
from jarilab.positions.coordinates import Positions

Pairing = Literal["half", "interleaved"]


class PairRotation(Encoding):
    """What all encodings that turn pairs of components share: which components, and the turning. `rotation` of each
    says by how much.

    name: what messages call it. fraction: the share of each head that is rotated. pairing: as rotary's.
    """

    def __init__(self, site: Site, name: str, fraction: float, pairing: Pairing):
        super().__init__(site)
        self.fraction = fraction
        self.pairing: Pairing = pairing
        self.rotated = self.components(name, site, fraction)

    def rotate(
        self, x: Float[Tensor, "B H L E"], rotation: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "B H L E"]:
        return turned(x, rotation, self.rotated, self.pairing)

    @staticmethod
    def components(name: str, site: Site, fraction: float) -> int:
        """R, the components of a head that form pairs. Raises UserError for an odd number of them, or none."""
        rotated = round(site.head_width * fraction)
        if rotated % 2 or rotated == 0:
            raise UserError(_uneven(name, site, fraction, rotated))
        return rotated


@final
@registry.register("rotary", "rope")
class Rotary(PairRotation):
    """Turns pair i of a query or key at position p by the angle `p * base^(-2i/R)`; the score then depends on distance.

    pairing: which two of the R rotated components form a pair.
        half: i and i + R/2, as GPT-NeoX and the LLaMA of the transformers library have it.
        interleaved: 2i and 2i + 1, as GPT-J, CodeGen and Meta's LLaMA weights have it.
    base: slows the rotation; Llama 3 uses 500000.
    fraction: the share of each head that is rotated, R = fraction * E; GPT-NeoX rotates 0.25, GPT-J 64 of 256.
    """

    def __init__(
        self,
        site: Site,
        *,
        base: Annotated[float, Gt(1)] = 10000.0,
        fraction: Annotated[float, Gt(0), Le(1)] = 1.0,
        pairing: Pairing = "half",
    ):
        super().__init__(site, "rotary", fraction, pairing)
        self.base = base

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine, `(1 or B, 1, L, R)`: `rotate` is then `x * cosine + partner(x) * sine`."""
        frequency_F = falling(self.rotated, self.base, pos.coordinates.device)
        return by_frequency(pos, frequency_F, self.pairing)


def falling(
    rotated: int, base: float | Float[Tensor, "*R 1"], device: torch.device
) -> Float[Tensor, "*R F"]:
    """The frequencies of RoFormer's pairs, from fast to slow: base^(-2i/R), `(F,)`; a base for each row gives each row
    its own, `(B, 1, F)`."""
    return frequencies(rotated // 2, base, 2 / rotated, device)


def by_frequency(
    pos: Positions, frequency_F: Float[Tensor, "*R F"], pairing: Pairing, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """What pairs are turned by that turn with these frequencies, `(F,)`, or `(B, 1, F)` where rows differ."""
    return by_angle(pos, angles(pos.index(), frequency_F), pairing, factor)


def by_angle(
    pos: Positions, angle_LF: Float[Tensor, "*B L F"], pairing: Pairing, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """What pairs are turned by these angles and multiplied by `factor`: nothing of both for tokens without a place."""
    shared = angle_LF.ndim == 2
    angle_BHLF = angle_LF[None, None] if shared else angle_LF[:, None]
    cosine, sine = angle_BHLF.cos() * factor, angle_BHLF.sin() * factor
    if pos.unplaced is not None:
        nowhere = pos.unplaced[..., None, :, None]
        cosine, sine = cosine.masked_fill(nowhere, 1.0), sine.masked_fill(nowhere, 0.0)
    return of_components(cosine.float(), sine.float(), pairing)


def cosine_and_sine(angle: Float[Tensor, "*B L F"], pairing: Pairing) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine of F pairs for their 2 F components: what `turned` takes."""
    return of_components(angle.cos().float(), angle.sin().float(), pairing)


def of_components(
    cosine: Float[Tensor, "*B L F"], sine: Float[Tensor, "*B L F"], pairing: Pairing
) -> tuple[Tensor, Tensor]:
    """What F pairs are turned by, for their 2 F components."""
    signed = (-sine, sine)
    if pairing == "half":
        return torch.cat((cosine, cosine), -1), torch.cat(signed, -1)
    return cosine.repeat_interleave(2, -1), torch.stack(signed, -1).flatten(-2)


def turned(
    x: Float[Tensor, "B H L E"], rotation: tuple[Tensor, Tensor], rotated: int, pairing: Pairing
) -> Float[Tensor, "B H L E"]:
    """The first `rotated` components of `x`, paired and turned, and the others as they are."""
    cosine, sine = rotation[0].to(x.dtype), rotation[1].to(x.dtype)
    x_BHLE = x.contiguous()  # heads before positions, so that the broadcast runs over whole rows
    width = x.shape[-1]
    if rotated == width:
        return _turned(x_BHLE, cosine, sine, pairing)
    moved_BHLR, rest = x_BHLE.split((rotated, width - rotated), -1)
    moved_BHLR = _turned(moved_BHLR, cosine, sine, pairing)
    return torch.cat((moved_BHLR, rest), -1)


def _turned(x_BHLR: Tensor, cosine: Tensor, sine: Tensor, pairing: Pairing) -> Tensor:
    if pairing == "half":
        partner_BHLR = x_BHLR.roll(x_BHLR.shape[-1] // 2, -1)
    else:
        pairs_BHLF2 = x_BHLR.unflatten(-1, (-1, 2))
        partner_BHLR = pairs_BHLF2.flip(-1).flatten(-2)
    return torch.addcmul(x_BHLR * cosine, partner_BHLR, sine)


def check_several_pairs(name: str, site: Site, rotated: int) -> None:
    """Raises UserError for an encoding that slows the slowest pair and not the fastest, where there is only one."""
    if rotated == 2:
        raise UserError(
            f"{name} slows the slowest pair and not the fastest, so it needs two pairs or more; got one (width "
            f"{site.width}, {site.heads} heads); use width {4 * site.heads}"
        )


def check_pairs(name: str, site: Site) -> None:
    """Raises UserError for an encoding that turns all components of a head, and an odd number of them."""
    if site.head_width % 2:
        even = site.head_width + 1
        raise UserError(
            f"{name} rotates pairs, so it needs an even head width; got {site.head_width} (width {site.width}, "
            f"{site.heads} heads); use width {even * site.heads}"
        )


def _uneven(name: str, site: Site, fraction: float, rotated: int) -> str:
    """Expected, got, and the nearest thing that works."""
    head_width, heads = site.head_width, site.heads
    if fraction < 1 and head_width > 1:
        works = max(2, 2 * round(head_width * fraction / 2))
        return (
            f"{name} rotates pairs, so an even number of components: fraction={fraction:g} of the head width "
            f"{head_width} is {rotated}; use fraction={works / head_width:g}"
        )
    better = 2 * max(1, round(head_width / 2 + 0.25))
    below = (head_width - 1) / head_width
    other = f", or fraction={below:g}" if head_width > 1 else ""
    return (
        f"{name} needs an even head width; got {head_width} (width {site.width}, {heads} heads); "
        f"use width {better * heads}{other}"
    )
