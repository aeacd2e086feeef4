"""The weights of a model in 16 bits."""

from __future__ import annotations

import torch
from torch import nn

HALVES = (torch.float16, torch.bfloat16)


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
