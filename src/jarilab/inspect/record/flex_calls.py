"""Reports calls of FlexAttention, a Python function that PyTorch passes to no function mode.

While a model is recorded, `flex_attention` runs other code. That code deactivates all function modes, calls the
original and reports the call to the modes. So it is seen however it was imported, also if it is compiled.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._compile import _disable_dynamo
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from jarilab.core.shapes import Float, Tensor


@dataclass(frozen=True, eq=False)
class FlexCall:
    """The arguments of a call: `(B, H, Q, E)`, `(B, G, K, E)` and `(B, G, K, W)`."""

    query: Tensor
    key: Tensor
    value: Tensor
    score_mod: Callable[..., Tensor] | None
    block_mask: Any
    scale: float

    @staticmethod
    def of(*args: Any, **kwargs: Any) -> FlexCall:
        """The call with the arguments of `flex_attention`."""
        bound = inspect.signature(_FLEX.original).bind(*args, **kwargs)
        bound.apply_defaults()
        names = ("scale", "query", "key", "value", "score_mod", "block_mask")
        scale, query, key, value, modify, mask = (bound.arguments[name] for name in names)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return FlexCall(query, key, value, modify, mask, scale)

    @torch.no_grad()
    def mask(self) -> tuple[Tensor | None, bool]:
        """What is added to the scores, or a boolean mask, and True; or the modified scores, and False.

        Modified scores are returned where `score_mod` does more than to add a bias.
        """
        q, k = self.query.detach(), self.key.detach()
        size = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        allowed = None
        if self.block_mask is not None:
            allowed = create_mask(self.block_mask.mask_mod, *size, device=str(q.device))
        if self.score_mod is None:
            return allowed, True
        wide = torch.promote_types(q.dtype, torch.float32)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        scores = (q @ k.mT).to(wide) * self.scale
        bias, modified = (
            self._modified(each) for each in (torch.zeros_like(scores), scores.expand(size))
        )
        finite = bias.isfinite()
        error = (modified - scores - bias)[finite].abs()
        is_bias = finite.equal(modified.isfinite()) and bool(
            (error <= 1e-5 * (1 + scores.expand(size)[finite].abs())).all()
        )
        if is_bias and not bias.any():
            return allowed, True
        added = bias if is_bias else modified
        return added if allowed is None else added.masked_fill(~allowed, -torch.inf), is_bias

    def _modified(self, scores: Float[Tensor, "B H Q K"]) -> Float[Tensor, "B H Q K"]:
        modify = self.score_mod
        assert modify is not None
        for axis in (4, 3, 2, 1):
            in_dims: list[int | None] = [None] * 5
            in_dims[0] = in_dims[axis] = 0
            modify = torch.vmap(modify, in_dims=tuple(in_dims))
        indices = [torch.arange(n, dtype=torch.int, device=scores.device) for n in scores.shape]
        return modify(scores, *indices)


def _pause() -> list[Any]:
    """Deactivate all function modes; returns them, innermost first."""
    count = torch._C._len_torch_function_stack()
    return [torch._C._pop_torch_function_stack() for _ in range(count)]


def _resume(modes: Sequence[Any]) -> None:
    for mode in reversed(modes):
        torch._C._push_on_torch_function_stack(mode)


def _report(modes: Sequence[Any], result: Any, args: Any, kwargs: Any) -> Any:
    output = result[0] if isinstance(result, tuple) else result
    # As for other functions, the mode that was activated first is next to the function.
    for mode in reversed(modes):
        if hasattr(mode, "report_flex"):  # an `AttentionMode`
            output = mode.report_flex(FlexCall.of(*args, **kwargs), output)
    return (output, *result[1:]) if isinstance(result, tuple) else output


def _call(*args: Any, _hooks: Any, **kwargs: Any) -> Any:
    modes = _hooks.pause()
    try:
        # Not inside another function, so that it is compiled if the caller has compiled it.
        result = _hooks.original(*args, **kwargs)
        result = _hooks.report(modes, result, args, kwargs)
    finally:
        _hooks.resume(modes)
    return result


# As `torch._dynamo.eval_frame.skip_code`, whose import loads the compiler: seconds in each process.
set_code_exec_strategy(_call.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))


class _Hooks:
    """What the other code of a function calls. `torch.compile` does not trace these functions."""

    pause = staticmethod(_disable_dynamo(_pause))
    resume = staticmethod(_disable_dynamo(_resume))

    def __init__(self, function: Any, report: Callable[..., Any]):
        self._function = function
        self._code, self._defaults = function.__code__, function.__kwdefaults__
        self.report = _disable_dynamo(report)
        self.original = types.FunctionType(
            self._code, function.__globals__, function.__name__, function.__defaults__
        )
        self.original.__kwdefaults__ = self._defaults

    def attach(self) -> None:
        """Let the function run the other code."""
        self._function.__kwdefaults__ = {**(self._defaults or {}), "_hooks": self}
        self._function.__code__ = _call.__code__

    def detach(self) -> None:
        """Let the function run its own code."""
        self._function.__code__ = self._code
        self._function.__kwdefaults__ = self._defaults


_FLEX = _Hooks(flex_attention, _report)
# Function modes would be compiled into a mask that is compiled.
_MASK = _Hooks(create_block_mask, lambda modes, result, args, kwargs: result)
_lock = threading.Lock()
_recordings = 0


def listen() -> None:
    """Report calls until `stop_listening`, which is needed once for each call of this function."""
    global _recordings
    with _lock:
        _recordings += 1
        if _recordings == 1:
            _FLEX.attach()
            _MASK.attach()


def stop_listening() -> None:
    """Restore the functions if no other recording is active."""
    global _recordings
    with _lock:
        _recordings -= 1
        if _recordings == 0:
            _FLEX.detach()
            _MASK.detach()
