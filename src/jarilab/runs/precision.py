"""float32 or bfloat16: whichever trains faster on this machine at this d_model."""

from __future__ import annotations

from typing import Literal

import torch

from jarilab.core.devices import CPU, device_label, has_bfloat16
from jarilab.core.errors import UserError, unknown

Precision = Literal["auto", "float32", "bfloat16"]
Computed = Literal["float32", "bfloat16"]

# From this width on a training step is faster in bfloat16 than in float32, on a CPU with AVX-512 BF16, PyTorch 2.13:
# `benchmarks/precision.py` measures it again.
NARROWEST_BFLOAT16 = 64


def choose_precision(d_model: int, device: torch.device = CPU) -> Computed:
    """bfloat16 where the device really has it and a model of this width gains by it."""
    wide = d_model >= NARROWEST_BFLOAT16
    return "bfloat16" if wide and has_bfloat16(device) else "float32"


def checked_precision(precision: Precision, d_model: int, device: torch.device) -> Computed:
    """The precision to train in; `auto` is the faster one. Raises UserError if the device does not support it."""
    if precision == "auto":
        return choose_precision(d_model, device)
    if precision not in ("float32", "bfloat16"):
        raise unknown("precision", precision, ("auto", "float32", "bfloat16"))
    if precision == "bfloat16" and device != CPU and not has_bfloat16(device):
        raise UserError(f"{device_label(device)} does not compute in bfloat16; use float32")
    return precision
