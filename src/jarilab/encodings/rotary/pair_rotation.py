"""Encodings that rotate pairs of components: the shared base class, rotary, p-RoPE and xPos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict, Unpack, final

import torch
from annotated_types import Gt, Le

from jarilab.core.errors import UserError
from jarilab.core.options import unpack_options
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import PROVIDED, Encoding, Side, Site, registry
from jarilab.encodings.numbers import angles, frequencies
from jarilab.positions.coordinates import Positions

Pairing = Literal["half", "interleaved"]

XPOS_GAMMA = 0.4  # the authors' gamma, which bounds the decay of the fastest pair


class PairKeywords(TypedDict, total=False):
    """Options of rotary encodings that rotate all components of a head."""

    base: Annotated[float, Gt(1)]
    pairing: Pairing


class RotaryKeywords(PairKeywords, total=False):
    """Options of rotary encodings that can rotate a fraction of each head."""

    fraction: Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True)
class RotaryOptions:
    """Options that rotary encodings share.

    base: of the frequencies base^(-2i/R); a larger one rotates more slowly.

    fraction: of each head that is rotated, R = fraction * head width.

    pairing: the two of the R components that form pair i. half takes i and i + R/2, as in GPT-NeoX and the LLaMA of
    transformers. interleaved takes 2i and 2i + 1, as in GPT-J and Meta's LLaMA weights.
    """

    base: float = 10000.0
    fraction: float = 1.0
    pairing: Pairing = "half"


class PairRotation(Encoding):
    """Base class of encodings that rotate pairs of components of queries and keys.

    A subclass implements `rotation`, which returns cosine and signed sine, both `(1 or B, 1 or H, L, R)`. `rotate`
    computes `x * cosine + partner(x) * sine`, where the partner is the other component of the pair.

    name: of the encoding in messages. rotated: R, the number of components that are rotated.
    Raises UserError if the components do not form pairs.
    """

    def __init__(self, site: Site, name: str, **rotary: Unpack[RotaryKeywords]):
        super().__init__(site)
        options = RotaryOptions(**rotary)
        self.base, self.fraction = options.base, options.fraction
        self.pairing: Pairing = options.pairing
        if "fraction" not in rotary:
            _check_even(name, site)
        self.rotated = self.count_rotated(name, site, self.fraction)

    def rotate(
        self, x: Float[Tensor, "B H L E"], rotation: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "B H L E"]:
        return rotate_pairs(x, rotation, self.rotated, self.pairing)

    @staticmethod
    def count_rotated(name: str, site: Site, fraction: float) -> int:
        """R, the number of rotated components. Raises UserError if it is odd or 0."""
        rotated = round(site.d_head * fraction)
        if rotated % 2 or rotated == 0:
            raise UserError(_odd_message(name, site, fraction, rotated))
        return rotated


@final
@registry.register("rotary", "rope")
class Rotary(PairRotation):
    """Rotates pair i of a query or key at position p by the angle `p * base^(-2i/R)`.

    The score then depends on the distance between query and key. R is the number of rotated components of a head. Llama
    3 has base=500000. GPT-NeoX rotates a fraction of 0.25, GPT-J 64 of 256 components.

    Source: Rotary position embedding: *RoFormer* (Su et al. 2021), equations 14 to 16.
    """

    @unpack_options(RotaryOptions(), own_first=True)
    def __init__(self, site: Site, **rotary: Unpack[RotaryKeywords]):
        super().__init__(site, "rotary", **rotary)

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        frequency_F = rotary_frequencies(self.rotated, self.base, pos.coordinates.device)
        return rotation_by_frequency(pos, frequency_F, self.pairing)


@final
@registry.register("prope", "p-rope", "p_rope", "proportional", "rotary_proportional")
class ProportionalRotary(PairRotation):
    """Rotary that rotates only the fastest pairs of each head.

    The slowest pairs do not rotate, so they can carry content over any distance. The frequencies and the pairs are
    those of the whole head. This differs from rotary's `fraction`, which pairs components and spreads frequencies
    within the rotated part only.

    Source: p-RoPE: *Round and Round We Go! What makes Rotary Positional Encodings useful?* (Barbero et al. 2025),
    section 6.

    fraction: of the pairs that rotate, p; the paper has 0.75, Gemma 4 has 0.25, and 1 is plain rotary.
    """

    @unpack_options(RotaryOptions(), own_first=True)
    def __init__(
        self,
        site: Site,
        *,
        fraction: Annotated[float, Gt(0), Le(1)] = 0.75,
        **rotary: Unpack[PairKeywords],
    ):
        super().__init__(site, "prope", **rotary)
        self.fraction = fraction
        pairs = site.d_head // 2
        self.rotating_pairs = int(fraction * site.d_head // 2)
        if self.rotating_pairs == 0:
            raise UserError(
                f"prope rotates a fraction of the {pairs} pairs of a head: expected one pair or more, got "
                f"fraction={fraction:g}; use fraction={1 / pairs:g} or more"
            )

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        frequency_F = rotary_frequencies(self.rotated, self.base, pos.coordinates.device)
        number_F = torch.arange(len(frequency_F), device=frequency_F.device)
        frequency_F = frequency_F.masked_fill(number_F >= self.rotating_pairs, 0.0)
        return rotation_by_frequency(pos, frequency_F, self.pairing)


@final
@registry.register("xpos")
class XPos(PairRotation):
    """Rotary with scores that decay with the distance, faster for faster pairs.

    In pair p a query at position i is also multiplied by `zeta_p^(i / decay)` and a key at j by `zeta_p^(-j / decay)`.
    Their product has the factor `zeta_p^((i - j) / decay)`, where `zeta_p = (p / P + 0.4) / 1.4` for P pairs. The
    factor grows for keys after their query, so xPos works only where queries never see later keys.

    Source: Extrapolatable position embedding: *A Length-Extrapolatable Transformer* (Sun et al. 2022), section 3 and
    table 2.

    decay: distance at which the factor of pair p is zeta_p; the paper has 512.
    """

    causal_only = True
    keeps_norms = False

    @unpack_options(RotaryOptions(), own_first=True)
    def __init__(
        self,
        site: Site,
        *,
        decay: Annotated[float, Gt(0)] = 512.0,
        **rotary: Unpack[PairKeywords],
    ):
        super().__init__(site, "xpos", **rotary)
        self.decay = decay

    def rotation(
        self, pos: Positions, *, side: Side = PROVIDED, keys: Positions = PROVIDED
    ) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine times the power of zeta, `(1 or B, 1, L, R)`."""
        index, pairs = pos.index(), self.rotated // 2
        angle_LF = angles(index, rotary_frequencies(self.rotated, self.base, index.device))
        ratio_F = torch.arange(pairs, device=index.device, dtype=angle_LF.dtype) / pairs
        zeta_F = (ratio_F + XPOS_GAMMA) / (1 + XPOS_GAMMA)
        sign = 1 if side == "query" else -1
        # Powers count from the middle of the keys: products stay the same, and powers stay finite up to distances of
        # about 70 times `decay`.
        offset_L = (index - _middle(keys)).to(angle_LF.dtype)
        power_LF = zeta_F ** (sign * offset_L.unsqueeze(-1) / self.decay)
        if pos.unplaced is not None:
            unplaced_L1 = pos.unplaced.unsqueeze(-1)
            angle_LF = angle_LF.masked_fill(unplaced_L1, 0.0)
            power_LF = power_LF.masked_fill(unplaced_L1, 1.0)
        angle_BHLF, power_BHLF = _add_head_axis(angle_LF), _add_head_axis(power_LF)
        cosine, sine = angle_BHLF.cos() * power_BHLF, angle_BHLF.sin() * power_BHLF
        return _expand_to_components(cosine, sine, self.pairing)

    def rotate(
        self, x: Float[Tensor, "B H L E"], rotation: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "B H L E"]:
        """Raises UserError for powers that overflow. On a GPU only those in float16 are read."""
        if not torch.compiler.is_compiling() and _can_check(x):
            _check_powers(rotation[0], x.dtype)
        return super().rotate(x, rotation)


def _can_check(x: Tensor) -> bool:
    """Whether the powers for `x` may be read; not while a graph of CUDA is captured."""
    in_float16 = x.is_cuda and x.dtype is torch.float16
    return x.device.type == "cpu" or (in_float16 and not torch.cuda.is_current_stream_capturing())


def _check_powers(cosine: Tensor, dtype: torch.dtype) -> None:
    """Raises UserError for factors that overflow with components of up to 16."""
    limit = torch.finfo(dtype).max / 16
    if cosine.numel() and (largest := float(cosine.detach().abs().amax())) > limit:
        raise UserError(
            f"xpos multiplies by up to {largest:.2g} between positions this far apart: expected {limit:.2g} or less in "
            f"{dtype}, which overflows; use bfloat16, fewer keys or a larger decay"
        )


def _middle(keys: Positions) -> Tensor:
    """The middle between the first and the last key of each row, rounded so that it costs no precision."""
    index = keys.index()
    if keys.length == 0:
        return index.new_zeros(())
    first, last = index.amin(-1, keepdim=True), index.amax(-1, keepdim=True)
    return torch.div(first + last, 2, rounding_mode="floor")


def rotary_frequencies(
    rotated: int, base: float | Float[Tensor, "*R 1"], device: torch.device
) -> Float[Tensor, "*R F"]:
    """Rotary's frequencies base^(-2i/R), from fast to slow.

    rotated: R. base: a number gives `(F,)`; one base for each row, `(B, 1, 1)`, gives `(B, 1, F)`.
    """
    return frequencies(rotated // 2, base, 2 / rotated, device)


def rotation_by_frequency(
    pos: Positions, frequency_F: Float[Tensor, "*R F"], pairing: Pairing, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine for pairs with these frequencies, `(F,)`, or `(B, 1, F)` if rows differ."""
    return rotation_by_angle(pos, angles(pos.index(), frequency_F), pairing, factor)


def rotation_by_angle(
    pos: Positions, angle_LF: Float[Tensor, "*B L F"], pairing: Pairing, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine of these angles, `(1 or B, 1, L, 2F)`, times `factor`.

    Tokens without a position are neither rotated nor multiplied.
    """
    angle_BHLF = _add_head_axis(angle_LF)
    cosine, sine = angle_BHLF.cos() * factor, angle_BHLF.sin() * factor
    if pos.unplaced is not None:
        unplaced = pos.unplaced[..., None, :, None]
        cosine, sine = cosine.masked_fill(unplaced, 1.0), sine.masked_fill(unplaced, 0.0)
    # Large angles need the digits of float64, their cosines do not.
    return _expand_to_components(cosine.float(), sine.float(), pairing)


def cosine_and_sine(angle: Float[Tensor, "*B L F"], pairing: Pairing) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine of the angles of F pairs, for their 2F components."""
    return _expand_to_components(angle.cos().float(), angle.sin().float(), pairing)


def _add_head_axis(x_LF: Float[Tensor, "*B L F"]) -> Float[Tensor, "B 1 L F"]:
    return x_LF[None, None] if x_LF.ndim == 2 else x_LF[:, None]


def _expand_to_components(
    cosine: Float[Tensor, "*B L F"], sine: Float[Tensor, "*B L F"], pairing: Pairing
) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine of F pairs, for their 2F components."""
    signed = (-sine, sine)
    if pairing == "half":
        return torch.cat((cosine, cosine), -1), torch.cat(signed, -1)
    return cosine.repeat_interleave(2, -1), torch.stack(signed, -1).flatten(-2)


def rotate_pairs(
    x: Float[Tensor, "B H L E"], rotation: tuple[Tensor, Tensor], rotated: int, pairing: Pairing
) -> Float[Tensor, "B H L E"]:
    """`x` with its first `rotated` components rotated in pairs, and the others unchanged."""
    cosine, sine = rotation[0].to(x.dtype), rotation[1].to(x.dtype)
    x_BHLE = x.contiguous()  # heads before positions, so that the broadcast runs over whole rows
    width = x.shape[-1]
    if rotated == width:
        return _rotate_all(x_BHLE, cosine, sine, pairing)
    rotated_BHLR, rest = x_BHLE.split((rotated, width - rotated), -1)
    return torch.cat((_rotate_all(rotated_BHLR, cosine, sine, pairing), rest), -1)


def _rotate_all(x_BHLR: Tensor, cosine: Tensor, sine: Tensor, pairing: Pairing) -> Tensor:
    if pairing == "half":
        partner_BHLR = x_BHLR.roll(x_BHLR.shape[-1] // 2, -1)
    else:
        pairs_BHLF2 = x_BHLR.unflatten(-1, (-1, 2))
        partner_BHLR = pairs_BHLF2.flip(-1).flatten(-2)
    return torch.addcmul(x_BHLR * cosine, partner_BHLR, sine)


def _check_even(name: str, site: Site) -> None:
    """Raises UserError for an odd head width."""
    if site.d_head % 2:
        even = site.d_head + 1
        raise UserError(
            f"{name} rotates pairs, so it needs an even head width; got {site.d_head} (d_model={site.d_model}, "
            f"n_heads={site.n_heads}); use d_model={even * site.n_heads}"
        )


def _odd_message(name: str, site: Site, fraction: float, rotated: int) -> str:
    """What was expected, what was given, and the nearest setting that works."""
    d_head, heads = site.d_head, site.n_heads
    if fraction < 1 and d_head > 1:
        works = max(2, 2 * round(d_head * fraction / 2))
        return (
            f"{name} rotates pairs, so an even number of components: fraction={fraction:g} of the head width "
            f"{d_head} is {rotated}; use fraction={works / d_head:g}"
        )
    better = 2 * max(1, round(d_head / 2 + 0.25))
    below = (d_head - 1) / d_head
    other = f", or fraction={below:g}" if d_head > 1 else ""
    return (
        f"{name} needs an even head width; got {d_head} (d_model={site.d_model}, n_heads={heads}); "
        f"use d_model={better * heads}{other}"
    )
