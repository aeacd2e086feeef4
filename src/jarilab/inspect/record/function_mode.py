"""Reports the attention calls of any PyTorch model from a `TorchFunctionMode`, while the model runs its own kernels.

PyTorch passes every tensor function that is called in the current thread to the active mode. No module is replaced, the
model needs no eager attention, and functions that were imported by name are seen too. Two kinds of call are reported:

- `scaled_dot_product_attention`, also inside `multi_head_attention_forward`. These are verified: weights are recomputed
  from queries and keys.
- Weights over keys that are multiplied with values: a softmax, or another function of the scores. These are not
  verified: the weights are the model's own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.inspect.record.axes import (
    HeadAxes,
    Product,
    as_einsum,
    broadcast,
    follow_weighted_values,
    product_of,
)
from jarilab.inspect.record.chunks import ChunkProduct, JoinError, join
from jarilab.inspect.record.edited_output import copy_edit, no_edit, refuse_gradient, replace_output
from jarilab.inspect.record.events import AttentionEvents
from jarilab.inspect.record.flex_calls import FlexCall, listen, stop_listening
from jarilab.inspect.record.foreign_call import ForeignCall, facts_of, versions_of
from jarilab.inspect.record.function_kinds import PRODUCTS, FunctionCall, is_nonlinear
from jarilab.inspect.record.layout import shape_of
from jarilab.inspect.record.modules import ModuleFrame, ModuleStack, complete_output
from jarilab.inspect.record.tracing import UNKNOWN_AXIS, Tracer, Weights
from jarilab.inspect.record.transforms import (
    as_computed,
    as_recorded,
    is_transforming,
    mask_with_values,
    multi_head_attention_forward,
    padded,
    plain_call,
)
from jarilab.inspect.record.value_paths import Path, continues, replace_tensors

CallHandler = Callable[[ModuleFrame, ForeignCall, Tensor], Tensor]
"""Takes the running module, a call and its output `(B, H, Q, W)`; returns the output that the model continues with."""

SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax, torch.special.softmax}
DROPOUT = {functional.dropout, torch.dropout}

NOT_MULTIPLIED = (
    "its weights are not multiplied with values by a matrix product that can be followed"
)
NO_MAP = "it is linear attention, which normalizes queries and keys apart and has no map"


def _call_plainly(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


class AttentionMode(TorchFunctionMode):
    """While active, passes each attention call of `model` to `handler`."""

    def __init__(self, model: nn.Module, handler: CallHandler, *, is_of_thread: bool = False):
        super().__init__()
        self._model, self._handler = model, handler if is_of_thread else _apart(handler)
        self._tracer = Tracer(model)
        self._stack = ModuleStack(model, self._tracer, self if is_of_thread else None)
        self._modes: dict[int, AttentionMode] = {threading.get_ident(): self}
        self.events = AttentionEvents()
        self._chunks: list[ChunkProduct] = []  # whose output is not complete yet
        # The last frame, and its part of its module.
        self._joined: tuple[ModuleFrame | None, int] = (None, 0)
        self._heads_of_module: int | None = None  # inside multi_head_attention_forward
        # A compiled layer calls its functions one by one while a mode is active. The mode itself is not compiled.
        # `torch.compiler.disable` imports the compiler, which takes a second, so only if it is there already.
        self._call: Callable[..., Any] = self._follow_call
        if "torch._dynamo" in sys.modules:
            disable: Any = torch.compiler.disable
            self._call = disable(self._follow_call)

    def __enter__(self) -> AttentionMode:
        self._stack.attach(self._stack_of_thread)
        listen()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            stop_listening()
            self._stack.detach()
            for mode in self._modes.values():
                mode._chunks.clear()
                # Also ends what refers to the mode itself: the handler's tape is freed with its last name.
                mode._call = _call_plainly
            self._modes.clear()

    def _stack_of_thread(self) -> ModuleStack:
        # PyTorch activates a mode in one thread. In others, a mode is active while modules of the model run.
        thread = threading.get_ident()
        if thread not in self._modes:
            mode = AttentionMode(self._model, self._handler, is_of_thread=True)
            mode.events = self.events
            self._modes[thread] = mode
        return self._modes[thread]._stack

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self._call(func, args, kwargs or {})

    def _follow_call(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        if func is functional.scaled_dot_product_attention and self._stack:
            return self._on_fused_attention(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            return self._on_multi_head_attention(*args, **kwargs)
        if func is replace_output:
            self._tracer.set(args[0], self._tracer.of(args[1]))
            return func(*args)
        call = FunctionCall(func, args, kwargs)
        if self._chunks:
            call = self._complete_read(call)
        before = self._before_dropout(call) if func in DROPOUT else None
        result = func(*call.args, **call.kwargs)
        with torch._C.DisableTorchFunction():  # modes around this one do not follow what is read
            call, name = call.positional, call.name
            self._tracer.follow(call, result)
            is_nested = isinstance(result, Tensor) and result.is_nested
        if not self._stack or not isinstance(result, Tensor):
            return result
        if is_nested:
            if func in SOFTMAX and result.dim() > 3:
                self._new_event("it computes its softmax on nested tensors")
            return result
        if name in PRODUCTS:
            return self._on_product(call, result)
        if func in SOFTMAX:
            self._on_softmax(result, *call.args, **call.kwargs)
        elif is_nonlinear(name):
            self._on_nonlinear(result)
        elif func in DROPOUT:
            weights = call.args[0] if before is None else before
            self._on_dropout(result, weights, *call.args[1:], **call.kwargs)
        elif name in ("mul", "__mul__", "__rmul__"):
            follow_weighted_values(self._tracer, result, *call.args)
        elif name == "sum":
            einsum = as_einsum(self._tracer, result, call)
            return result if einsum is None else self._on_product(einsum, result)
        return result

    def _report(
        self,
        call: ForeignCall,
        output: Tensor,
        axes: HeadAxes,
        event: int,
        frame: ModuleFrame | None = None,
    ) -> Tensor:
        """Pass the call to the handler; returns the output that the model continues with."""
        self.events.mark_recorded(event)
        output_BHQW = axes.with_heads(output)
        frame = self._stack.innermost if frame is None else frame
        if is_transforming():
            with plain_call(call, output_BHQW) as (plain, plain_BHQW):
                if self._handler(frame, plain, plain_BHQW) is not plain_BHQW:
                    raise no_edit("under torch.vmap or a gradient of torch.func")
            return output
        handled_BHQW = self._handler(frame, call, output_BHQW)
        if handled_BHQW is output_BHQW or handled_BHQW.data_ptr() == output_BHQW.data_ptr():
            return output
        changed = axes.restored(handled_BHQW, output)
        copy_edit(handled_BHQW, changed)
        self._tracer.set(changed, self._tracer.of(output))
        replace_output(changed, output)
        return changed

    def _new_event(self, reason: str) -> int:
        return self.events.add(self._stack.innermost.path, reason)

    # Fused attention

    def _on_multi_head_attention(
        self, query: Tensor, key: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """PyTorch's own multi-head attention, run so that this mode sees the functions inside it."""
        self._heads_of_module = kwargs.get("num_heads", args[2] if len(args) > 2 else None)
        # PyTorch deactivates a mode inside its own handler.
        TorchFunctionMode.__enter__(self)
        try:
            return multi_head_attention_forward(query, key, *args, **kwargs)
        finally:
            self._heads_of_module = None
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
        event = self._new_event("its queries, keys and values cannot be arranged")
        self._trace_output(query, output)
        reported, is_nested = output, query.is_nested
        if is_nested:
            # It is reported as one of padded tensors with a mask.
            nested = query, key, value, output
            attn_mask, (query, key, value, reported) = padded(*nested)
            for before, after in zip(nested, (query, key, value, reported), strict=True):
                self._tracer.set(after, self._tracer.of(before))
            dropout_p = 0.0
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        options = {"is_causal": is_causal, "scale": scale, "dropout": dropout_p}
        with torch._C.DisableTorchFunction():
            parts = broadcast(self._tracer, query, key, value, reported.shape[:-2])
            call, axes = self._fused_call(*parts, attn_mask, **options)
        changed = self._report(call, reported, axes, event)
        if is_nested and changed is not reported:
            raise no_edit("of nested tensors")
        return output if is_nested else changed

    def _trace_output(self, query: Tensor, output: Tensor) -> None:
        """The rows of the output are those of the queries."""
        trace = self._tracer.of(query)
        layout = trace.layout.like(shape_of(output))
        rows = trace.of_rows(layout, self._tracer.forward)
        self._tracer.set(output, self._tracer.after_attention(rows))

    def report_flex(self, call: FlexCall, output: Tensor) -> Tensor:
        """Report a call of FlexAttention; returns the output that the model continues with."""
        if not self._stack or self._call is _call_plainly:
            return output
        self._trace_output(call.query, output)
        event = self._new_event("the functions of its flex_attention cannot be evaluated")
        try:
            mask, is_added = call.mask()
        except RuntimeError:
            return output
        options = {"is_causal": False, "scale": call.scale, "dropout": 0.0}
        made, axes = self._fused_call(call.query, call.key, call.value, mask, **options)
        if not is_added:
            made = replace(made, q=made.q[..., :0], k=made.k[..., :0], scale=1.0, verified=False)
        return self._report(made, output, axes, event)

    def _fused_call(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, **options: Any
    ) -> tuple[ForeignCall, HeadAxes]:
        """The call of `scaled_dot_product_attention`, and how its output becomes `(B, H, Q, W)`."""
        q_trace, k_trace = self._tracer.of(query), self._tracer.of(key)
        axes = HeadAxes.of(query.shape[:-2], q_trace.layout.factors()[:-2], self._heads_of_module)
        k_axes = axes
        if key.shape[:-2] != query.shape[:-2]:
            k_axes = HeadAxes.of(key.shape[:-2], k_trace.layout.factors()[:-2])
        q = axes.with_heads(as_computed(query))
        k, v = (k_axes.with_heads(as_computed(tensor)) for tensor in (key, value))
        mask = attn_mask
        if mask is not None:
            mask = axes.mask_with_heads(mask_with_values(mask, q.device))
        facts = facts_of(q_trace, k_trace, q, k, axes.folded)
        if self._stack.innermost.has_groups_as_queries(q, k):
            axes = axes.with_groups_as_queries()
            q = q.flatten(1, 2).unsqueeze(2)
            if mask is not None and mask.shape[1] > 1:
                mask = mask.flatten(1, 2).unsqueeze(2)
        versions = versions_of(q, k, v, mask, None)
        call = ForeignCall(q, k, v, mask, facts=facts, verified=True, versions=versions, **options)
        return call, axes

    # Weights and their product with values

    def _on_softmax(self, weights: Tensor, scores: Tensor, *args: Any, **kwargs: Any) -> None:
        trace = self._tracer.of(weights)
        axis = kwargs.get("dim", args[0] if args else None)
        is_last = axis in (-1, scores.ndim - 1)
        earlier = trace.weights
        if earlier is None:
            is_mixture = scores.ndim == 2 and trace.is_learned  # of streams, by parameters alone
            if not isinstance(axis, int) or not 2 <= scores.ndim <= 6 or is_mixture:
                return
            # With three axes it may be a router's or a generator's: then it counts once it is multiplied.
            is_map = is_last and scores.ndim > 3
            event = self._new_event(NOT_MULTIPLIED) if is_map else -1
            made = Weights(None, axis % scores.ndim, event=event)
        else:
            event = earlier.event if earlier.event >= 0 else self._new_event(NOT_MULTIPLIED)
            made = replace(earlier, event=event)
        is_of_keys = is_last and made.key_axis == weights.ndim - 1
        made = replace(
            made,
            normalized=True,
            # `torch.softmax(x, -1, out=x)` writes over its scores.
            scores=scores.detach() if is_of_keys and kwargs.get("out") is None else None,
            versions=versions_of(weights, scores),
        )
        self._tracer.set(weights, replace(trace, weights=made))

    def _on_nonlinear(self, weights: Tensor) -> None:
        trace = self._tracer.of(weights)
        made = trace.weights
        if made is None or made.normalized or made.columns is None or weights.ndim < 3:
            return
        event = self._new_event(NOT_MULTIPLIED) if weights.ndim > 3 else -1
        made = replace(made, normalized=True, event=event)
        self._tracer.set(weights, replace(trace, weights=made))

    def _before_dropout(self, call: FunctionCall) -> Tensor | None:
        """A copy of weights that a dropout will overwrite; None for all else."""
        with torch._C.DisableTorchFunction():
            weights, is_in_place = call.tensors[0], call.argument(3, "inplace", False)
            is_followed = is_in_place and self._tracer.of(weights).weights is not None
            return weights.detach().clone() if is_followed else None

    def _on_dropout(self, result: Tensor, weights: Tensor, *args: Any, **kwargs: Any) -> None:
        trace = self._tracer.of(result)
        rate = kwargs.get("p", args[0] if args else 0.5)
        training = kwargs.get("training", args[1] if len(args) > 1 else True)
        if trace.weights is None or not training or not rate:
            return
        changed = replace(trace.weights, before_dropout=weights.detach(), dropout=rate)
        self._tracer.set(result, replace(trace, weights=changed))

    def _on_product(self, function: FunctionCall, output: Tensor) -> Tensor:
        product = product_of(function, self._tracer)
        if product is not None and product.is_linear_attention:
            self._new_event(NO_MAP)
            return output
        if product is None:
            self._on_product_of_weights(function)
            return output
        made = product.trace.weights
        assert made is not None
        values = product.of_values[0]
        path = self._tracer.of(values).path or Path.of_root(values)
        if made.key_axis == UNKNOWN_AXIS and not path.selects:
            return output
        if made.columns is None and made.event < 0 and path.selects:
            return output  # a convolution whose kernel is computed from the token
        event = made.event if made.event >= 0 else self._new_event(NOT_MULTIPLIED)
        for each in made.merged:
            self.events.mark_recorded(each)
        call = self._product_call(product, made)
        # Within one sequence, there are as many queries as keys: where some were cut off, other products have the rest.
        reads_part = call.facts.relation == "self" and call.q.shape[2] != call.v.shape[2]
        is_cut = (made.cuts and path.cuts) or (reads_part and (made.cuts or path.cuts))
        is_part = path.selects or path.products or is_cut
        if is_part and not is_transforming():
            self._defer(function, output, product, path, call, event)
            return output
        frame = self._stack.innermost
        if any(chunk.frame is frame for chunk in self._chunks):
            frame = replace(frame, part=1)  # as that of global tokens beside windows
        return self._report(call, output, product.output_axes, event, frame)

    def _product_call(self, product: Product, made: Weights) -> ForeignCall:
        """The call of weights that are multiplied with values. made: the weights, as they were followed."""
        axes = product.axes
        weights = axes.with_heads(product.weights.detach())
        v = axes.with_heads(as_recorded(product.values))
        scores = None
        is_softmax = product.is_plain and made.scores is not None
        if is_softmax and made.versions == versions_of(product.operand, made.scores):
            assert made.scores is not None
            scores = axes.with_heads(made.scores.reshape(product.weights.shape))
        q, k = weights.new_zeros(*weights.shape[:3], 0), v[..., :0]
        # Of scores that are no product of queries and keys, as additive ones, the values show the sequence of the keys.
        k_trace = self._tracer.of(product.of_values[0])
        if made.columns is not None:
            k_trace = replace(k_trace, sources=made.columns)
        explicit = weights if scores is None else None
        return ForeignCall(
            q,
            k,
            v,
            scores,
            is_causal=False,
            scale=1.0,
            dropout=made.dropout,
            facts=facts_of(product.trace, k_trace, weights, v, axes.folded),
            verified=False,
            versions=versions_of(q, k, v, scores, explicit),
            explicit_weights=explicit,
        )

    def _on_product_of_weights(self, function: FunctionCall) -> None:
        """A product of the weights of two attentions is reported as one, with the weights that it makes."""
        made = [self._tracer.of(each).weights for each in function.tensors]
        events = [each.event for each in made if each is not None and each.normalized]
        if len(events) == 2 and events[1] >= 0 and events[0] != events[1]:
            self.events.mark_recorded(events[1])

    # Attention in chunks

    def _defer(
        self,
        function: FunctionCall,
        output: Tensor,
        product: Product,
        path: Path,
        call: ForeignCall,
        event: int,
    ) -> None:
        """Wait for the output of which this product is a part."""
        frame, (_, arrange) = self._stack.innermost, product.of_values
        chunk = ChunkProduct(call, output, product.output_axes, frame, event, path, arrange)
        self._chunks.append(chunk)
        made = product.trace.weights
        before = None if made is None else made.before_dropout
        weights = product.operand, product.operand if before is None else before
        trace = self._tracer.of(output)
        path = path.of_product(function, weights, chunk)
        self._tracer.set(output, replace(trace, path=path))

    def _complete_read(self, call: FunctionCall) -> FunctionCall:
        """Report the outputs of attentions in chunks that a function reads; returns the call that replaces them."""
        outputs = {id(each): each for each in call.tensors if self._open_chunks(each)}
        if not outputs or continues(call, lambda each: self._tracer.of(each).path):
            return call
        if call.name in PRODUCTS and product_of(call, self._tracer) is not None:
            return call
        replaced = {key: self._complete(each) for key, each in outputs.items()}
        return FunctionCall(call.func, *replace_tensors((call.args, call.kwargs), replaced))

    def _open_chunks(self, output: Tensor) -> list[ChunkProduct]:
        path = self._tracer.of(output).path
        return [] if path is None else [each for each in self._chunks if each in path.products]

    def _complete(self, output: Tensor) -> Tensor:
        """Report the attention whose output is complete; returns what the model continues with."""
        trace, chunks = self._tracer.of(output), self._open_chunks(output)
        self._chunks = [each for each in self._chunks if each not in chunks]
        edited = complete_output(output)  # by modes around this one
        path = trace.path
        assert path is not None
        last, part = self._joined
        self._joined = chunks[0].frame, part + 1 if last is chunks[0].frame else 0
        frame = replace(chunks[0].frame, part=self._joined[1])
        try:
            with torch._C.DisableTorchFunction():  # modes around this one do not see it
                joined = join(
                    chunks, path, edited, lambda each: self._tracer.of(each).layout.factors()
                )
        except JoinError as error:
            return self._report_apart(chunks, edited, str(error))
        for chunk in chunks:
            self.events.mark_recorded(chunk.event)
        copy_edit(edited, joined.output)
        handled = self._handler(frame, joined.call, joined.output)
        if handled is joined.output or handled.data_ptr() == joined.output.data_ptr():
            return edited
        changed = refuse_gradient(joined.restored(handled, edited), edited)
        copy_edit(handled, changed)
        self._tracer.set(changed, replace(trace, path=None))
        replace_output(changed, edited)
        return changed

    def _report_apart(self, chunks: list[ChunkProduct], output: Tensor, reason: str) -> Tensor:
        """Report products over parts of the tokens, each as an attention."""
        for chunk in chunks:
            part = self._report(chunk.call, chunk.output, chunk.axes, chunk.event, chunk.frame)
            if part is not chunk.output:
                raise UserError(
                    f"{chunk.frame.path} cannot be edited: it attends in parts, and {reason}; edit another site"
                )
        if len(chunks) == 1:
            return output
        of_parts = f"{len(chunks)} products over parts of the tokens, not one map: {reason}"
        self.events.add(chunks[0].frame.path, of_parts)
        return output


def _apart(handler: CallHandler) -> CallHandler:
    """The handler, called by one thread at a time. Modes around this one do not see its functions."""
    lock = threading.RLock()

    def locked(frame: ModuleFrame, call: ForeignCall, output: Tensor) -> Tensor:
        with lock, torch._C.DisableTorchFunction():
            return handler(frame, call, output)

    return locked
