"""The image tokenizer: an autoencoder that is trained first, then frozen."""

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
from jarilab.core.storage.content_cache import cached
from jarilab.data.images.fitting import (
    Progress,
    fit,
    foreign_weights,
    load_weights,
    note,
    progress_bar,
    read_weights,
)
from jarilab.models.autoencoder import STRIDE as STRIDE
from jarilab.models.autoencoder import Autoencoder
from jarilab.models.autoencoder import QuantizerName as QuantizerName
from jarilab.nn.init import initialise

AT_ONCE = 256  # images encoded together
FILE = "codes.safetensors"
"""The name of an image tokenizer's file in a run."""

Images = Callable[[Int[Tensor, " B"]], UInt8[Tensor, "B 3 H W"]]
"""Returns the images at these indices."""


@dataclass(frozen=True, eq=False)
class ImageTokenizer:
    """A frozen autoencoder. measured: its psnr, codes_used and perplexity, see `measure`."""

    autoencoder: Autoencoder
    options: Mapping[str, Any]
    measured: Mapping[str, float]

    def __len__(self) -> int:
        return self.autoencoder.codes

    def encode(self, images: UInt8[Tensor, "B 3 H W"]) -> Int[Tensor, "B h w"]:
        """Return code ids, computed for 256 images at a time."""
        parts = [self.autoencoder.encode(some.float() / 255) for some in images.split(AT_ONCE)]
        return torch.cat(parts)

    def decode(self, ids: Int[Tensor, "B h w"]) -> UInt8[Tensor, "B 3 H W"]:
        """Return the images of these codes."""
        parts = [self.autoencoder.decode(some) for some in ids.split(AT_ONCE)]
        return (torch.cat(parts) * 255).round().byte()

    def to_bytes(self) -> bytes:
        """Return the weights as safetensors, with options and measurements in the header."""
        # safetensors writes several header entries in varying order, which would change the sha256. So there is one.
        facts = {"options": dict(self.options), "measured": dict(self.measured)}
        state = self.autoencoder.state_dict()
        tensors = {name: tensor.contiguous() for name, tensor in state.items()}
        return save(tensors, metadata={"codes": json.dumps(facts)})

    @property
    def fingerprint(self) -> str:
        """The sha256 of the weights, which a run's record contains."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @staticmethod
    def read(path: Path) -> ImageTokenizer:
        """Read a file written by `to_bytes`. Raises UserError for any other."""
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
        load_weights(autoencoder, tensors, path)
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
    """Train an autoencoder on `count` images by squared error, and freeze it.

    options: of the Autoencoder. The same seed, images and number of threads give the same weights. Raises UserError
    if the loss is not finite.
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
            # Summed over colours, so the quantizer's loss weighs little beside it.
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
    """Train an image tokenizer with a progress bar, or take it from the cache.

    data: identifies the images. Equal data, options and steps give the same tokenizer.
    """

    def make(folder: Path) -> dict[str, Any]:
        note(f"training the image tokenizer, {steps:,} steps")
        with progress_bar("image tokenizer") as progress:
            tokenizer = train_image_tokenizer(
                images, count, options, seed=seed, steps=steps, progress=progress
            )
        (folder / FILE).write_bytes(tokenizer.to_bytes())
        return {}

    facts = {"what": "codes", **data, "options": dict(options), "steps": steps}
    return cached(facts, make, lambda folder, _: ImageTokenizer.read(folder / FILE))


def measure(tokenizer: ImageTokenizer, images: Images, count: int) -> dict[str, float]:
    """Measure a tokenizer on the first `count` images.

    `psnr`: decibels of images decoded from hard codes. `codes_used`: the share of codes in use. `perplexity`: the
    number of equally frequent codes with the same entropy.
    """
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
    """Return the PSNR of two images in decibels, 100 for equal ones."""
    squared = (first.float() - second.float()).square()
    return _psnr(float(squared.mean()) / 255**2)


def _psnr(error: float) -> float:
    return -10 * math.log10(max(error, 1e-10))
