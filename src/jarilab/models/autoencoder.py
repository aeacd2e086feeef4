"""An autoencoder between images and grids of codes, which a language model of images reads and writes.

Two quantizers: FSQ (*Finite Scalar Quantization: VQ-VAE Made Simple*, Mentzer et al. 2023), and Gumbel as in DALL-E
(*Zero-Shot Text-to-Image Generation*, Ramesh et al. 2021, section 2.1).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from annotated_types import Ge, Le
from torch import nn
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor

STRIDE = 4
"""Side of the square of one code, in pixels."""


QuantizerName = Literal["fsq", "gumbel"]


@dataclass(frozen=True, eq=False)
class Quantized:
    """Output of a quantizer.

    vectors: for the decoder, with a gradient. ids: codes. loss: the quantizer's own loss.
    """

    vectors: Float[Tensor, "B D h w"]
    ids: Int[Tensor, "B h w"]
    loss: Float[Tensor, ""]


class Quantizer(nn.Module, ABC):
    """Maps each vector of a grid to one of `codes`. width_in: R, the input's size. width_out: D, the output's size."""

    codes: int
    width_in: int
    width_out: int

    @abstractmethod
    def forward(self, z: Float[Tensor, "B R h w"]) -> Quantized:
        """Quantize, with noise in training if the quantizer uses it."""

    @abstractmethod
    def vectors(self, ids: Int[Tensor, "B h w"]) -> Float[Tensor, "B D h w"]:
        """Return the decoder's input for these codes."""

    def anneal(self, done: float) -> None:
        """Set the share of the training that is done, before each step."""
        return


@final
class FSQ(Quantizer):
    """Rounds each of a few bounded numbers to one of its levels. Without a codebook, no code can die (section 3.1)."""

    levels: Tensor
    place_values: Tensor

    def __init__(self, levels: tuple[int, ...]):
        super().__init__()
        if not levels or min(levels) < 2:
            raise UserError(
                f"FSQ needs 2 levels or more of each number: expected such as 8 5 5, got {levels}"
            )
        self.codes = math.prod(levels)
        self.width_in = self.width_out = len(levels)
        # A code is a number whose digits are the levels; a digit counts as much as there are codes below it.
        place_values = [math.prod(levels[:digit]) for digit in range(len(levels))]
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        self.register_buffer("place_values", torch.tensor(place_values), persistent=False)

    def forward(self, z: Float[Tensor, "B R h w"]) -> Quantized:
        z_BhwR = z.movedim(1, -1)
        # Slightly more than the range, so that rounding reaches the outermost levels.
        half_R = (self.levels - 1) * (1 + 1e-3) / 2
        offset_R = (self.levels % 2 == 0) / 2  # an even number of levels has none at 0
        # Cancels the offset at z = 0.
        shift_R = (offset_R / half_R).atanh()
        shifted_BhwR = z_BhwR + shift_R
        bounded_BhwR = shifted_BhwR.tanh() * half_R - offset_R
        level_BhwR = bounded_BhwR.round()
        middle_R = self.levels // 2
        digits_BhwR = (level_BhwR + middle_R).long()
        ids_Bhw = (digits_BhwR * self.place_values).sum(-1)
        # Straight-through: rounding has no gradient, so its input's is used.
        rounding_BhwR = level_BhwR - bounded_BhwR
        rounded_BhwR = bounded_BhwR + rounding_BhwR.detach()
        vectors_BhwD = rounded_BhwR / middle_R
        return Quantized(vectors_BhwD.movedim(-1, 1), ids_Bhw, z.new_zeros(()))

    def vectors(self, ids: Int[Tensor, "B h w"]) -> Float[Tensor, "B D h w"]:
        digits_BhwR = ids.unsqueeze(-1) // self.place_values % self.levels
        middle_R = self.levels // 2
        vectors_BhwD = (digits_BhwR - middle_R) / middle_R
        return vectors_BhwD.movedim(-1, 1)


@final
class Gumbel(Quantizer):
    """Draws a code from scores: Gumbel noise, a softmax of falling temperature, and a straight-through hard choice.

    A small divergence from the uniform distribution keeps all codes in use.
    """

    FIRST, LAST, DIVERGENCE = 1.0, 1 / 16, 5e-4

    def __init__(self, codes: int, width: int):
        super().__init__()
        self.codes, self.width_in, self.width_out = codes, codes, width
        self.temperature = self.FIRST
        self.book = nn.Linear(codes, width, bias=False)

    def anneal(self, done: float) -> None:
        # The last quarter of the training stays at the lowest temperature, as DALL-E ends at 1/16.
        cooled = min(1.0, done / 0.75)
        self.temperature = self.FIRST * (self.LAST / self.FIRST) ** cooled

    def forward(self, z: Float[Tensor, "B R h w"]) -> Quantized:
        if not self.training:
            ids_Bhw = z.argmax(1)
            return Quantized(self.vectors(ids_Bhw), ids_Bhw, z.new_zeros(()))
        scores_BhwK = z.movedim(1, -1)
        # Minus the logarithm of an exponential number is Gumbel noise.
        noise_BhwK = -torch.empty_like(scores_BhwK).exponential_().log()
        noisy_BhwK = scores_BhwK + noise_BhwK
        soft_BhwK = (noisy_BhwK / self.temperature).softmax(-1)
        ids_Bhw = soft_BhwK.argmax(-1)
        chosen_BhwK = functional.one_hot(ids_Bhw, self.codes)
        # Straight-through: the value of the hard choice, the gradient of the soft one.
        hardening_BhwK = chosen_BhwK - soft_BhwK
        hard_BhwK = soft_BhwK + hardening_BhwK.detach()
        vectors_BhwD = self.book(hard_BhwK)
        divergence = self.DIVERGENCE * self._divergence(scores_BhwK)
        return Quantized(vectors_BhwD.movedim(-1, 1), ids_Bhw, divergence)

    def _divergence(self, scores_BhwK: Tensor) -> Float[Tensor, ""]:
        """Return the mean Kullback-Leibler divergence from uniform use of the codes, in nats."""
        log_BhwK = scores_BhwK.log_softmax(-1)
        terms_BhwK = log_BhwK.exp() * (log_BhwK + math.log(self.codes))
        return terms_BhwK.sum(-1).mean()

    def vectors(self, ids: Int[Tensor, "B h w"]) -> Float[Tensor, "B D h w"]:
        vectors_BhwD = self.book.weight.T[ids]
        return vectors_BhwD.movedim(-1, 1)


class ConvolutionBlock(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, width: int):
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1)
        self.two = nn.Conv2d(width, width, 1)

    def forward(self, x: Float[Tensor, "B D h w"]) -> Float[Tensor, "B D h w"]:
        hidden_BDhw = self.one(functional.relu(x))
        change_BDhw = self.two(functional.relu(hidden_BDhw))
        return x + change_BDhw


class Autoencoder(nn.Module):
    """Encodes an image with values 0 to 1 as a grid of codes, one for 4 x 4 pixels, and decodes it.

        model = jarilab.models.autoencoder.Autoencoder(quantizer="fsq")
        ids_Bhw = model.encode(pixels_BCHW); pixels_BCHW = model.decode(ids_Bhw)

    width: channels of the convolutions. blocks: pairs of convolutions on each side. quantizer: fsq or gumbel. levels:
    of each number of an FSQ code; 8 5 5 are 200 codes. codes: number of codes, for gumbel. code_width: size of a code
    vector, for gumbel. Raises UserError for images whose sides are not multiples of 4.
    """

    def __init__(
        self,
        *,
        width: Annotated[int, Ge(8), Le(4096)] = 48,
        blocks: Annotated[int, Ge(0), Le(100)] = 1,
        quantizer: QuantizerName = "fsq",
        levels: tuple[int, ...] = (8, 5, 5),
        codes: Annotated[int, Ge(2), Le(65536)] = 200,
        code_width: Annotated[int, Ge(1), Le(4096)] = 4,
    ):
        super().__init__()
        self.quantizer: Quantizer
        if quantizer == "fsq":
            self.quantizer = FSQ(tuple(levels))
        else:
            self.quantizer = Gumbel(codes, code_width)
        half = width // 2
        self.encoder = nn.Sequential(
            nn.Conv2d(3, half, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(half, width, 4, stride=2, padding=1),
            *(ConvolutionBlock(width) for _ in range(blocks)),
            nn.ReLU(),
            nn.Conv2d(width, self.quantizer.width_in, 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(self.quantizer.width_out, width, 3, padding=1),
            *(ConvolutionBlock(width) for _ in range(blocks)),
            nn.ReLU(),
            nn.Conv2d(width, 4 * half, 3, padding=1),
            nn.PixelShuffle(2),
            nn.ReLU(),
            nn.Conv2d(half, 4 * 3, 3, padding=1),
            nn.PixelShuffle(2),
        )

    @property
    def codes(self) -> int:
        return self.quantizer.codes

    def forward(
        self, pixels: Float[Tensor, "B 3 H W"]
    ) -> tuple[Float[Tensor, "B 3 H W"], Quantized]:
        """Return the reconstructed image and its codes. Values may lie a little outside 0 to 1."""
        height, width = pixels.shape[-2:]
        if height % STRIDE or width % STRIDE or 0 in (height, width):
            raise UserError(
                f"a code stands for {STRIDE} x {STRIDE} pixels: expected sides that are multiples of {STRIDE}, got "
                f"{height} x {width}; resize or pad the images"
            )
        z_BRhw = self.encoder(pixels * 2 - 1)
        quantized = self.quantizer(z_BRhw)
        return self.decoder(quantized.vectors), quantized

    @torch.no_grad()
    def encode(self, pixels: Float[Tensor, "B 3 H W"]) -> Int[Tensor, "B h w"]:
        """Return the code ids of images."""
        _, quantized = self(pixels)
        return quantized.ids

    @torch.no_grad()
    def decode(self, ids: Int[Tensor, "B h w"]) -> Float[Tensor, "B 3 H W"]:
        """Return the images of code ids. Raises UserError for ids out of range."""
        if ids.numel():
            lowest, highest = int(ids.min()), int(ids.max())
            if lowest < 0 or highest >= self.codes:
                raise UserError(
                    f"expected codes from 0 to {self.codes - 1}, got {lowest} to {highest}; take the text "
                    "tokens' share off, and use the autoencoder that the codes are of"
                )
        vectors_BDhw = self.quantizer.vectors(ids)
        return self.decoder(vectors_BDhw).clamp(0, 1)
