"""Reports the attention calls of any PyTorch model from a `TorchFunctionMode`, while the model runs its own kernels.

PyTorch passes every tensor function that is called in the current thread to the active mode. No module is replaced, the
model needs no eager attention, and functions that were imported by name are seen too. Two kinds of call are reported:

- `scaled_dot_product_attention`, also inside `multi_head_attention_forward`. These are verified: weights are recomputed
  from queries and keys.
- A softmax over keys whose result is multiplied with values. These are not verified: scores are the model's own.

Compiled graphs, extensions and FlexAttention are not reported.
"""

from __future__ import annotations

import re
import threading
import types
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from jarilab.core.shapes import Tensor
from jarilab.inspect.record.foreign_call import ForeignCall, versions_of
from jarilab.inspect.record.sites import foreign_site_names

# The modules that run -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ModuleFrame:
    """A running module, with what its linear maps read and what its submodules returned."""

    path: str
    module: nn.Module
    batch: int
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def reads_two_sequences(self) -> bool:
        """Whether queries and keys are projected from different sequences."""
        computed = {_storage(tensor) for tensor in self.outputs}
        sources = {_storage(tensor) for tensor in self.inputs} - computed
        if len(sources) < 2:
            return False
        first, *others = [tensor for tensor in self.inputs if _storage(tensor) in sources]
        # Equal tensors are one sequence that was computed twice.
        return not all(
            first.device == other.device and torch.equal(first, other) for other in others
        )

    def has_groups_as_queries(self, q: Tensor, k: Tensor) -> bool:
        """Whether heads that share keys lie along the axis of queries, as transformers does for one query."""
        group_size = getattr(self.module, "num_key_value_groups", 1)
        heads = getattr(getattr(self.module, "config", None), "num_attention_heads", None)
        return group_size > 1 and q.shape[2] == group_size and q.shape[1] * group_size == heads


class ModuleStack:
    """The modules of a model that are running, outermost first; kept up to date by forward hooks."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._frames: list[ModuleFrame] = []
        self._hooks = ExitStack()
        self._thread = threading.get_ident()

    def attach(self) -> None:
        """Register the hooks."""
        for path, module in self._model.named_modules():
            before = module.register_forward_pre_hook(self._enter(path), with_kwargs=True)
            after = module.register_forward_hook(self._leave, always_call=True)
            self._hooks.callback(before.remove)
            self._hooks.callback(after.remove)

    def detach(self) -> None:
        """Remove the hooks."""
        self._hooks.close()

    def __bool__(self) -> bool:
        return bool(self._frames)

    @property
    def innermost(self) -> ModuleFrame:
        return self._frames[-1]

    def reads_two_sequences(self) -> bool:
        """As `ModuleFrame.reads_two_sequences`, of the innermost module with linear maps."""
        frame = next((frame for frame in reversed(self._frames) if frame.inputs), None)
        return frame is not None and frame.reads_two_sequences()

    def _enter(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if threading.get_ident() != self._thread:
                return  # a mode is active in one thread, a hook in all
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            if tensors and self._frames and _is_linear(module) and not _is_value_projection(path):
                self._frames[-1].inputs.append(tensors[0])
            batch = tensors[0].shape[0] if tensors and tensors[0].ndim else 1
            self._frames.append(ModuleFrame(path, module, batch))

        return hook

    def _leave(self, module: nn.Module, args: object, output: object) -> None:
        if self._frames and self._frames[-1].module is module:
            self._frames.pop()
        if self._frames and isinstance(output, Tensor):
            self._frames[-1].outputs.append(output)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


_VALUE_PROJECTION = re.compile(r"(^|_)w?v(alues?)?(_|$)", re.IGNORECASE)


def _is_value_projection(path: str) -> bool:
    """Whether the name is that of a projection to values."""
    # Models often add positions to the input of queries and keys alone. That is no second sequence.
    return _VALUE_PROJECTION.search(path.rpartition(".")[2]) is not None


def _is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies by a matrix, whatever its class is called."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)


class SiteNames:
    """Names the sites of a model by the modules that attend."""

    def __init__(self, model: nn.Module):
        self._model = model
        self._names: dict[str, str] = {}

    def name_of(self, frame: ModuleFrame, call: ForeignCall) -> str:
        """The site of a call; the first call of a class of modules names all modules of this class."""
        if frame.path not in self._names:
            names = foreign_site_names(
                self._model, frame.module, call.looks_back_only(), call.is_cross
            )
            clash = not set(self._names.values()).isdisjoint(names.values())
            new = {path: path if clash else name for path, name in names.items()}
            self._names = {**new, **self._names}
        return self._names[frame.path]


# The functions that they call ---------------------------------------------------------------------------------------

CallHandler = Callable[[ModuleFrame, ForeignCall, Tensor], Tensor]
"""Takes the running module, a call and its output `(B, H, Q, W)`; returns the output that the model continues with."""

MAX_PENDING_SOFTMAXES = 8
"""Results of softmaxes, and copies of them, that are remembered until they are multiplied with values."""
SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax}
PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__}
DROPOUT = {functional.dropout, torch.dropout}
KEEPS_WEIGHTS = DROPOUT | {
    Tensor.to,
    Tensor.type_as,
    Tensor.view,
    Tensor.reshape,
    Tensor.contiguous,
    Tensor.float,
    Tensor.half,
    Tensor.bfloat16,
}
"""Functions after which the result of a softmax still counts as attention weights."""


@dataclass(eq=False)
class _Softmax:
    """A softmax that may be an attention's. versions: of its weights and scores when it was computed."""

    scores: Tensor
    versions: tuple[int, ...]
    dropout: float = 0.0


class AttentionMode(TorchFunctionMode):
    """While active, passes each attention call of `model` to `handler`."""

    def __init__(self, model: nn.Module, handler: CallHandler):
        super().__init__()
        self._handler = handler
        self._stack = ModuleStack(model)
        self._softmaxes: dict[int, tuple[Tensor, _Softmax]] = {}
        self._suspects: dict[str, None] = {}
        self._reported: set[str] = set()

    def __enter__(self) -> AttentionMode:
        self._stack.attach()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._stack.detach()
            self._softmaxes.clear()

    @property
    def missing(self) -> list[str]:
        """Paths of modules that seem to attend, and of which no call was reported."""
        return [path for path in self._suspects if path not in self._reported]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and self._stack:
            return self._on_fused_attention(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            return self._on_multi_head_attention(*args, **kwargs)
        result = func(*args, **kwargs)
        if self._softmaxes and (func in PRODUCTS or func is torch.einsum):
            operands = args[1:] if func is torch.einsum else args
            return self._on_product(result, *operands)
        if func in SOFTMAX and self._stack:
            self._on_softmax(result, *args, **kwargs)
        elif self._softmaxes and func in KEEPS_WEIGHTS and args and id(args[0]) in self._softmaxes:
            self._follow_weights(func, result, args, kwargs)
        return result

    def _report(self, call: ForeignCall, output: Tensor, output_BHQW: Tensor) -> Tensor:
        """Pass the call to the handler; returns the output that the model continues with."""
        self._reported.add(self._stack.innermost.path)
        handled_BHQW = self._handler(self._stack.innermost, call, output_BHQW)
        return output if handled_BHQW is output_BHQW else handled_BHQW.reshape(output.shape)

    def _suspect_module(self) -> None:
        self._suspects[self._stack.innermost.path] = None

    # Fused attention

    def _on_multi_head_attention(
        self, query: Tensor, key: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """PyTorch's own multi-head attention, run so that this mode sees the functions inside it."""
        if self._stack:
            self._stack.innermost.inputs += [query, key]
        # PyTorch deactivates a mode inside its own handler.
        TorchFunctionMode.__enter__(self)
        try:
            return _multi_head_attention_forward(query, key, *args, **kwargs)
        finally:
            TorchFunctionMode.__exit__(self, None, None, None)

    def _on_fused_attention(
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
        options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        output = functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, **options
        )
        if query.ndim not in (3, 4):
            self._suspect_module()
            return output
        q, k, v = (_with_heads(_as_computed(tensor)) for tensor in (query, key, value))
        mask = None if attn_mask is None else _with_heads(attn_mask.detach(), query.ndim == 3)
        output_BHQW = _with_heads(output)
        if self._stack.innermost.has_groups_as_queries(q, k):
            q, output_BHQW = (tensor.flatten(1, 2).unsqueeze(2) for tensor in (q, output_BHQW))
            if mask is not None and mask.shape[1] > 1:
                mask = mask.flatten(1, 2).unsqueeze(2)
        call = ForeignCall(
            q,
            k,
            v,
            mask,
            is_causal,
            scale=query.shape[-1] ** -0.5 if scale is None else scale,
            dropout=dropout_p,
            is_cross=self._stack.reads_two_sequences(),
            verified=True,
            versions=versions_of(q, k, v, mask),
        )
        return self._report(call, output, output_BHQW)

    # Softmax and product

    def _on_softmax(self, weights: Tensor, scores: Tensor, *args: Any, **kwargs: Any) -> None:
        axis = kwargs.get("dim", args[0] if args else None)
        if axis in (-1, scores.ndim - 1) and scores.ndim in (3, 4):
            self._remember(weights, scores.detach())
        if scores.ndim >= 4:  # with three axes it may be a router's or a generator's
            self._suspect_module()

    def _remember(self, weights: Tensor, scores: Tensor, dropout: float = 0.0) -> None:
        softmax = _Softmax(scores, versions_of(weights, scores), dropout)
        self._softmaxes[id(weights)] = weights, softmax
        if len(self._softmaxes) > MAX_PENDING_SOFTMAXES:
            del self._softmaxes[next(iter(self._softmaxes))]

    def _is_overwritten(self, weights: Tensor, softmax: _Softmax) -> bool:
        """Whether weights or scores were changed in place since the softmax."""
        if softmax.versions == versions_of(weights, softmax.scores):
            return False
        self._suspect_module()
        return True

    def _follow_weights(self, func: Any, result: Tensor, args: Any, kwargs: Any) -> None:
        _, softmax = self._softmaxes[id(args[0])]
        if result is not args[0] and self._is_overwritten(args[0], softmax):
            return
        dropout = softmax.dropout
        if func in DROPOUT:
            rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            training = kwargs.get("training", args[2] if len(args) > 2 else True)
            dropout = rate if training else 0.0
        self._remember(result, softmax.scores, dropout)

    def _on_product(self, output: Tensor, *operands: Any) -> Tensor:
        if len(operands) != 2 or id(operands[0]) not in self._softmaxes or not self._stack:
            return output
        weights, values = operands
        softmax = self._softmaxes[id(weights)][1]
        # Forget this softmax, and keep others of the module whose product may still come.
        self._softmaxes = {
            key: pending
            for key, pending in self._softmaxes.items()
            if pending[1].scores is not softmax.scores
        }
        if self._is_overwritten(weights, softmax):
            return output
        is_weighted_sum = output.shape == (*weights.shape[:-1], values.shape[-1])
        if not is_weighted_sum or values.shape[:-1] != (*weights.shape[:-2], weights.shape[-1]):
            return output
        batch = self._stack.innermost.batch

        def with_heads(tensor: Tensor) -> Tensor:
            if tensor.ndim == 4:
                return tensor
            return tensor.unflatten(0, (batch, -1)) if len(tensor) % batch == 0 else tensor[None]

        scores_BHQK = with_heads(softmax.scores.reshape(weights.shape))
        v, output_BHQW = with_heads(values.detach()), with_heads(output)
        q = scores_BHQK.new_zeros(*scores_BHQK.shape[:3], 0)
        k = v[..., :0]
        call = ForeignCall(
            q,
            k,
            v,
            scores_BHQK,
            is_causal=False,
            scale=1.0,
            dropout=softmax.dropout,
            is_cross=self._stack.reads_two_sequences(),
            verified=False,
            versions=versions_of(q, k, v, scores_BHQK),
        )
        return self._report(call, output, output_BHQW)


def _without_dispatch(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a Python function of PyTorch that runs its body instead of asking the active mode."""
    without = {**function.__globals__, "has_torch_function": lambda *_: False}
    return types.FunctionType(
        function.__code__, without, function.__name__, function.__defaults__, function.__closure__
    )


_multi_head_attention_forward = _without_dispatch(functional.multi_head_attention_forward)


def _as_computed(tensor: Tensor) -> Tensor:
    """Detached, and in the dtype that autocast computes in."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return tensor.detach().to(torch.get_autocast_dtype(device))
    return tensor.detach()


def _with_heads(tensor: Tensor, add_heads: bool = True) -> Tensor:
    """With four axes: adds the axis of heads, or leading axes of size 1."""
    if tensor.ndim == 3 and add_heads:
        return tensor.unsqueeze(1)
    absent = 4 - tensor.ndim
    return tensor[(None,) * absent] if absent else tensor
