"""Images as a grid of code numbers, and back: what a language model of images reads and writes.

Three ways to make a vector one of a few: FSQ (*Finite Scalar Quantization: VQ-VAE Made Simple*, Mentzer et al. 2023),
VQ (*Neural Discrete Representation Learning*, van den Oord et al. 2017) and Gumbel (*Zero-Shot Text-to-Image
Generation*, Ramesh et al. 2021, section 2.1).
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

from jarilab.errors import UserError
from jarilab.shapes import Float, Int, Tensor

STRIDE = 4
"""Pixels of an image that one code stands for, along each axis."""


@dataclass(frozen=True, eq=False)
class Quantized:
    """vectors: `(B, D, h, w)`, for the decoder, with a gradient. ids: `(B, h, w)`, which code each is. loss: what
    the quantizer itself wants made smaller."""

    vectors: Float[Tensor, "B D h w"]
    ids: Int[Tensor, "B h w"]
    loss: Float[Tensor, ""]


class Quantizer(nn.Module, ABC):
    """Makes each vector of a grid one of `codes`. read: the width of what comes in; width: D of what goes out."""

    codes: int
    read: int
    width: int

    @abstractmethod
    def forward(self, z: Float[Tensor, "B R h w"]) -> Quantized:
        """Quantize; in training, what else the way needs: noise, a moving average."""

    @abstractmethod
    def vectors(self, ids: Int[Tensor, "B h w"]) -> Float[Tensor, "B D h w"]:
        """What the decoder reads of these codes."""

    def progress(self, done: float) -> None:
        """Told before each step which share of the training is done."""
        return


@final
class FSQ(Quantizer):
    """Rounds each of a few bounded numbers to one of its levels: no codebook, so none of it can die (section 3.1)."""

    levels: Tensor
    places: Tensor

    def __init__(self, levels: tuple[int, ...]):
        super().__init__()
        if not levels or min(levels) < 2:
            raise UserError(
                f"FSQ needs 2 levels or more of each number: expected such as 8 5 5, got {levels}"
            )
        self.codes, self.read, self.width = math.prod(levels), len(levels), len(levels)
        self.register_buffer("levels", torch.tensor(levels), persistent=False)
        places = torch.tensor([math.prod(levels[:i]) for i in range(len(levels))])
        self.register_buffer("places", places, persistent=False)

    def forward(self, z: Float[Tensor, "B R h w"]) -> Quantized:
        z_BhwR = z.movedim(1, -1)
        half = (
            (self.levels - 1) * (1 + 1e-3) / 2
        )  # a little more than there is, so that the outermost are reached
        offset = (self.levels % 2 == 0) / 2  # an even number of levels has none at 0
        bounded = (z_BhwR + (offset / half).atanh()).tanh() * half - offset
        # Rounding has no gradient; the one of what was rounded stands in for it.
        rounded = bounded + (bounded.round() - bounded).detach()
        ids = ((bounded.round() + self.levels // 2).long() * self.places).sum(-1)
        return Quantized((rounded / (self.levels // 2)).movedim(-1, 1), ids, z.new_zeros(()))

    def vectors(self, ids: Int[Tensor, "B h w"]) -> Float[Tensor, "B D h w"]:
        level = ids.unsqueeze(-1) // self.places % self.levels
        return ((level - self.levels // 2) / (self.levels // 2)).movedim(-1, 1)


@final
class VQ(Quantizer):
    """The nearest of a book of vectors of length 1, each the moving average of what was nearest to it (van den Oord et
    al. 2017, appendix A.1). A code that hardly anything is nearest to is put where a vector is badly met.

    Few dimensions and length 1 keep codes alive (*Improved VQGAN*, Yu et al. 2022, section 3.2).
    """

    DECAY, DEAD, COMMITMENT = 0.99, 0.03, 0.25
    book: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, codes: int, width: int):
        super().__init__()
        self.codes, self.read, self.width = codes, width, width
        self.register_buffer("book", functional.normalize(torch.randn(codes, width), dim=-1))
        self.register_buffer("counts", torch.zeros(codes))
        self.register_buffer("sums", torch.zeros(codes, width))

    def forward(self, z: Float[Tensor, "B R h w"]) -> Quantized:
        z_BhwD = functional.normalize(z.movedim(1, -1), dim=-1)
        flat_ND = z_BhwD.detach().flatten(0, -2)
        nearest_N = (flat_ND @ self.book.T).argmax(-1)
        found = self.book[nearest_N].view_as(z_BhwD)
        if self.training:
            self._follow(flat_ND, nearest_N)
        loss = self.COMMITMENT * functional.mse_loss(z_BhwD, found)
        straight = z_BhwD + (found - z_BhwD).detach()
        return Quantized(straight.movedim(-1, 1), nearest_N.view(z_BhwD.shape[:-1]), loss)

    @torch.no_grad()
    def _follow(self, flat_ND: Tensor, nearest_N: Tensor) -> None:
        chosen_NK = functional.one_hot(nearest_N, self.codes).to(flat_ND.dtype)
        self.counts.lerp_(chosen_NK.sum(0), 1 - self.DECAY)
        self.sums.lerp_(chosen_NK.T @ flat_ND, 1 - self.DECAY)
        dead = self.counts < self.DEAD
        # Where the book is worst, as k-means++ does; a little of everywhere, since a distance may be 0.
        far_N = 1 - (flat_ND * self.book[nearest_N]).sum(-1)
        taken = flat_ND[torch.multinomial(far_N.clamp_min(0) + 1e-6, self.codes, replacement=True)]
        self.counts[dead], self.sums[dead] = 2 * self.DEAD, 2 * self.DEAD * taken[dead]
        self.book.copy_(functional.normalize(self.sums, dim=-1))

    def vectors(self, ids: Int[Tensor, "B h w"]) -> Float[Tensor, "B D h w"]:
        return self.book[ids].movedim(-1, 1)


@final
class Gumbel(Quantizer):
    """Draws a code from scores, softly at first: Gumbel noise, a softmax whose temperature falls, the hard choice
    forward (straight through). A little of the divergence from using all codes alike keeps them in use."""

    FIRST, LAST, DIVERGENCE = 1.0, 1 / 16, 5e-4

    def __init__(self, codes: int, width: int):
        super().__init__()
        self.codes, self.read, self.width, self.temperature = codes, codes, width, self.FIRST
        self.book = nn.Linear(codes, width, bias=False)

    def progress(self, done: float) -> None:
        self.temperature = self.FIRST * (self.LAST / self.FIRST) ** min(1.0, done / 0.75)

    def forward(self, z: Float[Tensor, "B R h w"]) -> Quantized:
        if not self.training:
            ids = z.argmax(1)
            return Quantized(self.vectors(ids), ids, z.new_zeros(()))
        scores_BhwK = z.movedim(1, -1)
        noise = -torch.empty_like(scores_BhwK).exponential_().log()
        soft_BhwK = ((scores_BhwK + noise) / self.temperature).softmax(-1)
        ids = soft_BhwK.argmax(-1)
        hard_BhwK = soft_BhwK + (functional.one_hot(ids, self.codes) - soft_BhwK).detach()
        log_BhwK = scores_BhwK.log_softmax(-1)
        divergence = (log_BhwK.exp() * (log_BhwK + math.log(self.codes))).sum(-1).mean()
        return Quantized(self.book(hard_BhwK).movedim(-1, 1), ids, self.DIVERGENCE * divergence)

    def vectors(self, ids: Int[Tensor, "B h w"]) -> Float[Tensor, "B D h w"]:
        return self.book.weight.T[ids].movedim(-1, 1)


class Block(nn.Module):
    """Two convolutions beside a path that changes nothing."""

    def __init__(self, width: int):
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1)
        self.two = nn.Conv2d(width, width, 1)

    def forward(self, x: Float[Tensor, "B D h w"]) -> Float[Tensor, "B D h w"]:
        return x + self.two(functional.relu(self.one(functional.relu(x))))


class Autoencoder(nn.Module):
    """An image of values 0 to 1 as a grid of codes, one for 4 x 4 pixels, and back.

        model = jarilab.models.autoencoder.Autoencoder(quantizer="fsq")
        ids_Bhw = model.encode(pixels_BCHW); pixels_BCHW = model.decode(ids_Bhw)

    width: channels of the convolutions. blocks: pairs of them on each side. quantizer: fsq, vq or gumbel. levels: of
    each number of an FSQ code; 8 5 5 are 200 codes. codes: how many, for vq and gumbel. code_width: the width of a
    code, for vq and gumbel. Raises UserError for images whose sides are no multiples of 4.
    """

    def __init__(
        self,
        *,
        width: Annotated[int, Ge(8), Le(4096)] = 48,
        blocks: Annotated[int, Ge(0), Le(100)] = 1,
        quantizer: Literal["fsq", "vq", "gumbel"] = "fsq",
        levels: tuple[int, ...] = (8, 5, 5),
        codes: Annotated[int, Ge(2), Le(65536)] = 200,
        code_width: Annotated[int, Ge(1), Le(4096)] = 4,
    ):
        super().__init__()
        self.quantizer: Quantizer
        if quantizer == "fsq":
            self.quantizer = FSQ(tuple(levels))
        else:
            self.quantizer = (VQ if quantizer == "vq" else Gumbel)(codes, code_width)
        half = width // 2
        self.encoder = nn.Sequential(
            nn.Conv2d(3, half, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(half, width, 4, stride=2, padding=1),
            *(Block(width) for _ in range(blocks)),
            nn.ReLU(),
            nn.Conv2d(width, self.quantizer.read, 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(self.quantizer.width, width, 3, padding=1),
            *(Block(width) for _ in range(blocks)),
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
        """The image again, made of its codes, and these. Its values may lie a little outside 0 to 1: a sigmoid would
        let dark images go black, where it has no gradient."""
        if pixels.shape[-2] % STRIDE or pixels.shape[-1] % STRIDE or 0 in pixels.shape[-2:]:
            raise UserError(
                f"a code stands for {STRIDE} x {STRIDE} pixels: expected sides that are multiples of {STRIDE}, got "
                f"{pixels.shape[-2]} x {pixels.shape[-1]}; resize or pad the images"
            )
        quantized = self.quantizer(self.encoder(pixels * 2 - 1))
        return self.decoder(quantized.vectors), quantized

    @torch.no_grad()
    def encode(self, pixels: Float[Tensor, "B 3 H W"]) -> Int[Tensor, "B h w"]:
        """The code numbers of images."""
        return self(pixels)[1].ids

    @torch.no_grad()
    def decode(self, ids: Int[Tensor, "B h w"]) -> Float[Tensor, "B 3 H W"]:
        """The images that codes stand for. Raises UserError for numbers that are no codes."""
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.codes:
            raise UserError(
                f"expected codes from 0 to {self.codes - 1}, got {int(ids.min())} to {int(ids.max())}; take the text "
                "tokens' share off, and use the autoencoder that the codes are of"
            )
        return self.decoder(self.quantizer.vectors(ids)).clamp(0, 1)
