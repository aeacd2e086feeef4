"""The positions of CTranslate2 that equal an encoding, measured through its hooks.

They are exact up to the number of positions that are written. An added vector becomes a table, a rotation a rotary
embedding with the same pairs and angles, and a bias of the distance a T5 bias with a bucket for each distance. Other
encodings are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding
from jarilab.encodings.compose import LayerEncodings
from jarilab.positions.coordinates import Positions


def refuse(encoding: LayerEncodings, why: str) -> NoReturn:
    """Raises UserError that `encoding` cannot be exported, for the reason `why`."""
    raise UserError(
        f"{encoding.spec} cannot be exported: {why}; answer with `jarilab predict`, or train without it"
    )


@dataclass(frozen=True)
class ExportedRotary:
    """CTranslate2's rotary embedding: pair i of `rotated` components turns by p * base^(-2 i / rotated) at position p.

    interleaved: pairs are 2i and 2i + 1, otherwise i and i + rotated / 2.
    """

    rotated: int
    base: float
    interleaved: bool

    def turn(self, x: Float[Tensor, "*B L E"]) -> Float[Tensor, "*B L E"]:
        """The vectors at positions 0 to L - 1, rotated in float64."""
        pairs = self.rotated // 2
        exponent_F = -torch.arange(pairs, dtype=torch.float64) / pairs
        frequency_F = self.base**exponent_F
        place_L1 = torch.arange(x.shape[-2]).unsqueeze(-1)
        angle_LF = place_L1 * frequency_F
        cosine, sine = angle_LF.cos(), angle_LF.sin()
        x_double = x.double()
        moved = x_double[..., : self.rotated]
        rest = x_double[..., self.rotated :]
        sizes, axis = ((pairs, 2), -1) if self.interleaved else ((2, pairs), -2)
        real, imaginary = moved.unflatten(-1, sizes).unbind(axis)
        turned_real = real * cosine - imaginary * sine
        turned_imaginary = imaginary * cosine + real * sine
        moved = torch.stack((turned_real, turned_imaginary), axis).flatten(-2)
        return torch.cat((moved, rest), -1)


@dataclass(frozen=True, eq=False)
class Places:
    """The positions of one side in CTranslate2; at most one is set.

    table: `(L, D)`, added to the input. bias: `(N, H)`, the rows of a T5 bias with N buckets. The first `distances`
    buckets of each direction are single distances.
    """

    table: Float[Tensor, "L D"] | None = None
    rotary: ExportedRotary | None = None
    bias: Float[Tensor, "N H"] | None = None
    distances: int = 0


def places_of(encodings: LayerEncodings, positions: int) -> Places:
    """The positions of CTranslate2 for an encoding. Raises UserError if it has none."""
    encoding = encodings.by_layer[0]
    count = positions if encoding.max_positions is None else encoding.max_positions
    if encoding.hooks <= {"embed"}:
        return Places(table=_table(encodings, encoding, count))
    if encoding.hooks not in ({"rotate"}, {"bias"}):
        used = " and ".join(sorted(encoding.hooks))
        refuse(
            encodings,
            f"it uses {used}, and CTranslate2 has either a table added to the input, or a rotation, or a bias of "
            "distance",
        )
    if encoding.extra_arguments("rotation") or encoding.scale_factor != 1:
        why = "it treats queries and keys differently, or scales their product, and CTranslate2 does neither"
        refuse(encodings, why)
    if not encodings.shared:
        why = "CTranslate2 has one encoding for all layers, and here each layer has its own"
        refuse(encodings, why)
    if encoding.hooks == {"rotate"}:
        return Places(rotary=_rotary(encodings, encoding, count))
    return Places(bias=_bias(encodings, encoding, count), distances=count)


def _table(encodings: LayerEncodings, encoding: Encoding, count: int) -> Float[Tensor, "L D"]:
    places = Positions.sequence(count)
    generator = torch.Generator().manual_seed(1)
    x_1LD = torch.randn(1, count, encoding.site.d_model, generator=generator)
    table_1LD = encoding.embed(torch.zeros_like(x_1LD), places)
    if not torch.allclose(encoding.embed(x_1LD, places), x_1LD + table_1LD, atol=1e-5):
        refuse(encodings, "it does more to the input than add a vector for each position")
    return table_1LD.squeeze(0)


def _rotary(encodings: LayerEncodings, encoding: Encoding, count: int) -> ExportedRotary:
    """The equal rotary embedding, with options read from rotated unit vectors at position 1."""
    heads, width = encoding.site.n_heads, encoding.site.d_head
    rotary = _rotary_from(_turned_units(encoding))
    generator = torch.Generator().manual_seed(1)
    x_1HLE = torch.randn(1, heads, count, width, generator=generator)
    places = Positions.sequence(count)
    rotated_1HLE = encoding.rotate(x_1HLE, encoding.rotation_for(places, "query", places))
    in_pairs = rotary.rotated > 0 and rotary.rotated % 2 == 0
    # 1e-3: in float32 the angles of far positions have few digits after the point.
    if not in_pairs or not torch.allclose(rotated_1HLE.double(), rotary.turn(x_1HLE), atol=1e-3):
        why = (
            "it rotates differently from CTranslate2, which turns pair i by position * base^(-2i/R)"
        )
        refuse(encodings, why)
    return rotary


def _turned_units(encoding: Encoding) -> Float[Tensor, "E E"]:
    """The rotated unit vectors at position 1 in the first head."""
    heads, width = encoding.site.n_heads, encoding.site.d_head
    ones_L1 = torch.ones(width, 1, dtype=torch.long)
    ones = Positions(ones_L1, torch.arange(width))
    rotation = encoding.rotation_for(ones, "query", ones)
    units_1HEE = torch.eye(width).expand(1, heads, width, width)
    return encoding.rotate(units_1HEE, rotation)[0, 0].double()


def _rotary_from(turned_EE: Float[Tensor, "E E"]) -> ExportedRotary:
    """The number of rotated components, the layout of pairs and the base."""
    away_EE = turned_EE - turned_EE.diag().diag()
    rotated = int(away_EE.any(1).sum())
    interleaved = int(away_EE[0].abs().argmax()) == 1
    second = 2 if interleaved else 1
    base = 1.0
    if rotated > 2:
        partner = int(away_EE[second].abs().argmax())
        sine, cosine = turned_EE[second, partner], turned_EE[second, second]
        angle = float(torch.atan2(sine, cosine))
        # float32 gives six digits of it.
        base = abs(angle) ** (-rotated / 2)
        base = float(f"{base:.6g}")
    return ExportedRotary(rotated, base, interleaved)


def _bias(encodings: LayerEncodings, encoding: Encoding, count: int) -> Float[Tensor, "N H"]:
    """The bias of each distance as T5 buckets: single distances up to `count`, larger ones like the last."""
    places = Positions.sequence(count)
    bias_HQK = encoding.bias(places, places)
    assert bias_HQK is not None, "its hook is bias"
    bias_HQK = bias_HQK.reshape(-1, count, count)
    back_HL = bias_HQK[:, -1].flip(-1)
    ahead_HL = bias_HQK[:, 0]
    index_K = torch.arange(count)
    ahead_QK = index_K - index_K.unsqueeze(-1)
    of_ahead_HQK = ahead_HL[:, ahead_QK.clamp_min(0)]
    of_back_HQK = back_HL[:, (-ahead_QK).clamp_min(0)]
    by_distance_HQK = torch.where(ahead_QK > 0, of_ahead_HQK, of_back_HQK)
    different_HQK = (bias_HQK - by_distance_HQK).abs() > 1e-5
    if encoding.site.causal:
        different_HQK = different_HQK & (ahead_QK <= 0)
    if bool(different_HQK.any()):
        why = "its bias depends on more than the distance, and that of CTranslate2 does not"
        refuse(encodings, why)
    rows = []
    for side_HL in (back_HL,) if encoding.site.causal else (back_HL, ahead_HL):
        beyond_HL = side_HL[:, -1:].expand(-1, count)
        rows += [side_HL, beyond_HL]
    bias_HN = torch.cat(rows, 1)
    return bias_HN.t().contiguous()
