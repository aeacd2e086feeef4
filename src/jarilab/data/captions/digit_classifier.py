"""A small classifier that reads the digits of generated images. It is trained on real digits only."""

from __future__ import annotations

import math
from pathlib import Path
from typing import final

import torch
from jaxtyping import UInt8
from safetensors.torch import save
from torch import nn
from torch.nn import functional

from jarilab.core.shapes import Float, Int, Tensor
from jarilab.data.captions.attributes import FRAME, drawn, glyphs
from jarilab.data.captions.digit_images import DigitImages
from jarilab.data.captions.styles import Painter, Style
from jarilab.data.images.fitting import Progress, fit, load_weights, read_weights
from jarilab.nn.init import initialise

AT_ONCE = 512
EMPTY = -10_000.0
"""The log-probability of a missing digit: finite, so that images with fewer missing digits rank higher."""


class Reader(nn.Module):
    """A classifier of glyphs: scores of the ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 24, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(48, 64, 3, padding=1),
            nn.ReLU(),
        )
        self.out = nn.Linear(64 * (FRAME // 4) ** 2, 10)

    def forward(self, glyphs: Float[Tensor, "B h w"]) -> Float[Tensor, "B 10"]:
        return self.out(self.convolutions(glyphs.unsqueeze(1)).flatten(1))


@final
class DigitClassifier:
    """Reads the digits in images of one style."""

    def __init__(self, style: Style, reader: Reader):
        self.style, self._reader = style, reader.eval().requires_grad_(False)

    def read(self, images: UInt8[Tensor, "B 3 H W"]) -> Int[Tensor, "B N"]:
        """Return the digits of each image from left to right."""
        return self._log_probabilities(images).argmax(-1)

    def score(
        self, images: UInt8[Tensor, "B 3 H W"], values: Int[Tensor, "B P"]
    ) -> Float[Tensor, " B"]:
        """Return the log-probability that images show the digits of the words; `EMPTY` for each missing digit."""
        wanted_BN1 = values[:, list(self.style.digits)].unsqueeze(-1)
        log_BN = self._log_probabilities(images).gather(-1, wanted_BN1).squeeze(-1)
        return log_BN.masked_fill(~drawn(self.style, images), EMPTY).sum(1)

    @torch.no_grad()
    def _log_probabilities(self, images: Tensor) -> Tensor:
        parts = []
        for some in images.split(AT_ONCE):
            glyphs_BNhw = glyphs(self.style, some)
            scores = self._reader(glyphs_BNhw.flatten(0, 1)).log_softmax(-1)
            parts.append(scores.unflatten(0, glyphs_BNhw.shape[:2]))
        return torch.cat(parts)

    def to_bytes(self) -> bytes:
        """Return the weights as safetensors."""
        return save(self._reader.state_dict())

    @staticmethod
    def from_file(style: Style, path: Path) -> DigitClassifier:
        """Read a file written by `to_bytes`. Raises UserError for any other."""
        reader = Reader()
        load_weights(reader, read_weights(path)[0], path)
        return DigitClassifier(style, reader)


def halves(digits: DigitImages) -> tuple[DigitImages, DigitImages]:
    """Split digits into those with even and with odd index."""
    return _every(digits, 0), _every(digits, 1)


def _every(digits: DigitImages, start: int) -> DigitImages:
    return DigitImages(digits.pixels[start::2], digits.labels[start::2], digits.ink[start::2])


def train_digit_classifier(
    style: Style,
    digits: DigitImages,
    *,
    seed: int,
    steps: int = 2000,
    batch_size: int = 128,
    lr: float = 2e-3,
    progress: Progress | None = None,
) -> DigitClassifier:
    """Train a classifier on images of this style made of real digits.

    The same seed, digits and number of threads give the same weights.
    """
    painter = Painter(style, digits, seed=seed)
    reader = Reader()
    initialise(reader, seed)
    scenes = math.ceil(batch_size / len(style.digits))

    def loss_of(step: int) -> Float[Tensor, ""]:
        # Seeds lie further apart than there are steps, so that two share no batch.
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        numbers = torch.arange(step * scenes, (step + 1) * scenes)
        captions = torch.randint(style.combinations, numbers.shape, generator=generator)
        values_BP = style.values(captions)
        images = painter.paint(values_BP, numbers)
        labels = values_BP[:, list(style.digits)].flatten()
        scores = reader(glyphs(style, images).flatten(0, 1))
        return functional.cross_entropy(scores, labels, label_smoothing=0.05)

    optimizer = torch.optim.AdamW(reader.parameters(), lr=lr, weight_decay=0.05, fused=True)
    fit(reader, loss_of, optimizer, steps, progress=progress)
    return DigitClassifier(style, reader)
