"""float32 or bfloat16: whichever trains faster on this machine at this width."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["auto", "float32", "bfloat16"]

# From this width on a training step is faster in bfloat16 than in float32, on a CPU with AVX-512 BF16, PyTorch 2.13:
# `benchmarks/precision.py` measures it again.
NARROWEST_BFLOAT16 = 64


def choose_precision(width: int) -> Precision:
    """bfloat16 where the processor really has it and a model of this width gains by it."""
    capabilities = torch.cpu.get_capabilities()
    has = capabilities.get("avx512_bf16", False) or capabilities.get("amx_bf16", False)
    return "bfloat16" if has and width >= NARROWEST_BFLOAT16 else "float32"
