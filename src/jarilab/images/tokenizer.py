"""The image tokenizer as a language model uses it: trained first, then frozen, named by its sha256."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

from jarilab.errors import UserError
from jarilab.models.autoencoder import STRIDE as STRIDE
from jarilab.models.autoencoder import Autoencoder
from jarilab.nn.init import initialise
from jarilab.options import options_of, read_options
from jarilab.shapes import Int, Tensor

AT_ONCE = 256  # images encoded together
LARGEST = 256 * 2**20  # bytes of a file of weights

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
        header = {
            "codes": json.dumps({"options": dict(self.options), "measured": dict(self.measured)})
        }
        return save(
            {n: t.contiguous() for n, t in self.autoencoder.state_dict().items()}, metadata=header
        )

    @property
    def fingerprint(self) -> str:
        """The sha256 of the weights, which the record of a language model names."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @staticmethod
    def read(path: Path) -> ImageTokenizer:
        """The codes in a file of `to_bytes`. Raises UserError for anything else."""
        tensors, header = read_weights(path)
        try:
            said = json.loads(header["codes"])
            options = read_options(str(path), options_of(Autoencoder), said["options"])
            measured = {str(name): float(value) for name, value in said["measured"].items()}
        except UserError:
            raise
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise _foreign(path, error) from None
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
    batch: int = 64,
    learning_rate: float = 4e-3,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> ImageTokenizer:
    """Train an autoencoder on `count` images by the squared error, and freeze it.

    options: of the Autoencoder. report: told at each step: step, steps, loss. The same seed, images and number of
    threads give the same weights. Raises UserError where the loss is no finite number.
    """
    options = dict(options or {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        autoencoder = Autoencoder(**options)
        initialise(autoencoder, seed)
        optimizer = torch.optim.AdamW(
            autoencoder.parameters(), lr=learning_rate, betas=(0.9, 0.99), fused=True
        )
        schedule = one_cycle(optimizer, learning_rate, steps)
        autoencoder.train()
        for step in range(1, steps + 1):
            autoencoder.quantizer.progress((step - 1) / steps)
            pixels_BCHW = images(torch.randint(count, (batch,))).float() / 255
            again_BCHW, quantized = autoencoder(pixels_BCHW)
            # Summed over colours, so that the quantizer's own loss weighs little beside it.
            loss = 3 * functional.mse_loss(again_BCHW, pixels_BCHW) + 0.01 * quantized.loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(autoencoder.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if not math.isfinite(loss.item()):
                raise UserError(
                    f"codes: step {step}: the loss is {loss.item()}; a lower learning rate may help"
                )
            if report is not None:
                report({"step": step, "steps": steps, "loss": loss.item()})
    autoencoder.eval().requires_grad_(False)
    frozen = ImageTokenizer(autoencoder, options, {})
    return ImageTokenizer(autoencoder, options, measure(frozen, images, min(count, 4096)))


def one_cycle(optimizer: torch.optim.Optimizer, learning_rate: float, steps: int) -> OneCycleLR:
    """A learning rate that rises over a tenth of the steps, and falls over the others."""
    # Of a rise that is over with the first step torch divides by 0.
    return OneCycleLR(optimizer, learning_rate, steps, pct_start=0.1 if steps > 10 else 0.0)


def measure(codes: ImageTokenizer, images: Images, count: int) -> dict[str, float]:
    """Over the first `count` images, not a batch: `psnr` in decibels of what is decoded from hard codes; the share
    `codes_used`; `perplexity`, how many codes used alike would be as hard to guess."""
    squared, values, uses_K = 0.0, 0, torch.zeros(len(codes))
    for some in torch.arange(count).split(AT_ONCE):
        given = images(some)
        ids = codes.encode(given)
        uses_K += torch.bincount(ids.flatten(), minlength=len(codes))
        squared += float((codes.autoencoder.decode(ids) - given.float() / 255).square().sum())
        values += given.numel()
    share_K = uses_K / uses_K.sum()
    return {
        "psnr": _psnr(squared / values),
        "codes_used": float((uses_K > 0).float().mean()),
        "perplexity": float(torch.special.entr(share_K).sum().exp()),
    }


def decibels(first: UInt8[Tensor, "*S"], second: UInt8[Tensor, "*S"]) -> float:
    """PSNR: how alike two images are; 100 for equal ones."""
    return _psnr(float((first.float() - second.float()).square().mean()) / 255**2)


def _psnr(error: float) -> float:
    return -10 * math.log10(max(error, 1e-10))


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and its header. Raises UserError for anything else."""
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(
                f"{path} is larger than {LARGEST >> 20} MB, which no tokenizer of images is"
            )
        data = path.read_bytes()
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get(
            "__metadata__", {}
        )
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be read: {error}; the run cannot answer without it"
        ) from None
    return tensors, header


def take_weights(model: torch.nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Give a model these weights and freeze it. Raises UserError where they are of another."""
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise _foreign(path, error) from None
    model.eval().requires_grad_(False)


def _foreign(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path} holds other weights than expected: {' '.join(str(error).split())[:200]}; put back the file of the run"
    )
