"""Sinusoids added to the input: *Attention Is All You Need* (Vaswani et al. 2017), section 3.5, in three layouts."""

from __future__ import annotations

from typing import Annotated, Literal, final

import torch
from annotated_types import Gt

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.encodings.base import Encoding, Site, registry
from jarilab.encodings.numbers import angles, frequencies
from jarilab.positions.coordinates import Positions

Layout = Literal["interleaved", "concatenated", "tensor2tensor"]


@final
@registry.register("sinusoidal", "sin", "sine")
class Sinusoidal(Encoding):
    """Adds fixed waves, from fast to slow, to the input; the model tells places by their pattern.

    layout:
        interleaved: the paper's. `PE[p, 2i] = sin(p / base^(2i/D))`, `PE[p, 2i+1] = cos(p / base^(2i/D))`.
        concatenated: the same numbers, all sines first, then all cosines.
        tensor2tensor: as the authors' own code (and fairseq) has it: concatenated, with exponent `i / (D/2 - 1)`, so
            the slowest wave is slower than the paper's: by 4 % at D 512, by a factor of 3.2 at D 16.
    base: the wavelengths run from 2 pi to about base * 2 pi.
    """

    shift_invariant = False
    cross = False

    def __init__(
        self, site: Site, *, layout: Layout = "interleaved", base: Annotated[float, Gt(1)] = 10000.0
    ):
        super().__init__(site)
        if site.width < 2:
            raise UserError(
                f"sinusoidal needs a width of 2 or more (a sine and a cosine), got {site.width}"
            )
        self.layout: Layout = layout
        self.base = base

    def embed(self, x: Float[Tensor, "B L D"], pos: Positions) -> Float[Tensor, "B L D"]:
        waves = sinusoids(pos.index(), x.shape[-1], self.layout, self.base)
        if pos.unplaced is not None:
            waves = waves.masked_fill(pos.unplaced.unsqueeze(-1), 0.0)
        return x + waves.to(x.dtype)


def sinusoids(index: Tensor, width: int, layout: Layout, base: float) -> Float[Tensor, "*B L D"]:
    """The waves at the positions `index`. An odd width drops the last cosine (tensor2tensor: pads with a zero)."""
    if layout == "tensor2tensor":
        pairs = width // 2
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
