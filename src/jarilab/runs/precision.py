"""float32 or bfloat16: whichever trains faster on this machine at this width."""

from __future__ import annotations

from typing import Literal

import torch

from jarilab.core.devices import CPU, has_bfloat16

Precision = Literal["auto", "float32", "bfloat16"]

# From this width on a training step is faster in bfloat16 than in float32, on a CPU with AVX-512 BF16, PyTorch 2.13:
# `benchmarks/precision.py` measures it again.
NARROWEST_BFLOAT16 = 64


def choose_precision(width: int, device: torch.device = CPU) -> Precision:
    """bfloat16 where the device really has it and a model of this width gains by it."""
    wide = width >= NARROWEST_BFLOAT16
    return "bfloat16" if wide and has_bfloat16(device) else "float32"
