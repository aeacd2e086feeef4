"""Dropout with random bits that are cheap on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from jarilab.core.errors import UserError


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero about `rate` of the elements and scale up the others to keep the mean.

    Returns `x` itself if the rate is 0. On a CPU the rate is rounded to a multiple of 1/256. The random bits come from
    torch's global generator, which the trainer uses for nothing else.
    """
    if rate == 0.0:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, rate)
    # PyTorch's own dropout draws one number after another on a CPU and takes 16 times as long.
    mask, scale = dropout_mask(x, rate)
    if x.dtype in (torch.float32, torch.float64):
        return x * mask.mul_(scale)  # one product less, forward and backward
    # In half precision the rounded scale would change the mean, by up to 0.4 %.
    return x * mask * scale


def dropout_mask(
    x: Tensor, rate: float, generator: torch.Generator | None = None
) -> tuple[Tensor, float]:
    """A mask of the shape and dtype of `x` on the CPU, and the scale of the remaining elements.

    The mask is 0 where an element is dropped and 1 elsewhere.
    """
    # One random byte per element. The scale is exact for the rounded rate.
    threshold, count = round(rate * 256), x.numel()
    words = torch.randint(-(2**63), 2**63 - 1, ((count + 7) // 8,), generator=generator)
    bytes_N = words.view(torch.uint8)[:count]
    # 1 from `threshold` on. Comparing, and multiplying by booleans, is not vectorised.
    keep_N = bytes_N.clamp_(threshold - 1, threshold).sub_(threshold - 1)
    return keep_N.view(x.shape).to(x.dtype), 256 / (256 - threshold)


def checked_rate(rate: float) -> float:
    """`rate`, if `dropout` supports it. Raises UserError otherwise."""
    if not 0 <= rate < 1 or (rate > 0 and not 1 <= round(rate * 256) <= 255):
        raise UserError(
            f"expected a dropout of 0, or from 1/256 to 255/256, got {rate:g}; choose one of these"
        )
    return rate


class Dropout(nn.Module):
    """`dropout` in training, the identity in evaluation."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = checked_rate(rate)

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate if self.training else 0.0)

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"
