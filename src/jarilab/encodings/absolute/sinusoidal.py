"""Fixed sinusoids that are added to tokens, of sequences and of images."""

from __future__ import annotations

import math
from typing import Annotated, Literal, final

import torch
from annotated_types import Gt
from torch import Generator, nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import angles, best_float_dtype, frequencies
from jarilab.positions.coordinates import Positions

Layout = Literal["interleaved", "concatenated", "tensor2tensor"]

EXTENT_EPSILON = 1e-6  # DETR's, so that an empty frame does not divide by 0


@final
@registry.register("sinusoidal", "sin", "sine")
class Sinusoidal(Encoding):
    """Adds fixed waves of falling frequency to the input.

    Source: Sinusoids added to the input: *Attention Is All You Need* (Vaswani et al. 2017), section 3.5, in three
    layouts.

    layout: order of the waves, and how their frequencies fall.
        interleaved: the paper's. `PE[p, 2i] = sin(p / base^(2i/D))`, `PE[p, 2i+1] = cos(p / base^(2i/D))`.
        concatenated: the same numbers, all sines first, then all cosines.
        tensor2tensor: as the authors' own code (and fairseq) has it: concatenated, with exponent `i / (D/2 - 1)`. The
            slowest wave is slower than the paper's: by 4 % at D 512, by a factor of 3.2 at D 16.
    base: wavelengths range from 2 pi to about base * 2 pi.
    """

    shift_invariant = False
    cross = False

    def __init__(
        self, site: Site, *, layout: Layout = "interleaved", base: Annotated[float, Gt(1)] = 10000.0
    ):
        super().__init__(site)
        _check_width("sinusoidal", site)
        self.layout: Layout = layout
        self.base = base

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        waves = sinusoids(pos.index(), x.shape[-1], self.layout, self.base)
        return x + without_unplaced(waves, pos).to(x.dtype)


@final
@registry.register("scaled_sinusoidal", "scaled_sinusoid", "scaled_sin")
class ScaledSinusoidal(Encoding):
    """Adds sinusoidal's waves to the input, times one learned scale.

    The scale starts at `D^(-1/2)`. It sets the magnitude of positions relative to token embeddings.

    Source: Sinusoids times a learned number, as x-transformers has them; the idea is in *Neural Speech Synthesis with
    Transformer Network* (Li et al. 2019), section 3.2.

    layout, base: as sinusoidal's.
    """

    shift_invariant = False
    cross = False

    def __init__(
        self,
        site: Site,
        *,
        layout: Layout = "concatenated",
        base: Annotated[float, Gt(1)] = 10000.0,
    ):
        super().__init__(site)
        _check_width("scaled_sinusoidal", site)
        self.layout: Layout = layout
        self.base = base
        self.scale = nn.Parameter(torch.empty(1))
        self.reset()

    def initial_value(self, name: str, parameter: Tensor, generator: Generator | None) -> None:
        nn.init.constant_(parameter, self.site.d_model**-0.5)  # as x-transformers

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        waves = sinusoids(pos.index(), x.shape[-1], self.layout, self.base)
        return x + self.scale.to(x.dtype) * without_unplaced(waves, pos).to(x.dtype)


@final
@registry.register("sinusoidal2d", "sin2d")
class Sinusoidal2d(Encoding):
    """Adds fixed waves of the row, then of the column, each in half of the width.

    The waves of each axis are those of the Transformer paper.

    Source: Sinusoids of rows and columns: *End-to-End Object Detection with Transformers* (Carion et al. 2020),
    appendix A.4.

    where: embed adds them to the input, once (ViT); inject adds them to queries and keys in every attention (DETR).
    normalised: scale coordinates to the frame as DETR does, with the last row at 2 pi:
        `2 pi (row + 1) / (height + 1e-6)`. Images of all sizes then have the same waves, in finer or coarser steps.
    base: wavelengths range from 2 pi to about base * 2 pi; DETR calls it the temperature.
    """

    shift_invariant = False
    axes = (2,)

    def __init__(
        self,
        site: Site,
        *,
        where: Literal["embed", "inject"] = "embed",
        normalised: bool = False,
        base: Annotated[float, Gt(1)] = 10000.0,
    ):
        super().__init__(site)
        if site.d_model % 2 or site.d_model < 4:
            raise UserError(
                f"sinusoidal2d gives rows and columns half of the width each: expected an even width of 4 or more, "
                f"got {site.d_model}; use d_model={max(4, site.d_model + 1)}"
            )
        self.where, self.normalised, self.base = where, normalised, base
        self.cross = where == "inject"

    @property
    def hooks(self) -> frozenset[str]:
        return frozenset((self.where,))

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self._add(x, pos) if self.where == "embed" else x

    def inject(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        return self._add(x, pos) if self.where == "inject" else x

    def _add(self, x: Tensor, pos: Positions) -> Tensor:
        plane = self._scaled_to_frame(pos) if self.normalised else pos.plane()
        waves = sinusoids(plane, x.shape[-1] // 2, "interleaved", self.base).flatten(-2)
        return x + without_unplaced(waves, pos).to(x.dtype)

    def _scaled_to_frame(self, pos: Positions) -> Tensor:
        plane = pos.plane()
        if pos.extent is None:
            raise UserError(
                "sinusoidal2d:normalised=true scales coordinates to their frame: expected positions with an "
                "extent, got none; make them with Positions.grid, or pass extent=torch.tensor([height, width])"
            )
        extent = pos.extent.to(best_float_dtype(plane.device)).unsqueeze(-2)
        # Divided first: whole positions times a number would be rounded to torch's default dtype.
        return (plane + 1) / (extent + EXTENT_EPSILON) * (2 * math.pi)


@final
@registry.register("sinusoidal_mae", "mae", "sincos2d", "simple_vit")
class SinusoidalMae(Encoding):
    """Adds fixed waves of the column, then of the row, sines before cosines in each half.

    Columns come first because of a slip in the authors' code, which all trained weights follow.

    Source: Sinusoids of rows and columns as in *Masked Autoencoders* (He et al. 2022) and its code; DiT, SimpleViT.

    exponent: how frequencies fall.
        width: `base^(-i / (D/4))`, as in MAE and DiT.
        ends: `base^(-i / (D/4 - 1))`, so that the slowest is 1 / base, as in SimpleViT.
    base: wavelengths range from 2 pi to about base * 2 pi.
    """

    shift_invariant = False
    axes = (2,)
    cross = False

    def __init__(
        self,
        site: Site,
        *,
        exponent: Literal["width", "ends"] = "width",
        base: Annotated[float, Gt(1)] = 10000.0,
    ):
        super().__init__(site)
        if site.d_model % 4:
            works = 4 * -(-site.d_model // 4)
            raise UserError(
                "sinusoidal_mae has a quarter of the width for sines and for cosines of each axis: expected a multiple "
                f"of 4, got {site.d_model}; use d_model={works}"
            )
        self.exponent, self.base = exponent, base

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        column_first = pos.plane().flip(-1)
        layout = "concatenated" if self.exponent == "width" else "tensor2tensor"
        waves = sinusoids(column_first, x.shape[-1] // 2, layout, self.base).flatten(-2)
        return x + without_unplaced(waves, pos).to(x.dtype)


def sinusoids(index: Tensor, width: int, layout: Layout, base: float) -> Float[Tensor, "*B L D"]:
    """The waves at the positions `index`. An odd width drops the last cosine (tensor2tensor: pads with a zero)."""
    if layout == "tensor2tensor":
        pairs = width // 2
        # A single pair has the first frequency, whatever the step.
        step = 1 / max(pairs - 1, 1)
    else:
        pairs = (width + 1) // 2
        step = 2 / width
    frequency_F = frequencies(pairs, base, step, index.device)
    angle_LF = angles(index, frequency_F)
    sine_LF = angle_LF.sin()
    if layout == "concatenated":
        cosine_LF = angle_LF[..., : width // 2].cos()
        return torch.cat((sine_LF, cosine_LF), -1)
    cosine_LF = angle_LF.cos()
    if layout == "interleaved":
        return torch.stack((sine_LF, cosine_LF), -1).flatten(-2)[..., :width]
    waves_LD = torch.cat((sine_LF, cosine_LF), -1)
    return torch.nn.functional.pad(waves_LD, (0, width % 2))


def without_unplaced(vectors: Float[Tensor, "*X L D"], pos: Positions) -> Float[Tensor, "*Y L D"]:
    """The vectors of positions, and 0 for tokens without a position."""
    return vectors if pos.unplaced is None else vectors.masked_fill(pos.unplaced.unsqueeze(-1), 0.0)


def _check_width(name: str, site: Site) -> None:
    """Raises UserError for a width without both a sine and a cosine."""
    if site.d_model < 2:
        raise UserError(
            f"{name} needs a width of 2 or more (a sine and a cosine), got {site.d_model}; use d_model=2"
        )
