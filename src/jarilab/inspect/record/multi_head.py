"""PyTorch's multi-head attention, run so that a function mode sees the functions inside it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch.nn import functional


def _without_dispatch(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a Python function of PyTorch that runs its body instead of asking the active mode."""
    without = {**function.__globals__, "has_torch_function": lambda *_: False}
    return types.FunctionType(
        function.__code__, without, function.__name__, function.__defaults__, function.__closure__
    )


multi_head_attention_forward = _without_dispatch(functional.multi_head_attention_forward)
