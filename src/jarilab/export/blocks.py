"""Numbers as text: bytes, little end first, in base64, with their type and shape."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import nn

from jarilab.shapes import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
HALVES = (torch.float16, torch.bfloat16)


def block(values: Tensor, dtype: str) -> dict[str, Any]:
    """Numbers as a page reads them. dtype: `uint16` is fixed point for 0 ... 1; otherwise what torch calls it."""
    given = values.detach().cpu()
    counted = (given.double() * 65535).round() if dtype == "uint16" else given
    flat = counted.to(getattr(torch, dtype)).contiguous().flatten()
    # As whole numbers, since numpy knows no bfloat16.
    bits = flat.view(_BITS[flat.element_size()]).numpy()
    raw = bits.astype(bits.dtype.newbyteorder("<")).tobytes()
    return {
        "dtype": dtype,
        "shape": list(values.shape),
        "data": base64.b64encode(raw).decode("ascii"),
    }


@torch.no_grad()
def halved(model: nn.Module) -> dict[str, str]:
    """Round the parameters of a model, in place, to 16 bits, and say by name to which: float16 or bfloat16, whichever
    is nearer. They stay float32."""
    stored = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        rounded = [parameter.to(dtype).float() for dtype in HALVES]
        errors = [
            float((parameter - each).abs().max()) if each.numel() else 0.0 for each in rounded
        ]
        nearer = int(not errors[0] <= errors[1])
        parameter.copy_(rounded[nearer])
        stored[name] = str(HALVES[nearer]).removeprefix("torch.")
    return stored
