"""Batch and heads of recorded tensors, and which product of two tensors multiplies attention weights with values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from jarilab.core.shapes import Tensor
from jarilab.inspect.record.function_kinds import FunctionCall
from jarilab.inspect.record.layout import (
    FEATURES,
    HEADS,
    UNCLEAR,
    Factor,
    einsum_letters,
    shape_of,
)
from jarilab.inspect.record.tracing import UNKNOWN_AXIS, Trace, Tracer

Arrange = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class HeadAxes:
    """How the axes before the last two become `(B, H)`.

    parts: the sizes into which these axes split. order: first the parts of the batch, then those of the heads.
    batch, heads: their sizes. folded: the size of an axis that has both in an unknown order; it is then kept as heads
    of one input. arrange: applied to outputs before. then: applied to results after.
    """

    shape: tuple[int, ...]
    parts: tuple[int, ...]
    order: tuple[int, ...]
    batch: int
    heads: int
    folded: int = 0
    arrange: Arrange | None = None
    then: Arrange | None = None

    @staticmethod
    def of(
        shape: Sequence[int], factors: Sequence[Sequence[Factor]], heads: int | None = None
    ) -> HeadAxes:
        """The axes of `shape`, split and merged as `factors` say. heads: their number, if the caller said it."""
        shape = tuple(shape)
        size = math.prod(shape)
        if heads and len(shape) == 1 and size % heads == 0:
            return HeadAxes(shape, (size // heads, heads), (0, 1), size // heads, heads)
        parts = [(part, label, axis) for axis, each in enumerate(factors) for part, label in each]
        is_head = [_is_head(parts, index) for index in range(len(parts))]
        labels = {label for _, label, _ in parts}
        if not any(is_head) or UNCLEAR in labels or math.prod(part for part, *_ in parts) != size:
            return HeadAxes._by_convention(shape, known=not labels & {UNCLEAR, FEATURES})
        order = [i for i, head in enumerate(is_head) if not head]
        batch = math.prod(parts[i][0] for i in order)
        order += [i for i, head in enumerate(is_head) if head]
        sizes = tuple(part for part, *_ in parts)
        return HeadAxes(shape, sizes, tuple(order), batch, size // batch)

    @staticmethod
    def _by_convention(shape: tuple[int, ...], *, known: bool) -> HeadAxes:
        """Two axes are batch and heads, as for PyTorch; one is the batch, unless it may have heads as well."""
        size = math.prod(shape)
        if len(shape) == 2:
            return HeadAxes(shape, shape, (0, 1), *shape)
        if len(shape) < 2 and known:
            return HeadAxes(shape, shape, tuple(range(len(shape))), size, 1)
        return HeadAxes(shape, shape, tuple(range(len(shape))), 1, size, folded=size)

    def with_heads(self, tensor: Tensor) -> Tensor:
        """The tensor as `(B, H, X, Y)`."""
        tensor = tensor if self.arrange is None else self.arrange(tensor)
        last = tuple(tensor.shape[-2:])
        if self.order != tuple(range(len(self.order))):
            moved = (*self.order, len(self.parts), len(self.parts) + 1)
            tensor = tensor.reshape(*self.parts, *last).permute(moved)
        result = tensor.reshape(self.batch, self.heads, *last)
        return result if self.then is None else self.then(result)

    def mask_with_heads(self, mask: Tensor) -> Tensor:
        """A mask that broadcasts to these axes, in the form that broadcasts to `(B, H, Q, K)`."""
        is_plain = self.shape == (self.batch, self.heads) and self.order == (0, 1)
        if mask.ndim == 2 or is_plain:
            return mask[(None,) * (4 - mask.ndim)]
        return self.with_heads(mask.expand(*self.shape, *mask.shape[-2:]))

    def restored(self, tensor: Tensor, like: Tensor) -> Tensor:
        """The tensor `(B, H, X, Y)` in the axes of `like`, from which `with_heads` would make it."""
        is_in_order = self.order == tuple(range(len(self.order)))
        if is_in_order and self.arrange is None and self.then is None:
            return tensor.reshape(like.shape)
        index = torch.arange(like.numel(), device=like.device).view(like.shape)
        result = torch.empty_like(like).flatten()
        result[self.with_heads(index).flatten()] = tensor.flatten().to(like.dtype)
        return result.view(like.shape)

    def with_groups_as_queries(self) -> HeadAxes:
        """The axes of a call whose queries are the heads that share keys."""
        return replace(self, then=lambda tensor: tensor.flatten(1, 2).unsqueeze(2))


def _is_head(parts: Sequence[tuple[int, str, int]], index: int) -> bool:
    """Whether a part is of heads: one that is labelled, or that repeats the heads before it in its axis.

    Without a batch before them, what follows the heads is the batch.
    """
    _, label, axis = parts[index]
    if label == HEADS:
        return True
    before = [part for part in parts[:index] if part[2] == axis]
    repeats = bool(before) and not label and before[-1][1] == HEADS
    return repeats and any(not other for _, other, _ in parts[:index])


def broadcast(
    tracer: Tracer, query: Tensor, key: Tensor, value: Tensor, batch: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with the axes of the output before its last two, `batch`, and their traces.

    Keys and values may have fewer heads, in the last of these axes, if both have as many.
    """
    heads = {each.shape[-3] if each.ndim > 2 else 1 for each in (key, value)}
    shape = batch
    if len(heads) == 1 and (len(batch) > 1 or heads != {1}):
        shape = (*batch[:-1], *heads)
    key, value = (_expand(tracer, each, shape) for each in (key, value))
    return _expand(tracer, query, batch), key, value


def _expand(tracer: Tracer, tensor: Tensor, batch: tuple[int, ...]) -> Tensor:
    if tensor.shape[:-2] == batch:
        return tensor
    expanded, trace = tensor.expand(*batch, *tensor.shape[-2:]), tracer.of(tensor)
    tracer.set(expanded, replace(trace, layout=trace.layout.like(shape_of(expanded))))
    return expanded


# Products -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Product:
    """Attention weights and the values that they were multiplied with.

    weights: `(*batch, Q, K)`, before dropout. values: `(*batch, K, W)`. operand: the weights as they were multiplied.
    trace: of the weights. axes: of weights and values.
    arrange: brings the output into `(*batch, Q, W)`. of_values: the operand that has the values, and what brings it
    into `(*batch, K, W)`. sums_features: whether the axis of values that is summed has features.
    """

    weights: Tensor
    values: Tensor
    operand: Tensor
    trace: Trace
    axes: HeadAxes
    is_plain: bool
    arrange: Arrange | None
    of_values: tuple[Tensor, Arrange]
    sums_features: bool = False

    @property
    def is_linear_attention(self) -> bool:
        """Whether a softmax normalized queries or keys alone: it sums over features, or its rows are those of heads."""
        made, factors = self.trace.weights, self.trace.layout.factors()
        if made is None or made.columns is not None or made.key_axis < 0 or len(factors) < 2:
            return False
        rows = [each for axis, each in enumerate(factors) if axis != made.key_axis]
        has_heads = any(_labels(each) == {HEADS} for each in rows)
        if FEATURES in _labels(factors[made.key_axis]):
            return self.sums_features
        return has_heads and any(FEATURES in _labels(each) for each in rows)

    @property
    def output_axes(self) -> HeadAxes:
        """The axes of the output."""
        return replace(self.axes, arrange=self.arrange)


def product_of(call: FunctionCall, tracer: Tracer) -> Product | None:
    """The attention weights and values of a matrix product; None for any other product."""
    operands = call.tensors
    if len(operands) != 2:
        return None
    left, right = operands
    if call.func is torch.einsum:
        return _of_einsum(call.args[0], left, right, tracer)
    for weights, values, is_first in ((left, right, True), (right, left, False)):
        axis = weights.ndim - (1 if is_first else 2)
        trace = tracer.of(weights).with_keys_at(axis)
        made = trace.weights
        if made is None or not made.normalized or made.key_axis not in (axis, UNKNOWN_AXIS):
            continue
        values_made = tracer.of(values).weights
        if values_made is not None and values_made.normalized:
            return None  # weights of two attentions
        of_values: tuple[Tensor, Arrange] = values, _transposed if not is_first else _unchanged
        if weights.ndim < 2 or values.ndim < 2:
            return None
        before = weights if made.before_dropout is None else made.before_dropout
        factors = trace.layout.factors()[:-2]
        values_factors = tracer.of(values).layout.factors()
        arrange: Arrange | None = None
        if not is_first:
            before, values, arrange = before.mT, values.mT, _transposed
        # Not that of PyTorch, whose first call imports SymPy.
        batch = np.broadcast_shapes(before.shape[:-2], values.shape[:-2])
        if len(batch) != before.ndim - 2:
            return None
        before = before.expand(*batch, *before.shape[-2:])
        values = values.expand(*batch, *values.shape[-2:])
        axes = HeadAxes.of(batch, factors)
        sums_features = FEATURES in _labels(values_factors[-2 if is_first else -1])
        return Product(
            before,
            values,
            weights,
            trace,
            axes,
            is_first,
            arrange,
            of_values,
            sums_features,
        )
    return None


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.mT


def _of_einsum(equation: Any, left: Tensor, right: Tensor, tracer: Tracer) -> Product | None:
    letters_of = einsum_letters(equation, left, right)
    if letters_of is None:
        return None
    of_left, of_right, out = letters_of
    orders = (left, of_left, right, of_right), (right, of_right, left, of_left)
    for weights, letters, values, of_values in orders:
        trace = tracer.of(weights)
        for axis, letter in enumerate(letters):
            if letter in of_values and letter not in out:
                trace = trace.with_keys_at(axis)
        made = trace.weights
        if made is None or not made.normalized:
            continue
        key = letters[made.key_axis]
        all_factors = trace.layout.factors()
        labels = {each: _labels(one) for each, one in zip(letters, all_factors, strict=True)}
        roles = _roles(letters, of_values, out, key, labels)
        if roles is None:
            continue
        shared, heads, queries, width = roles
        batch = [each for each in letters if each in shared or each in heads]
        before = weights if made.before_dropout is None else made.before_dropout
        ordered = _arranged(letters, batch, queries, [key])
        sizes = [weights.shape[letters.index(each)] for each in batch]
        axes = HeadAxes.of(sizes, [all_factors[letters.index(each)] for each in batch])
        is_plain = letters == "".join((*batch, *queries, key)) and len(queries) == 1
        arrange_values = _expanded(_arranged(of_values, shared, [key], width), batch, heads, sizes)
        return Product(
            ordered(before),
            arrange_values(values),
            weights,
            trace,
            axes,
            is_plain,
            _arranged(out, batch, queries, width),
            (values, arrange_values),
            FEATURES in _labels(tracer.of(values).layout.factors()[of_values.index(key)]),
        )
    return None


def _roles(
    letters: str, of_values: str, out: str, key: str, labels: Mapping[str, set[str]]
) -> tuple[list[str], list[str], list[str], list[str]] | None:
    """The letters of an einsum that weights and values share, and those of heads, queries and the values' width.

    letters: of the weights. None if it is no sum of values over keys.
    """
    shared = [each for each in letters if each in of_values and each in out]
    rows = [each for each in letters if each not in of_values and each in out]
    # Heads that share their values are no rows.
    heads = [each for each in rows if labels[each] == {HEADS}]
    heads = heads if len(heads) < len(rows) else []
    queries = [each for each in rows if each not in heads]
    width = [each for each in of_values if each not in letters and each in out]
    # Without queries it pools tokens, or mixes streams, experts or features.
    is_pooling = bool(queries) or FEATURES not in labels[key]
    is_weighted_sum = key in of_values and key not in out and is_pooling
    if not is_weighted_sum or len(shared) + len(rows) + 1 != len(letters):
        return None
    if len(shared) + len(width) + 1 != len(of_values):
        return None
    return shared, heads, queries, width


def _labels(parts: Sequence[Factor]) -> set[str]:
    return {label for _, label in parts}


def _expanded(
    arrange: Arrange, batch: Sequence[str], heads: Sequence[str], sizes: Sequence[int]
) -> Arrange:
    """`arrange`, and the axes of heads that the tensor does not have."""

    def expand(tensor: Tensor) -> Tensor:
        tensor = arrange(tensor)
        for axis, letter in enumerate(batch):
            tensor = tensor.unsqueeze(axis) if letter in heads else tensor
        return tensor.expand(*sizes, *tensor.shape[-2:])

    return expand if heads else arrange


def _arranged(
    letters: str, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]
) -> Arrange:
    """A function that orders axes, and merges those of rows and those of columns."""
    order = [letters.index(each) for each in (*batch, *rows, *columns)]

    def arrange(tensor: Tensor) -> Tensor:
        tensor = tensor.permute(order)
        first, second = len(batch), len(batch) + len(rows)
        rows_size = math.prod(tensor.shape[first:second])
        return tensor.reshape(*tensor.shape[:first], rows_size, math.prod(tensor.shape[second:]))

    return arrange


# Products element by element -----------------------------------------------------------------------------------------


def follow_weighted_values(tracer: Tracer, result: Tensor, *operands: Any) -> None:
    """Remember weights `(..., K, 1)` that were multiplied with values, until their sum."""
    trace = tracer.of(result)
    made = trace.weights
    if made is None or not made.normalized or not all(isinstance(x, Tensor) for x in operands):
        return
    operands = tuple(sorted(operands, key=lambda each: tracer.of(each).weights is None))
    weights, values = operands
    is_over_features = weights.ndim == values.ndim and weights.shape[-1] == 1 < values.shape[-1]
    is_spread = any(k > q for q, k in zip(weights.shape[:-1], values.shape[:-1], strict=False))
    path = tracer.of(values).path
    if is_over_features and not is_spread and not (path is not None and path.selects):
        tracer.set(result, replace(trace, weights=replace(made, operands=operands)))


def as_einsum(tracer: Tracer, output: Tensor, call: FunctionCall) -> FunctionCall | None:
    """The einsum that equals a sum of weighted values over keys; None for other sums."""
    summed, axis = call.args[0], call.argument(1, "dim")
    made = tracer.of(summed).weights
    (axis,) = axis if isinstance(axis, tuple | list) and len(axis) == 1 else (axis,)
    if made is None or made.operands is None or not isinstance(axis, int):
        return None
    if output.ndim != summed.ndim - 1 or axis % summed.ndim != made.key_axis:
        return None
    weights, values = made.operands
    letters = "abcdefgh"[: summed.ndim]
    single = [i for i, size in enumerate(values.shape[:-1]) if size < weights.shape[i]]
    with torch._C.DisableTorchFunction():
        operands = weights.squeeze(-1), values.squeeze(single)
    tracer.follow(FunctionCall(Tensor.squeeze, (weights, -1), {}), operands[0])
    tracer.follow(FunctionCall(Tensor.squeeze, (values, single), {}), operands[1])
    of_values = "".join(each for i, each in enumerate(letters) if i not in single)
    out = letters.replace(letters[made.key_axis], "")
    equation = f"{letters[:-1]},{of_values}->{out}"
    return FunctionCall(torch.einsum, (equation, *operands), {})
