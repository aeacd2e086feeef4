"""Weights that are multiplied with values element by element, and summed over keys: the einsum that this is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from jarilab.core.shapes import Tensor
from jarilab.inspect.record.tracing import Tracer


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


def as_einsum(
    tracer: Tracer, output: Tensor, summed: Tensor, *args: Any, **kwargs: Any
) -> tuple[str, Tensor, Tensor] | None:
    """The arguments of the einsum that equals a sum of weighted values over keys; None for other sums."""
    made = tracer.of(summed).weights
    axis = kwargs.get("dim", args[0] if args else None)
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
    tracer.follow(Tensor.squeeze, (weights, -1), {}, operands[0])
    tracer.follow(Tensor.squeeze, (values, single), {}, operands[1])
    of_values = "".join(each for i, each in enumerate(letters) if i not in single)
    out = letters.replace(letters[made.key_axis], "")
    return f"{letters[:-1]},{of_values}->{out}", *operands
