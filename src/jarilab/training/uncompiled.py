"""PyTorch's optimizers without its compiler."""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch

Optimizer = torch.optim.Optimizer


class Uncompiled(Optimizer):
    """An optimizer whose methods are PyTorch's own, without what it wraps them in for code that is compiled: the first
    call of that imports the compiler, more than a second of a run. No optimizer is called from compiled code here."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class AdamW(Uncompiled, torch.optim.AdamW):
    """`torch.optim.AdamW`, which cannot be differentiated."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        return unwrap(torch.optim.AdamW.step)(self, closure)
