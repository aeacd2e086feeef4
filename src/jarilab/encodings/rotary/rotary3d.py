"""Rotary position embedding of three axes: *Qwen2-VL* (Wang et al. 2024), section 2.1, Qwen3-VL, HunyuanVideo."""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from annotated_types import Gt

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import frequencies, precise_on
from jarilab.encodings.rotary.rotary import Pairing, by_angle, check_pairs, falling, turned
from jarilab.positions.coordinates import Positions

AXES = 3


@final
@registry.register("rotary3d", "mrope", "m-rope", "rope3d")
class Rotary3d(Encoding):
    """Turns each pair of components by one of three coordinates: time, row and column of a video, or word, row and
    column of a caption and its image. A text has one coordinate, which all pairs turn by: plain rotary. Where a token
    has no coordinate on an axis, the pairs of that axis stay as they are.

    layout: which pairs are of which axis, and how fast they turn.
        sections: those of one axis follow each other in one series of frequencies, so that the first axis has the fast
            pairs (M-RoPE, Qwen2-VL).
        interleaved: the axes take turns in one series (Qwen3-VL).
        axial: those of one axis follow each other, and each axis has a series of its own (HunyuanVideo, Wan).
    sections: how many pairs each axis has, `16/24/24`; by default as equal as can be, the first axis having more.
    base: slows the rotation. pairing: as rotary's.
    """

    axes = (1, 3)

    def __init__(
        self,
        site: Site,
        *,
        layout: Literal["sections", "interleaved", "axial"] = "sections",
        sections: str | None = None,
        base: Annotated[float, Gt(1)] = 10000.0,
        pairing: Pairing = "half",
    ):
        super().__init__(site)
        check_pairs("rotary3d", site)
        self.layout, self.sections, self.base = layout, sections, base
        self.pairing: Pairing = pairing
        self._pairs = _pairs_of(sections, site)
        if layout == "interleaved":
            _check_turns(self._pairs)

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        device = pos.coordinates.device
        axis_F = torch.tensor(self._axes_of_pairs(), device=device)
        own_axes = len(pos.axes) == AXES
        place_LF = pos.coordinates[..., axis_F] if own_axes else pos.index().unsqueeze(-1)
        angle_LF = place_LF.to(precise_on(device)) * self._frequencies(device)
        if pos.absent is not None:
            angle_LF = angle_LF.masked_fill(pos.absent[..., axis_F], 0.0)
        return by_angle(pos, angle_LF, self.pairing)

    def rotate(
        self, x: Float[Tensor, "B H L E"], rotation: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "B H L E"]:
        return turned(x, rotation, self.site.head_width, self.pairing)

    def _axes_of_pairs(self) -> list[int]:
        """The axis that each pair turns by."""
        if self.layout != "interleaved":
            return [axis for axis in range(AXES) for _ in range(self._pairs[axis])]
        # Rows and columns have every third place until they have all of theirs; what is left is the first axis's.
        total = sum(self._pairs)
        turns = [number % AXES for number in range(total)]
        return [
            axis if number < AXES * self._pairs[axis] else 0 for number, axis in enumerate(turns)
        ]

    def _frequencies(self, device: torch.device) -> Float[Tensor, " F"]:
        if self.layout != "axial":
            return falling(self.site.head_width, self.base, device)
        own = [frequencies(count, self.base, 1 / count, device) for count in self._pairs if count]
        return torch.cat(own)


def _pairs_of(sections: str | None, site: Site) -> list[int]:
    """How many pairs each axis has. Raises UserError."""
    total = site.head_width // 2
    equal, more = divmod(total, AXES)
    spread = [equal + (axis < more) for axis in range(AXES)]
    if sections is None:
        if equal == 0:
            raise UserError(
                f"rotary3d needs a pair for each of the three axes, so a head width of 6 or more; got "
                f"{site.head_width} (width {site.width}, {site.heads} heads); use width {6 * site.heads}"
            )
        return spread
    works = "/".join(map(str, spread))
    try:
        pairs = [int(count) for count in sections.split("/")]
    except ValueError:
        pairs = []
    if len(pairs) != AXES or min(pairs) < 0:
        raise UserError(
            f"rotary3d: sections: expected the pairs of each of the three axes, {works}, got {sections!r}"
        )
    if sum(pairs) != total:
        raise UserError(
            f"rotary3d: sections: a head of width {site.head_width} has {total} pairs, and {sections} are "
            f"{sum(pairs)}; write such as sections={works}"
        )
    return pairs


def _check_turns(pairs: list[int]) -> None:
    """Raises UserError where the second or third axis would need more pairs than it has turns."""
    total = sum(pairs)
    for axis in range(1, AXES):
        turns = len(range(axis, total, AXES))
        if pairs[axis] > turns:
            raise UserError(
                f"rotary3d: where axes take turns, axis {axis + 1} has {turns} of the {total} pairs at most; got "
                f"sections={'/'.join(map(str, pairs))}; use fewer for it, or layout=sections"
            )
