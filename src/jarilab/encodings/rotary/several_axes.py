"""Rotary encodings for images, videos and captioned images."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Unpack, final

import torch
from annotated_types import Gt, Le
from torch import Generator, nn

from jarilab.core.devices import constant
from jarilab.core.errors import UserError
from jarilab.core.options import unpack_options
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Site, registry
from jarilab.encodings.numbers import best_float_dtype, frequencies
from jarilab.encodings.rotary.pair_rotation import (
    Pairing,
    PairKeywords,
    PairRotation,
    RotaryKeywords,
    RotaryOptions,
    cosine_and_sine,
    rotary_frequencies,
    rotation_by_angle,
)
from jarilab.positions.coordinates import Positions

DEFAULT_BASES = {"axial": 100.0, "mixed": 10.0}
AXES = 3


class PlaneRotation(PairRotation):
    """Base class of rotations by row and column, with as many pairs for rows as for columns."""

    axes = (2,)

    @staticmethod
    def count_rotated(name: str, site: Site, fraction: float) -> int:
        rotated = round(site.d_head * fraction)
        if rotated % 4 or rotated == 0:
            raise UserError(_uneven_message(name, site, fraction, rotated))
        return rotated


@final
@registry.register("rotary2d", "rope2d")
class Rotary2d(PlaneRotation):
    """Rotates each pair of components by an angle that depends on row and column.

    The score then depends on how many rows and columns lie between query and key.

    Source: Rotary position embedding on images: *Rotary Position Embedding for Vision Transformer* (Heo et al. 2024).

    frequencies: of the R/2 pairs of the R rotated components.
        axial: pairs 0 to R/4 - 1 rotate by `row * base^(-4i/R)`, the others by `column * base^(-4i/R)`, as in Qwen2-VL.
        mixed: each pair of each head and layer has a learned frequency for rows and one for columns, and rotates by the
            sum of both angles (RoPE-Mixed). They start as two axes at right angles, rotated at random in each head.
    base: a larger one rotates more slowly. By default 100 for axial and 10 for mixed, as in the paper.
    fraction: of each head that is rotated, R = fraction * head width.
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
        super().__init__(site, "rotary2d", fraction=fraction, pairing=pairing)
        self.frequencies = frequencies
        self.base = DEFAULT_BASES[frequencies] if base is None else base
        self.shared = frequencies == "axial"
        if frequencies == "mixed":
            self.frequency = nn.Parameter(torch.empty(site.n_heads, self.rotated // 2, 2))
            self.reset()

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        # In each head `f_i (cos a, sin a)` and `f_i (-sin a, cos a)` with a random a and f_i = base^(-4i/R), as in the
        # authors' `init_random_2d_freqs`.
        heads = parameter.shape[0]
        uniform_H1 = torch.rand(heads, 1, generator=generator).to(parameter)
        angle_H1 = 2 * math.pi * uniform_H1
        size_F = self._axis_frequencies(parameter.device).to(parameter)
        cosine_HF, sine_HF = angle_H1.cos() * size_F, angle_H1.sin() * size_F
        first_HF2 = torch.stack((cosine_HF, sine_HF), -1)
        second_HF2 = torch.stack((-sine_HF, cosine_HF), -1)
        parameter.copy_(torch.cat((first_HF2, second_HF2), 1))

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine, `(1 or B, 1 or H, L, R)`."""
        plane = pos.plane().to(best_float_dtype(pos.coordinates.device))
        if self.frequencies == "axial":
            axis_angles = plane.unsqueeze(-1) * self._axis_frequencies(plane.device)
            angle = axis_angles.flatten(-2).unsqueeze(-3)
        else:
            frequency_H2F = self.frequency.to(plane.dtype).transpose(-1, -2)
            angle = plane.unsqueeze(-3) @ frequency_H2F
        if pos.unplaced is not None:
            angle = angle.masked_fill(pos.unplaced[..., None, :, None], 0.0)
        angle_BHLF = angle if angle.ndim == 4 else angle.unsqueeze(0)
        return cosine_and_sine(angle_BHLF, self.pairing)

    def _axis_frequencies(self, device: torch.device) -> Float[Tensor, " F"]:
        """base^(-4i/R) for i = 0 ... R/4 - 1."""
        return frequencies(self.rotated // 4, self.base, 4 / self.rotated, device)


@final
@registry.register("pixtral", "rotary2d_alternating")
class Pixtral(PlaneRotation):
    """Rotary on images in which rows and columns alternate in one series of frequencies.

    Rows have the first, third, fifth ... frequency, columns the second, fourth ... In rotary2d each axis has a series
    of its own. The pairs of rows come first among the components. With pairing=half these are the weights of the
    transformers library, with interleaved those of Mistral.

    Source: The rotation of Pixtral's vision encoder: *Pixtral 12B* (Agrawal et al. 2024), section 2.1, and its code.
    """

    @unpack_options(RotaryOptions(), own_first=True)
    def __init__(self, site: Site, **rotary: Unpack[RotaryKeywords]):
        super().__init__(site, "pixtral", **rotary)

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        frequency_F = rotary_frequencies(self.rotated, self.base, pos.coordinates.device)
        row, column = pos.plane().to(frequency_F.dtype).unsqueeze(-1).unbind(-2)
        angle_LF = torch.cat((row * frequency_F[0::2], column * frequency_F[1::2]), -1)
        return rotation_by_angle(pos, angle_LF, self.pairing)


@final
@registry.register("rotary3d", "mrope", "m-rope", "rope3d")
class Rotary3d(PairRotation):
    """Rotates each pair of components by one of three coordinates.

    The coordinates are time, row and column of a video, or word, row and column of a caption and its image. A text has
    one coordinate, which rotates all pairs: plain rotary. If a token has no coordinate on an axis, the pairs of that
    axis are not rotated.

    Source: Rotary position embedding of three axes: *Qwen2-VL* (Wang et al. 2024), section 2.1, Qwen3-VL,
    HunyuanVideo.

    layout: which pairs belong to which axis, and their frequencies.
        sections: the pairs of an axis are consecutive in one series of frequencies, so the first axis has the fastest
            pairs (M-RoPE, Qwen2-VL).
        interleaved: the axes alternate in one series (Qwen3-VL).
        axial: the pairs of an axis are consecutive, and each axis has its own series (HunyuanVideo, Wan).
    sections: number of pairs of each axis, as `16/24/24`; by default equal, with one more for the first axes.
    """

    axes = (1, 3)

    @unpack_options(RotaryOptions(), own_first=True)
    def __init__(
        self,
        site: Site,
        *,
        layout: Literal["sections", "interleaved", "axial"] = "sections",
        sections: str | None = None,
        **rotary: Unpack[PairKeywords],
    ):
        super().__init__(site, "rotary3d", **rotary)
        self.layout, self.sections = layout, sections
        self._pairs = _parse_sections(sections, site)
        if layout == "interleaved":
            _check_alternating(self._pairs)

    def rotation(self, pos: Positions) -> tuple[Tensor, Tensor]:
        device = pos.coordinates.device
        axis_F = constant(self._axes_of_pairs(), device)
        has_axes = len(pos.axes) == AXES
        coordinate_LF = pos.coordinates[..., axis_F] if has_axes else pos.index().unsqueeze(-1)
        angle_LF = coordinate_LF.to(best_float_dtype(device)) * self._frequencies(device)
        if pos.absent is not None:
            angle_LF = angle_LF.masked_fill(pos.absent[..., axis_F], 0.0)
        return rotation_by_angle(pos, angle_LF, self.pairing)

    def _axes_of_pairs(self) -> list[int]:
        """The axis that rotates each pair."""
        if self.layout != "interleaved":
            return [axis for axis in range(AXES) for _ in range(self._pairs[axis])]
        # Rows and columns have every third pair until they have all of theirs; the first axis has the others.
        axes = [number % AXES for number in range(sum(self._pairs))]
        return [
            axis if number < AXES * self._pairs[axis] else 0 for number, axis in enumerate(axes)
        ]

    def _frequencies(self, device: torch.device) -> Float[Tensor, " F"]:
        if self.layout != "axial":
            return rotary_frequencies(self.rotated, self.base, device)
        series = [
            frequencies(count, self.base, 1 / count, device) for count in self._pairs if count
        ]
        return torch.cat(series)


def _parse_sections(sections: str | None, site: Site) -> list[int]:
    """The number of pairs of each axis. Raises UserError."""
    total = site.d_head // 2
    quotient, remainder = divmod(total, AXES)
    even = [quotient + (axis < remainder) for axis in range(AXES)]
    if sections is None:
        if quotient == 0:
            raise UserError(
                f"rotary3d needs a pair for each of the three axes, so a head width of 6 or more; got "
                f"{site.d_head} (d_model={site.d_model}, n_heads={site.n_heads}); use d_model={6 * site.n_heads}"
            )
        return even
    works = "/".join(map(str, even))
    try:
        pairs = [int(count) for count in sections.split("/")]
    except ValueError:
        pairs = []
    if len(pairs) != AXES or min(pairs) < 0:
        raise UserError(
            f"rotary3d: sections: expected the number of pairs of each of the three axes, got {sections!r}; write such "
            f"as sections={works}"
        )
    if sum(pairs) != total:
        raise UserError(
            f"rotary3d: sections: expected {total} pairs, since the head width is {site.d_head}, got {sum(pairs)} "
            f"in {sections}; write such as sections={works}"
        )
    return pairs


def _check_alternating(pairs: list[int]) -> None:
    """Raises UserError if the second or third axis has more than every third pair."""
    total = sum(pairs)
    for axis in range(1, AXES):
        most = len(range(axis, total, AXES))
        if pairs[axis] > most:
            raise UserError(
                f"rotary3d: layout=interleaved: expected at most {most} of the {total} pairs for axis {axis + 1}, got "
                f"sections={'/'.join(map(str, pairs))}; use fewer for it, or layout=sections"
            )


def _uneven_message(name: str, site: Site, fraction: float, rotated: int) -> str:
    """What was expected, what was given, and the nearest setting that works."""
    d_head, heads = site.d_head, site.n_heads
    works = max(4, 4 * round(rotated / 4))
    start = f"{name} rotates pairs by rows and pairs by columns, so a multiple of 4 components: "
    if fraction < 1 and works <= d_head:
        ratio = works / d_head
        return f"{start}fraction={fraction:g} of the head width {d_head} is {rotated}; use fraction={ratio:g}"
    better = max(4, 4 * math.ceil(d_head / 4))
    below = 4 * (d_head // 4)
    other = f", or fraction={below / d_head:g}" if below else ""
    wrong = f"got {rotated} (d_model={site.d_model}, n_heads={heads})"
    return f"{start}{wrong}; use d_model={better * heads}{other}"
