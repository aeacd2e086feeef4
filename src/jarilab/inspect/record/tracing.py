"""Follows tensors through a forward: which inputs they come from, and how their axes were split and merged.

The function mode calls `Tracer.follow` after each function that the model calls. From the traces of queries and keys
follows whether an attention reads one sequence or two, and which axes are the batch and the heads.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import torch
from torch import nn

from jarilab.core.shapes import Tensor
from jarilab.inspect.record.function_kinds import (
    KEEPS_WEIGHTS,
    RECURRENT,
    SELECTIONS,
    VIEWS,
    FunctionCall,
    kind_of,
    tensors_within,
)
from jarilab.inspect.record.layout import (
    Layout,
    einsum_letters,
    shape_of,
    share_memory,
    summed_axes,
)
from jarilab.inspect.record.sources import (
    INPUT,
    NO_HISTORY,
    NOTHING,
    PARAMETER,
    SLICE,
    STATE,
    UNKNOWN,
    History,
    Sources,
    are_of_different_inputs,
    are_parameters,
    are_unknown,
    union,
)
from jarilab.inspect.record.value_paths import MOVES, Path, path_after

UNKNOWN_AXIS = -1
"""The axis of keys of weights whose rows are shifted against each other, as on the diagonals of a band."""


@dataclass(frozen=True, eq=False, slots=True)
class Weights:
    """Attention weights, or scores on their way to become weights.

    columns: the sources of the keys; None if they are not known. key_axis: the axis of keys.
    query_axis: that of the other operand of the scores; it has the keys if values are summed over it. -1 if not known.
    scores: what the softmax read, with the versions of weights and scores at that time; None for other functions.
    normalized: whether a softmax or another non-negative function was applied.
    event: the number of the event of `AttentionMode` that they belong to; -1 before any.
    merged: the events of weights that were added to them.
    before_dropout: the weights before an active dropout, None without one. dropout: its rate.
    cuts: whether the queries were cut from others.
    operands: weights and values, of a result that multiplied them element by element.
    """

    columns: Sources | None
    key_axis: int
    scores: Tensor | None = None
    versions: tuple[int, ...] = ()
    normalized: bool = False
    event: int = -1
    merged: tuple[int, ...] = ()
    before_dropout: Tensor | None = None
    dropout: float = 0.0
    cuts: bool = False
    query_axis: int = -1
    operands: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Trace:
    """Where a tensor comes from. The rows of an attention's output come from its queries alone.

    grown: whether a tensor of an earlier forward was extended, as a cache of keys is. forward: when it was computed.
    is_parameter: whether it is a parameter or a view of one.
    weights: for attention scores and weights. path: for linear functions of values.
    base: in inference mode, the tensor of which this may be a view.
    joint: whether sequences of different inputs were concatenated. number: of a joint tensor that was sliced.
    history: the concatenations and attentions that it went through.
    """

    sources: Sources
    layout: Layout
    forward: int
    grown: bool = False
    weights: Weights | None = None
    is_parameter: bool = False
    path: Path | None = None
    base: weakref.ref[Tensor] | None = None
    joint: bool = False
    number: int = 0
    history: History = NO_HISTORY

    def with_keys_at(self, axis: int) -> Trace:
        """The trace of weights whose keys are at `axis`: of scores, both operands may have them."""
        made = self.weights
        if made is None or made.columns is None or axis == made.key_axis or axis != made.query_axis:
            return self
        turned = {"columns": self.sources, "key_axis": axis, "query_axis": made.key_axis}
        return replace(self, sources=made.columns, weights=replace(made, **turned))

    def of_rows(self, layout: Layout, forward: int, weights: Weights | None = None) -> Trace:
        """The trace of a result that has the rows of this tensor, such as a projection or scores of queries."""
        made = Trace(self.sources, layout, forward, self.grown, weights, joint=self.joint)
        return replace(made, history=self.history)

    @property
    def is_learned(self) -> bool:
        """Whether it depends on parameters only."""
        return bool(self.sources) and are_parameters(self.sources)


class Tracer:
    """The traces of the tensors of one model."""

    def __init__(self, model: nn.Module):
        self.forward = 0
        self._names = {id(each): name for name, each in model.named_parameters()}
        self._buffers = {id(each) for each in model.buffers()}
        self._traces: dict[int, tuple[weakref.ref[Tensor], Trace]] = {}
        self._unknown = self._sliced = self._states = self._attentions = 0
        self._outermost = ""

    def start_forward(self, path: str, names: Iterable[str], values: Iterable[Any]) -> None:
        """Name the tensors that the outermost module is called with."""
        self.forward += 1
        # Counted anew, so that the history of a cache does not grow with each forward.
        self._outermost, self._attentions = path, 0
        for name, value in zip(names, values, strict=False):
            for suffix, tensor in tensors_within(value):
                trace = self._known(tensor)
                # Token IDs that a generation makes from constants or from logits are an input of their own, and so is
                # what the caller computed from tensors that are not known, as scaled images.
                if trace is None or are_unknown(trace.sources) or not tensor.is_floating_point():
                    of_module = f"{path}." if path else ""
                    sources = frozenset((f"{INPUT}{of_module}{name}{suffix}",))
                    self.set(tensor, Trace(sources, _layout(tensor), self.forward))

    def name_replicated(self, path: str, module: nn.Module) -> None:
        """Name the tensors that `nn.DataParallel` has put in the place of parameters and buffers."""
        parameters: dict[str, Tensor] = vars(module).get("_former_parameters", {})
        for name, tensor in parameters.items():
            sources = frozenset((f"{PARAMETER}{path}.{name}",))
            self.set(tensor, Trace(sources, _layout(tensor), self.forward, is_parameter=True))
        for tensor in module._buffers.values() if parameters else ():
            if tensor is not None:
                self.set(tensor, Trace(NOTHING, _layout(tensor), 0))

    def of(self, tensor: Tensor) -> Trace:
        """The trace of a tensor; one that was never seen before is a source of its own."""
        trace = self._known(tensor)
        if trace is not None:
            return trace
        if isinstance(tensor, nn.Parameter) or id(tensor) in self._names:
            sources = frozenset((PARAMETER + self._names.get(id(tensor), str(id(tensor))),))
            return Trace(sources, _layout(tensor), self.forward, is_parameter=True)
        if id(tensor) in self._buffers:
            return Trace(NOTHING, _layout(tensor), 0)
        self._unknown += 1
        trace = Trace(frozenset((f"{UNKNOWN}{self._unknown}",)), _layout(tensor), 0)
        self.set(tensor, trace)
        return trace

    def set(self, tensor: Tensor, trace: Trace) -> None:
        """Remember the trace of a tensor as long as it lives."""
        key = id(tensor)
        # When the tensor is freed, `pop(key, reference)` drops the trace, and with it the scores that it holds.
        self._traces[key] = weakref.ref(tensor, partial(self._traces.pop, key)), trace

    def set_from(self, tensor: Tensor, inputs: Sequence[Trace]) -> None:
        """Trace a tensor to the inputs that it was computed from by functions that were not followed."""
        sources = union([trace.sources for trace in inputs])
        grown = any(trace.grown for trace in inputs)
        self.set(tensor, Trace(sources, _layout(tensor), self.forward, grown))

    def knows(self, tensor: Tensor) -> bool:
        """Whether the tensor was computed by a function that was followed."""
        return self._known(tensor) is not None

    def _known(self, tensor: Tensor) -> Trace | None:
        entry = self._traces.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def _path_of(self, tensor: Tensor) -> Path | None:
        trace = self._known(tensor)
        return None if trace is None else trace.path

    # Functions

    def follow(self, call: FunctionCall, result: Any) -> None:
        """Trace the result of a function."""
        kind = kind_of(call.name)
        if isinstance(result, Tensor):
            outputs = [result]
        elif kind == "write" and call.args and isinstance(call.args[0], Tensor):
            outputs = [call.args[0]]
        elif isinstance(result, tuple | list):
            outputs = [each for each in result if isinstance(each, Tensor)]
        else:
            return
        if not outputs:
            return
        traces = []
        if kind != "constant":
            traces = [(tensor, self.of(tensor)) for tensor in call.tensors]
        is_tuple = isinstance(result, tuple | list)
        for index, output in enumerate(outputs):
            if not traces:
                trace = Trace(NOTHING, _layout(output), self.forward)
            elif kind == "product":
                trace = self._product(call, traces, output)
            else:
                trace = self._computed(kind, call, traces, output)
                if kind == "other" and output.is_inference():
                    viewed = self._base_of(traces[0][0])
                    trace = replace(
                        trace, base=weakref.ref(traces[0][0] if viewed is None else viewed)
                    )
            if index and RECURRENT.fullmatch(call.name):
                trace = self._state_of(trace)
            if traces and traces[0][1].joint and kind == "other":
                trace = self._slice_of(*traces[0], output, trace)
            base = self._base_of(output) if kind == "write" else None
            path = path_after(
                call,
                self._path_of,
                output,
                index if is_tuple else None,
                lambda before=traces, after=trace: before[0][1].layout.drops_rows(after.layout),
            )
            self.set(output, trace if path is None else replace(trace, path=path))
            if base is not None and base is not output:
                # `empty[..., :n].copy_(k)` writes into `empty`.
                self.set(base, self._written(base, trace))

    def _written(self, base: Tensor, part: Trace) -> Trace:
        """The trace of a tensor of which a part was written. part: the trace of this part."""
        before = self.of(base)
        sources, history = part.sources | before.sources, part.history | before.history
        return Trace(sources, _layout(base), self.forward, part.grown, history=history)

    def _state_of(self, trace: Trace) -> Trace:
        """The trace of the last state of a recurrent layer: no token of it, since a decoder begins with it."""
        self._states += 1
        others = {name for name in trace.sources if not name.startswith(STATE)}
        return replace(trace, sources=frozenset((*others, f"{STATE}{self._states}")))

    def _slice_of(self, tensor: Tensor, joint: Trace, output: Tensor, trace: Trace) -> Trace:
        """The trace of a view; one of some tokens of joint sequences is of another sequence than one of others."""
        is_view = output.numel() < tensor.numel() and share_memory(tensor, output)
        if not is_view or not joint.layout.drops_rows(trace.layout):
            return trace
        if not joint.number:
            self._sliced += 1
            joint = replace(joint, number=self._sliced)
            self.set(tensor, joint)
        offset = output.storage_offset() - tensor.storage_offset()
        name = f"{SLICE}{joint.number} {offset} {tuple(output.shape)} {output.stride()}"
        return replace(trace, sources=trace.sources | {name})

    def _base_of(self, view: Tensor) -> Tensor | None:
        """The tensor that a view shows; None if `view` is none."""
        if not view.is_inference():
            return view._base
        trace = self._known(view)
        base = None if trace is None or trace.base is None else trace.base()
        # Inference tensors have no `_base`. Results of functions that copy have a storage of their own.
        return None if base is None or not share_memory(base, view) else base

    def _computed(
        self, kind: str, call: FunctionCall, traces: list[tuple[Tensor, Trace]], output: Tensor
    ) -> Trace:
        joins = kind in ("join", "write")
        # The parameters of a layer stand beside computed data.
        data = [each for each in traces if not each[1].is_parameter]
        if joins or not any(trace.sources for _, trace in data):
            data = traces
        if call.name in SELECTIONS and data[0][0] is traces[0][0]:
            data = data[:1]  # as of beams: which rows are selected is no source
        sources = union([trace.sources for _, trace in data], joins=joins)
        grown = any(
            trace.grown or (joins and trace.forward < self.forward and bool(trace.sources))
            for _, trace in traces
        )
        shape = shape_of(output)
        first, first_trace = max(
            traces,
            key=lambda each: (
                each[1].weights is not None and each[0].ndim == output.ndim,
                shape_of(each[0]) == shape,
            ),
        )
        layout = first_trace.layout.after(kind, call, first, output)
        weights = _followed(kind, call, traces, output)
        if weights is not None:
            # Masks and biases that are added to scores are no queries.
            data = [each for each in traces if each[1].weights is not None]
            sources = union([trace.sources for _, trace in data])
        is_parameter = first_trace.is_parameter and call.name in VIEWS
        joint = any(trace.joint for _, trace in data) or (
            joins and are_of_different_inputs([trace.sources for _, trace in data])
        )
        made = Trace(sources, layout, self.forward, grown, weights, is_parameter, joint=joint)
        return replace(made, history=_history(call, [trace for _, trace in data], output))

    def after_attention(self, trace: Trace) -> Trace:
        """The trace of the output of an attention, from that of its rows."""
        self._attentions += 1
        number = self._outermost, self._attentions
        return replace(trace, history=History(attentions=trace.history.attentions | {number}))

    def _product(
        self, call: FunctionCall, traces: list[tuple[Tensor, Trace]], output: Tensor
    ) -> Trace:
        """The trace of a matrix product: a projection, scores, or weights times values."""
        (left, a), (right, b) = traces[-2:] if len(traces) > 1 else (traces[0], traces[0])
        is_einsum = call.func is torch.einsum
        letters = einsum_letters(call.args[0], left, right) if is_einsum else None
        over = summed_axes(letters, left, right)
        for one, other, axis in ((a, b, over[0]), (b, a, over[1])):
            if one.weights is not None and one.weights.normalized:
                return self._weighted(one.with_keys_at(axis), other, a, b, letters, output)
            if (one.is_parameter or not one.sources) and not other.is_parameter and other.sources:
                layout = other.layout.like(shape_of(output))
                if letters is None and output.ndim == len(other.layout.shape) - 1:
                    removed = (over[1] if one is a else over[0],)
                    layout = Layout(shape_of(output), "remove", removed, other.layout)
                return other.of_rows(layout, self.forward)
        if is_einsum:
            return self._scores_of_einsum(a, b, letters or ("", "", ""), output)
        layout = a.layout.product(shape_of(output))
        return self._scores(a, b, layout, output.ndim - 1, output.ndim - 2)

    def _weighted(
        self,
        one: Trace,
        other: Trace,
        a: Trace,
        b: Trace,
        letters: tuple[str, str, str] | None,
        output: Tensor,
    ) -> Trace:
        """The trace of weights, `one`, times values. a, b: of the left and the right operand."""
        made, layout = None, _layout(output)
        if one.weights is not None and one.weights.columns is None:
            # That of linear attention has features of keys, which its queries are multiplied with.
            layout = a.layout.product(shape_of(output))
            if letters is not None:
                layout = Layout.of_einsum(letters, a.layout, b.layout, shape_of(output))
        if other.weights is not None and other.weights.normalized:
            # Weights over landmarks times the landmarks' weights over keys.
            columns, weights = other.weights.columns, a.weights or b.weights
            assert weights is not None
            made = replace(weights, columns=columns, key_axis=output.ndim - 1, scores=None)
        elif letters is not None and one is a:
            made = _mixed(one.weights, *letters)
            layout = layout if made is None else a.layout.like(shape_of(output))
        trace = one.of_rows(layout, self.forward, made)
        return trace if made is not None else self.after_attention(trace)

    def _scores_of_einsum(
        self, a: Trace, b: Trace, letters: tuple[str, str, str], output: Tensor
    ) -> Trace:
        """The trace of scores. The keys are the last axis that only one operand has."""
        of_left, of_right, out = letters
        single = [letter for letter in out if (letter in of_left) != (letter in of_right)]
        if not single:
            return Trace(union([a.sources, b.sources]), _layout(output), self.forward)
        key = single[-1]
        rows = [each for each in single if (each in of_left) != (key in of_left)]
        layout = Layout.of_einsum(letters, a.layout, b.layout, shape_of(output))
        query, columns = (b, a) if key in of_left else (a, b)
        row_axis = out.index(rows[-1]) if rows else -1
        return self._scores(query, columns, layout, out.index(key), row_axis)

    def _scores(
        self, rows: Trace, columns: Trace, layout: Layout, key_axis: int, query_axis: int
    ) -> Trace:
        """The trace of scores of queries, `rows`, and keys, `columns`."""
        cuts = rows.path is not None and rows.path.cuts
        weights = Weights(columns.sources, key_axis, cuts=cuts, query_axis=query_axis)
        return rows.of_rows(layout, self.forward, weights)


def _history(call: FunctionCall, traces: Sequence[Trace], output: Tensor) -> History:
    """The history of a result. traces: of the tensors that it was computed from."""
    history = reduce(History.__or__, (trace.history for trace in traces), NO_HISTORY)
    is_joined = call.name in ("cat", "concat", "concatenate")
    if not is_joined or call.argument(1, "dim", 0) in (-1, output.ndim - 1):  # along features
        return history
    first, last = traces[0], traces[-1]
    firsts, lasts = first.history.first | {first.sources}, last.history.last | {last.sources}
    return replace(history, first=firsts, last=lasts)


def _mixed(weights: Weights | None, of_left: str, of_right: str, out: str) -> Weights | None:
    """Weights whose heads an einsum mixes; None if its result has no axis of keys, or has it elsewhere."""
    letters = list(of_left)
    mixed = [letter for letter in of_left if letter not in out]
    if weights is None or len(mixed) != 1 or weights.key_axis < 0:
        return None
    index = of_left.index(mixed[0])
    new = [letter for letter in out if letter not in of_left]
    letters[index : index + 1] = new
    key = of_left[weights.key_axis]
    if len(new) != 1 or key not in out or key in of_right or letters != list(out):
        return None
    return replace(weights, scores=None, before_dropout=None)


def _layout(tensor: Tensor) -> Layout:
    return Layout(shape_of(tensor))


# Weights ------------------------------------------------------------------------------------------------------------


def _followed(
    kind: str, call: FunctionCall, traces: list[tuple[Tensor, Trace]], output: Tensor
) -> Weights | None:
    """The weights that a function passes on: its result is attention weights if an argument was."""
    for tensor, trace in traces:
        weights = trace.weights
        if weights is None or not output.is_floating_point():
            continue
        axes = _followed_axes(kind, call, tensor, weights, output)
        if axes is None:
            continue
        others = [each.weights for _, each in traces if each.weights is not None]
        columns, merged, before = weights.columns, weights.merged, weights.before_dropout
        if len(others) > 1:
            events = {event for each in others for event in (each.event, *each.merged)}
            merged = tuple(events - {weights.event, -1})
            if columns is not None:
                columns = union([each.columns for each in others if each.columns is not None])
        if before is not None:
            before = _replayed(call, tensor, before, output)
        scores = weights.scores if call.name in KEEPS_WEIGHTS else None
        return replace(
            weights,
            operands=None,
            columns=columns,
            key_axis=axes[0],
            query_axis=axes[1],
            scores=scores,
            merged=merged,
            before_dropout=before,
        )
    return None


def _followed_axes(
    kind: str, call: FunctionCall, tensor: Tensor, weights: Weights, output: Tensor
) -> tuple[int, int] | None:
    """The axes of keys and of queries in the result; None if it has no axis of keys."""
    key_axis, query_axis = (
        axis if axis < 0 else Layout.moved_axis(axis, call, shape_of(tensor), shape_of(output))
        for axis in (weights.key_axis, weights.query_axis)
    )
    if key_axis is None:
        # Weights of two axes without queries and keys may be those of a router.
        is_map = weights.columns is not None or weights.event >= 0
        if not (weights.normalized and is_map and call.name in MOVES):
            return None
        key_axis = UNKNOWN_AXIS
    is_broadcast = key_axis >= 0 and tensor.shape[weights.key_axis] == 1 < output.shape[key_axis]
    if is_broadcast and kind == "other" and call.name != "pad":
        return None
    # A convolution may mix the heads of a map and leave its rows and columns.
    is_conv = "conv" in call.name
    is_mixed = kind == "fresh" and weights.key_axis == tensor.ndim - 1
    if is_mixed and not (is_conv and output.shape[2:] == tensor.shape[2:]):
        return None
    return key_axis, -1 if query_axis is None else query_axis


@torch.no_grad()
def _replayed(call: FunctionCall, tensor: Tensor, before: Tensor, output: Tensor) -> Tensor | None:
    """The result that the function has for the weights before dropout."""
    changed = [before if value is tensor else value for value in call.args]
    if call.kwargs.get("out") is not None or call.name.endswith("_"):
        changed = [value.clone() if value is before else value for value in changed]
    result = call.func(*changed, **call.kwargs)
    return result if isinstance(result, Tensor) and result.shape == output.shape else None
