"""Dropout whose random bits are cheap on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from jarilab.core.errors import UserError


def dropout(x: Tensor, share: float) -> Tensor:
    """Set about `share` of the elements to 0 and scale the others up to keep the mean; the same x back if share is 0.

    On a CPU one byte decides for each element, so the share is rounded to 1/256 and the scale is exact for the rounded
    share: PyTorch's own draws one number after another there and takes sixteen times as long. The bits come from
    torch's global generator, which the trainer uses for nothing else.
    """
    if share == 0.0:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, share)
    mask, scale = kept(x, share)
    if x.dtype in (torch.float32, torch.float64):
        return x * mask.mul_(scale)  # one product less, forward and backward
    # In half precision the rounded scale would change the mean, by up to 0.4 %.
    return x * mask * scale


def kept(x: Tensor, share: float, generator: torch.Generator | None = None) -> tuple[Tensor, float]:
    """1 for each element that stays and 0 for each that is dropped, and what those that stay are scaled by."""
    dropped, count = round(share * 256), x.numel()
    words = torch.randint(-(2**63), 2**63 - 1, ((count + 7) // 8,), generator=generator)
    byte_of_each = words.view(torch.uint8)[:count]
    # 1 from `dropped` on: to compare, and to multiply by booleans, is not vectorised.
    keep = byte_of_each.clamp_(dropped - 1, dropped).sub_(dropped - 1)
    return keep.view(x.shape).to(x.dtype), 256 / (256 - dropped)


def check_share(share: float) -> float:
    """`share` if it is one that `dropout` can do. Raises UserError."""
    if not 0 <= share < 1 or (share > 0 and not 1 <= round(share * 256) <= 255):
        raise UserError(f"dropout expects 0 or a share from 1/256 to 255/256, got {share:g}")
    return share


class Dropout(nn.Module):
    """`dropout` while training, nothing in evaluation."""

    def __init__(self, share: float):
        super().__init__()
        self.share = check_share(share)

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.share if self.training else 0.0)

    def extra_repr(self) -> str:
        return f"share={self.share:g}"
