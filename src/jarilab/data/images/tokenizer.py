"""The image tokenizer as a language model uses it: trained first, then frozen, named by its sha256."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from safetensors.torch import save
from torch.nn import functional

from jarilab.core.errors import UserError
from jarilab.core.options import options_of, read_options
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.core.storage.cache import cached
from jarilab.data.images.fitting import (
    Progress,
    fit,
    foreign_weights,
    note,
    progress_bar,
    read_weights,
    take_weights,
)
from jarilab.models.autoencoder import STRIDE as STRIDE
from jarilab.models.autoencoder import Autoencoder
from jarilab.models.autoencoder import QuantizerName as QuantizerName
from jarilab.nn.init import initialise

AT_ONCE = 256  # images encoded together
FILE = "codes.safetensors"
"""The name of an image tokenizer's file in a run."""

Images = Callable[[Int[Tensor, " B"]], UInt8[Tensor, "B 3 H W"]]
"""The images with these numbers."""


@dataclass(frozen=True, eq=False)
class ImageTokenizer:
    """A frozen autoencoder. measured: what is known of it: psnr, codes_used, perplexity."""

    autoencoder: Autoencoder
    options: Mapping[str, Any]
    measured: Mapping[str, float]

    def __len__(self) -> int:
        return self.autoencoder.codes

    def encode(self, images: UInt8[Tensor, "B 3 H W"]) -> Int[Tensor, "B h w"]:
        """Code numbers, a few hundred images at a time."""
        parts = [self.autoencoder.encode(some.float() / 255) for some in images.split(AT_ONCE)]
        return torch.cat(parts)

    def decode(self, ids: Int[Tensor, "B h w"]) -> UInt8[Tensor, "B 3 H W"]:
        """The images that codes stand for."""
        parts = [self.autoencoder.decode(some) for some in ids.split(AT_ONCE)]
        return (torch.cat(parts) * 255).round().byte()

    def to_bytes(self) -> bytes:
        """The weights as safetensors, what they belong to in the header."""
        # One entry: of several, safetensors writes now this one first and now that, and the sha256 would change.
        facts = {"options": dict(self.options), "measured": dict(self.measured)}
        state = self.autoencoder.state_dict()
        tensors = {name: tensor.contiguous() for name, tensor in state.items()}
        return save(tensors, metadata={"codes": json.dumps(facts)})

    @property
    def fingerprint(self) -> str:
        """The sha256 of the weights, which the record of a language model names."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @staticmethod
    def read(path: Path) -> ImageTokenizer:
        """The tokenizer in a file of `to_bytes`. Raises UserError for anything else."""
        tensors, header = read_weights(path)
        try:
            facts = json.loads(header["codes"])
            options = read_options(str(path), options_of(Autoencoder), facts["options"])
            measured = {str(name): float(value) for name, value in facts["measured"].items()}
        except UserError:
            raise
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise foreign_weights(path, error) from None
        autoencoder = Autoencoder(**options)
        take_weights(autoencoder, tensors, path)
        return ImageTokenizer(autoencoder, options, measured)


def train_image_tokenizer(
    images: Images,
    count: int,
    options: Mapping[str, Any] | None = None,
    *,
    seed: int = 1,
    steps: int = 1500,
    batch_size: int = 64,
    lr: float = 4e-3,
    progress: Progress | None = None,
) -> ImageTokenizer:
    """Train an autoencoder on `count` images by the squared error, and freeze it.

    options: of the Autoencoder. The same seed, images and number of threads give the same weights. Raises UserError
    where the loss is no finite number.
    """
    options = dict(options or {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        autoencoder = Autoencoder(**options)
        initialise(autoencoder, seed)

        def loss_of(step: int) -> Float[Tensor, ""]:
            autoencoder.quantizer.anneal(step / steps)
            pixels_BCHW = images(torch.randint(count, (batch_size,))).float() / 255
            decoded_BCHW, quantized = autoencoder(pixels_BCHW)
            # Summed over colours, so that the quantizer's own loss weighs little beside it.
            return 3 * functional.mse_loss(decoded_BCHW, pixels_BCHW) + 0.01 * quantized.loss

        optimizer = torch.optim.AdamW(
            autoencoder.parameters(), lr=lr, betas=(0.9, 0.99), fused=True
        )
        fit(autoencoder, loss_of, optimizer, steps, clip=1.0, progress=progress)
    frozen = ImageTokenizer(autoencoder, options, {})
    return replace(frozen, measured=measure(frozen, images, min(count, 4096)))


def cached_image_tokenizer(
    images: Images,
    count: int,
    options: Mapping[str, Any],
    *,
    seed: int,
    steps: int,
    data: Mapping[str, Any],
) -> ImageTokenizer:
    """An image tokenizer trained on these images, with progress, or the one that the cache holds of them.

    data: what the images are; equal data, options and steps give the same tokenizer.
    """

    def make(folder: Path) -> dict[str, Any]:
        note(f"training the image tokenizer, {steps:,} steps")
        with progress_bar("image tokenizer") as progress:
            made = train_image_tokenizer(
                images, count, options, seed=seed, steps=steps, progress=progress
            )
        (folder / FILE).write_bytes(made.to_bytes())
        return {}

    facts = {"what": "codes", **data, "options": dict(options), "steps": steps}
    return cached(facts, make, lambda folder, _: ImageTokenizer.read(folder / FILE))


def measure(tokenizer: ImageTokenizer, images: Images, count: int) -> dict[str, float]:
    """Over the first `count` images, not a batch: `psnr` in decibels of what is decoded from hard codes; the share
    `codes_used`; `perplexity`, how many codes used alike would be as hard to guess."""
    squared, values, uses_K = 0.0, 0, torch.zeros(len(tokenizer))
    for some in torch.arange(count).split(AT_ONCE):
        pixels = images(some)
        ids = tokenizer.encode(pixels)
        error = tokenizer.autoencoder.decode(ids) - pixels.float() / 255
        uses_K += torch.bincount(ids.flatten(), minlength=len(tokenizer))
        squared += float(error.square().sum())
        values += pixels.numel()
    share_K = uses_K / uses_K.sum()
    return {
        "psnr": _psnr(squared / values),
        "codes_used": float((uses_K > 0).float().mean()),
        "perplexity": float(torch.special.entr(share_K).sum().exp()),
    }


def decibels(first: UInt8[Tensor, "*S"], second: UInt8[Tensor, "*S"]) -> float:
    """PSNR: how alike two images are; 100 for equal ones."""
    squared = (first.float() - second.float()).square()
    return _psnr(float(squared.mean()) / 255**2)


def _psnr(error: float) -> float:
    return -10 * math.log10(max(error, 1e-10))
