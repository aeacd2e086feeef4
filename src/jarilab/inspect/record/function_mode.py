"""Hear every attention that a model computes, whatever library it comes from, while its own kernels run.

PyTorch tells an active `TorchFunctionMode` of every function that is called with tensors, in this thread alone: so no
module is replaced, no switch to explicit attention is asked for, and what was imported by name is heard, too. Heard are

- `scaled_dot_product_attention`, and `multi_head_attention_forward` around it: proven, since the map is computed anew
  from queries and keys;
- a softmax over keys whose weights are then multiplied with values: seen, since the scores are the model's own.

What a compiled graph or an extension computes is not heard; nor is FlexAttention.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from jarilab.core.shapes import Tensor
from jarilab.inspect.record.frames import Frame, is_map, is_of_values
from jarilab.inspect.record.heard import Heard, versions_of

Listener = Callable[[Frame, Heard, Tensor], Tensor]
"""Is told of a call, `(B, H, Q, W)` as it came out, and where; gives the output that the model is to go on with."""

REMEMBERED = 8
"""How many weights are kept that have met no values yet, of several softmaxes and of what was made of them."""
SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax}
PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__}
SAME_WEIGHTS = {
    functional.dropout,
    torch.dropout,
    Tensor.to,
    Tensor.type_as,
    Tensor.view,
    Tensor.reshape,
    Tensor.contiguous,
    Tensor.float,
    Tensor.half,
    Tensor.bfloat16,
}
"""What is done to weights between the softmax and the values, without their becoming others."""


@dataclass(eq=False)
class _Weights:
    """A softmax that may turn out to be an attention's. versions: of its weights and scores, when they were heard."""

    scores: Tensor
    versions: tuple[int, ...]
    dropout: float = 0.0


class Door(TorchFunctionMode):
    """Tells a listener of each attention of `model` while it is open."""

    def __init__(self, model: nn.Module, listener: Listener):
        super().__init__()
        self._model, self._listener = model, listener
        self._frames: list[Frame] = []
        self._weights: dict[int, tuple[Tensor, _Weights]] = {}
        self._suspected: dict[str, None] = {}
        self._known: set[str] = set()
        self._hooks = ExitStack()
        self._thread = threading.get_ident()

    def __enter__(self) -> Door:
        for path, module in self._model.named_modules():
            enters = module.register_forward_pre_hook(self._entering(path), with_kwargs=True)
            leaves = module.register_forward_hook(self._leaving, always_call=True)
            self._hooks.callback(enters.remove)
            self._hooks.callback(leaves.remove)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._hooks.close()
            self._weights.clear()

    @property
    def unheard(self) -> list[str]:
        """The modules that look as if they attended, and of which nothing was heard: what they do with the weights of a
        softmax over keys, or with five axes, is nothing that is known here."""
        return [path for path in self._suspected if path not in self._known]

    # Which module runs -----------------------------------------------------------------------------------------------

    def _entering(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if threading.get_ident() != self._thread:
                return  # PyTorch tells modes of one thread, but hooks of all
            tensors = [each for each in (*arguments, *named.values()) if isinstance(each, Tensor)]
            if tensors and self._frames and is_map(module) and not is_of_values(path):
                self._frames[-1].read.append(tensors[0])
            batch = tensors[0].shape[0] if tensors and tensors[0].ndim else 1
            self._frames.append(Frame(path, module, batch))

        return hook

    def _leaving(self, module: nn.Module, arguments: object, output: object) -> None:
        if self._frames and self._frames[-1].module is module:
            self._frames.pop()
        if self._frames and isinstance(output, Tensor):
            self._frames[-1].given.append(output)

    # What it computes ------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and self._frames:
            return self._fused(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            return self._within(*args, **kwargs)
        result = func(*args, **kwargs)
        if self._weights and (func in PRODUCTS or func is torch.einsum):
            operands = args[1:] if func is torch.einsum else args
            return self._summed(result, *operands)
        if func in SOFTMAX and self._frames:
            self._softmax(result, *args, **kwargs)
        elif self._weights and func in SAME_WEIGHTS and args and id(args[0]) in self._weights:
            self._same(func, result, args, kwargs)
        return result

    def _within(self, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
        """PyTorch's own multi-head attention: what it calls is heard."""
        if self._frames:
            self._frames[-1].read += [query, key]
        # Inside a handler the mode is closed; this opens it again.
        TorchFunctionMode.__enter__(self)
        try:
            return _UNDISPATCHED(query, key, *args, **kwargs)
        finally:
            TorchFunctionMode.__exit__(self, None, None, None)

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        output = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        if query.ndim not in (3, 4):
            self._suspected[self._frames[-1].path] = None
            return output
        q, k, v = (_of_heads(_as_computed(each)) for each in (query, key, value))
        added = None if attn_mask is None else _of_heads(attn_mask.detach(), query.ndim == 3)
        y = _of_heads(output)
        if self._frames[-1].packs(q, k):
            q, y = (each.flatten(1, 2).unsqueeze(2) for each in (q, y))
            if added is not None and added.shape[1] > 1:
                added = added.flatten(1, 2).unsqueeze(2)
        heard = Heard(
            q,
            k,
            v,
            added,
            is_causal,
            query.shape[-1] ** -0.5 if scale is None else scale,
            dropout_p,
            self._reads_two(),
            True,
            versions_of(q, k, v, added),
        )
        return self._told(heard, output, y)

    def _told(self, heard: Heard, output: Tensor, of_heads: Tensor) -> Tensor:
        """The output, or what the listener has made of it."""
        self._known.add(self._frames[-1].path)
        after = self._listener(self._frames[-1], heard, of_heads)
        return output if after is of_heads else after.reshape(output.shape)

    def _reads_two(self) -> bool:
        """Whether queries and keys are of two sequences, as the innermost module with linear maps read them."""
        mapping = next((frame for frame in reversed(self._frames) if frame.read), None)
        return mapping is not None and mapping.reads_two()

    def _softmax(self, weights: Tensor, scores: Tensor, *args: Any, **kwargs: Any) -> None:
        axis = kwargs.get("dim", args[0] if args else None)
        if axis in (-1, scores.ndim - 1) and scores.ndim in (3, 4):
            self._remember(weights, scores.detach())
        if scores.ndim >= 4:  # of three axes it may be a router's, or a generator's
            self._suspected[self._frames[-1].path] = None

    def _remember(self, weights: Tensor, scores: Tensor, dropout: float = 0.0) -> None:
        softmax = _Weights(scores, versions_of(weights, scores), dropout)
        self._weights[id(weights)] = weights, softmax
        if len(self._weights) > REMEMBERED:
            del self._weights[next(iter(self._weights))]

    def _written_over(self, weights: Tensor, held: _Weights) -> bool:
        """Whether weights or scores are others than when they were heard, and so no softmax and its scores."""
        if held.versions == versions_of(weights, held.scores):
            return False
        self._suspected[self._frames[-1].path] = None
        return True

    def _same(self, func: Any, result: Tensor, args: Any, kwargs: Any) -> None:
        _, held = self._weights[id(args[0])]
        if result is not args[0] and self._written_over(args[0], held):
            return
        dropout = held.dropout
        if func in (functional.dropout, torch.dropout):
            share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            trains = kwargs.get("training", args[2] if len(args) > 2 else True)
            dropout = share if trains else 0.0
        self._remember(result, held.scores, dropout)

    def _summed(self, output: Tensor, *operands: Any) -> Tensor:
        if len(operands) != 2 or id(operands[0]) not in self._weights or not self._frames:
            return output
        weights, values = operands
        held = self._weights[id(weights)][1]
        # Another softmax of the module may still meet its values; of this one all is told.
        remembered = self._weights.items()
        self._weights = {key: each for key, each in remembered if each[1].scores is not held.scores}
        if self._written_over(weights, held):
            return output
        sums = output.shape == (*weights.shape[:-1], values.shape[-1])
        if not sums or values.shape[:-1] != (*weights.shape[:-2], weights.shape[-1]):
            return output
        batch = self._frames[-1].batch

        def of_heads(tensor: Tensor) -> Tensor:
            if tensor.ndim == 4:
                return tensor
            return tensor.unflatten(0, (batch, -1)) if len(tensor) % batch == 0 else tensor[None]

        scores = of_heads(held.scores.reshape(weights.shape))
        v, y = of_heads(values.detach()), of_heads(output)
        q = scores.new_zeros(*scores.shape[:3], 0)
        k = v[..., :0]
        versions = versions_of(q, k, v, scores)
        cross = self._reads_two()
        heard = Heard(q, k, v, scores, False, 1.0, held.dropout, cross, False, versions)
        return self._told(heard, output, y)


def _undispatched(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch written in Python that asks a mode before it does anything, without the question: what it
    calls is heard then, where otherwise it would be heard alone."""
    known = {**function.__globals__, "has_torch_function": lambda *_: False}
    return types.FunctionType(
        function.__code__, known, function.__name__, function.__defaults__, function.__closure__
    )


_UNDISPATCHED = _undispatched(functional.multi_head_attention_forward)


def _as_computed(tensor: Tensor) -> Tensor:
    """Without its graph, and in the precision in which autocast has it computed."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return tensor.detach().to(torch.get_autocast_dtype(device))
    return tensor.detach()


def _of_heads(tensor: Tensor, add_heads: bool = True) -> Tensor:
    """With an axis of heads: one where there is none, and one row where there are none."""
    if tensor.ndim == 3 and add_heads:
        return tensor.unsqueeze(1)
    missing = 4 - tensor.ndim
    return tensor[(None,) * missing] if missing else tensor
