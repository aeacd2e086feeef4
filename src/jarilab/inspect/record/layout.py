"""How the axes of a tensor were split and merged, so that batch and heads are known when they share an axis."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from jarilab.core.shapes import Tensor
from jarilab.inspect.record.function_kinds import FunctionCall, names

Factor = tuple[int, str]
"""The size of a part of an axis, and its label: `heads`, `features`, `unclear` or nothing."""
HEADS, FEATURES, UNCLEAR = "heads", "features", "unclear"


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a tensor; of a nested one, that after padding."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    if tensor.layout is not torch.jagged:
        return tensor.size(0), *tensor._nested_tensor_size().amax(0).tolist()
    offsets: Tensor = cast(Any, tensor).offsets()
    # PyTorch builds a nested tensor from a template without values.
    longest = 0 if offsets.is_meta else int(offsets.diff().max())
    return tuple(size if isinstance(size, int) else longest for size in tensor.shape)


def share_memory(x: Tensor, y: Tensor) -> bool:
    """Whether both are views of the same storage."""
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


@dataclass(frozen=True, eq=False)
class Layout:
    """The shape of a tensor, and the step that made it from another layout.

    Without a parent the others are single axes beside the one of features: the last, or `argument`.
    """

    shape: tuple[int, ...]
    step: str = ""
    argument: Any = None
    parent: Layout | None = None

    # Steps

    def like(self, shape: Sequence[int]) -> Layout:
        """The layout of a result whose axes are those of this tensor, some with other sizes."""
        shape = tuple(shape)
        if shape == self.shape:
            return self
        if len(shape) != len(self.shape):
            return Layout(shape)
        # A chain of such steps, as in a growing cache, is kept short.
        parent = self.parent if self.step == "like" and self.parent is not None else self
        return Layout(shape, "like", None, parent)

    def product(self, shape: Sequence[int]) -> Layout:
        """The layout of a matrix product whose left operand has this layout."""
        shape = tuple(shape)
        same = len(shape) == len(self.shape)
        return Layout(shape, "product", None, self) if same else Layout(shape)

    @staticmethod
    def of_einsum(
        letters: tuple[str, str, str], left: Layout, right: Layout, shape: tuple[int, ...]
    ) -> Layout:
        """The layout of an einsum's output: each axis as in the first operand that has it."""
        of_left, of_right, out = letters
        origins = tuple(
            (left, of_left.index(each)) if each in of_left else (right, of_right.index(each))
            for each in out
        )
        return Layout(shape, "gather", origins)

    def after(self, kind: str, call: FunctionCall, tensor: Tensor, output: Tensor) -> Layout:
        """The layout of a function's result, where `tensor` has this layout."""
        shape = shape_of(output)
        name = _name_of(call)
        if kind == "fresh":
            dims = _DIMENSIONS.get(name.replace("_transpose", ""))
            return Layout(shape) if dims is None else Layout(shape, argument=len(shape) - 1 - dims)
        order = _order_of(name, call, tensor.ndim)
        if order is not None:
            return Layout(shape, "permute", order, self)
        if name in _PIECES:
            axis = _axis(call, 2, "dim", 0) % tensor.ndim
            if axis == tensor.ndim - 1 or self.factors()[axis] == [(self.shape[axis], FEATURES)]:
                return Layout(shape, "piece", None, self)
        is_sliced = name in ("__getitem__", "narrow") and len(shape) == len(self.shape) > 0
        if is_sliced and shape[:-1] == self.shape[:-1] and shape[-1] < self.shape[-1]:
            return Layout(shape, "piece", None, self)
        if kind == "join" and shape and isinstance(call.args[0], tuple | list):
            axis = _axis(call, 1, "dim", 0)
            pieces = len(call.args[0])
            if axis == 0 and self.step == "piece" and pieces > 1:
                return Layout(shape, "stack", pieces, self)
        if shape == self.shape:
            return self
        if name in _INDEXING and len(shape) < len(self.shape):
            removed = _removed_axis(name, call, self.shape, shape)
            return Layout(shape) if removed is None else Layout(shape, "remove", removed, self)
        adds_axes = name in _RESHAPES or (name == "__getitem__" and len(shape) > len(self.shape))
        if adds_axes and math.prod(shape) == math.prod(self.shape):
            return Layout(shape, "reshape", None, self)
        return self.like(shape)

    # Results

    def factors(self) -> list[list[Factor]]:
        """The parts of each axis, outermost first."""
        if self.step == "gather":
            return [layout.factors()[axis] for layout, axis in self.argument]
        if self.parent is None:
            features = len(self.shape) - 1 if self.argument is None else self.argument
            return [[(n, FEATURES if i == features else "")] for i, n in enumerate(self.shape)]
        factors = self.parent.factors()
        if self.step == "permute":
            return [factors[axis] for axis in self.argument]
        if self.step == "remove":
            return [each for axis, each in enumerate(factors) if axis not in self.argument]
        if self.step == "stack":
            return [[(self.argument, HEADS), *factors[0]], *factors[1:]]
        if self.step == "reshape":
            return _regroup(factors, self.shape)
        if self.step == "product":
            return [*factors[:-1], [(self.shape[-1], "")]]
        changed = []
        for parts, size, before in zip(factors, self.shape, self.parent.shape, strict=True):
            # A piece of features has features, too.
            is_piece = self.step == "piece" and bool(parts) and parts[-1][1] == FEATURES
            changed.append(parts if size == before else [(size, FEATURES if is_piece else "")])
        return changed

    def drops_rows(self, after: Layout) -> bool:
        """Whether a result has fewer tokens or inputs of the batch than this tensor."""

        def rows(layout: Layout) -> int:
            parts = [part for axis in layout.factors() for part in axis]
            return math.prod(size for size, label in parts if label not in (HEADS, FEATURES))

        if after.step == "like" and len(after.shape) == len(self.shape):
            # The parts of an axis that was cut are not known, as of one that has batch and heads.
            axes = zip(self.shape, after.shape, self.factors(), strict=True)
            cut = [label for old, new, parts in axes if new < old for _, label in parts]
            return any(label not in (HEADS, FEATURES) for label in cut)
        return rows(after) < rows(self)

    @staticmethod
    def moved_axis(
        axis: int, call: FunctionCall, before: Sequence[int], after: Sequence[int]
    ) -> int | None:
        """Where a function moves an axis of its argument; None if the result has no such axis."""
        name = _name_of(call)
        order = _order_of(name, call, len(before))
        if order is not None:
            return order.index(axis)
        if len(before) == len(after) and name not in _RESHAPES:
            # Keys may be cut or added; a reduction leaves one of them.
            return None if after[axis] == 1 < before[axis] else axis
        if name in _INDEXING and len(after) < len(before):
            removed = _removed_axis(name, call, before, after)
            if not removed or axis in removed:
                return None
            return axis - sum(each < axis for each in removed)
        if math.prod(after) != math.prod(before):
            return None
        if name == "unsqueeze":
            return axis + (_axis(call, 1, "dim", 0) % len(after) <= axis)
        tail = math.prod(before[axis + 1 :])
        candidates = [
            index
            for index, size in enumerate(after)
            if size == before[axis] and math.prod(after[index + 1 :]) == tail
        ]
        # Beside axes of size 1 several fit. A view that splits the batch leaves the last axes in their places.
        from_end = axis + len(after) - len(before)
        return from_end if from_end in candidates else next(iter(candidates), None)


_RESHAPES = names(
    "view reshape flatten unflatten view_as reshape_as _unsafe_view unsqueeze squeeze ravel"
)
_DIMENSIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
"""How many axes follow that of the features."""
_LETTERS = string.ascii_letters
_INDEXING = {"__getitem__", "select", "unbind", "sum", "mean"}
_PIECES = {"chunk", "split", "tensor_split", "split_with_sizes"}


def _axis(call: FunctionCall, index: int, name: str, default: int) -> int:
    value = call.argument(index, name, default)
    return value if isinstance(value, int) else default


def _name_of(call: FunctionCall) -> str:
    """The name of a function, or of the attribute that `__get__` reads."""
    if call.name != "__get__":
        return call.name
    return getattr(getattr(call.func, "__self__", None), "__name__", call.name)


def _order_of(name: str, call: FunctionCall, ndim: int) -> list[int] | None:
    """The order of axes that a permutation gives; None for other functions."""
    order, args, kwargs = list(range(ndim)), call.args, call.kwargs
    if name in ("transpose", "swapaxes", "swapdims", "transpose_"):
        first = _axis(call, 1, "dim0", kwargs.get("axis0", 0))
        second = _axis(call, 2, "dim1", kwargs.get("axis1", 1))
        order[first], order[second] = order[second], order[first]
        return order
    if name in ("permute", "permute_"):
        dims = kwargs.get("dims", args[1] if len(args) == 2 else args[1:])
        dims = (dims,) if isinstance(dims, int) else tuple(dims)
        return [dim % ndim for dim in dims] if len(dims) == ndim else None
    if name == "movedim" or name == "moveaxis":
        source, target = call.argument(1, "source"), call.argument(2, "destination")
        if isinstance(source, int) and isinstance(target, int):
            moved = order.pop(source % ndim)
            order.insert(target % ndim, moved)
            return order
    if name in ("mT", "mH", "adjoint") or (name in ("t", "T", "H") and ndim == 2):
        return [*order[:-2], ndim - 1, ndim - 2]
    return None


def _removed_axis(
    name: str, call: FunctionCall, before: Sequence[int], after: Sequence[int]
) -> tuple[int, ...] | None:
    """The axes that indexing or a sum removed."""
    if name != "__getitem__":
        dims = call.argument(1, "dim", 0 if name == "unbind" else None)
        dims = (dims,) if isinstance(dims, int) else dims
        return dims and tuple(dim % len(before) for dim in dims)
    index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    if any(not isinstance(each, int | slice) and each is not Ellipsis for each in index):
        return None
    removed, axis = [], 0
    for each in index:
        if each is Ellipsis:
            axis += len(before) - (len(index) - 1)
            continue
        if isinstance(each, int):
            removed.append(axis)
        axis += 1
    return tuple(removed) if len(before) - len(removed) == len(after) else None


def _regroup(factors: list[list[Factor]], shape: Sequence[int]) -> list[list[Factor]]:
    """The parts of each axis after a reshape."""
    if 0 in shape:
        return [[(size, UNCLEAR)] for size in shape]
    queue = [factor for axis in factors for factor in axis if factor[0] != 1]
    groups: list[list[Factor]] = []
    for size in shape:
        group: list[Factor] = []
        needed = size
        while needed > 1 and queue:
            part, label = queue[0]
            if needed % part == 0:
                group.append(queue.pop(0))
                needed //= part
            elif part % needed == 0:
                # Features are split into heads and their width. An axis of tokens that is split while it is merged
                # with the batch has blocks or heads: which is not known.
                outer = HEADS if label == FEATURES else UNCLEAR if group and not label else label
                group.append((needed, outer))
                queue[0] = part // needed, label
                needed = 1
            else:
                group.append((needed, UNCLEAR))
                return [*groups, group, *([(n, UNCLEAR)] for n in shape[len(groups) + 1 :])]
        groups.append(group)
    return groups


def einsum_letters(equation: Any, left: Tensor, right: Tensor) -> tuple[str, str, str] | None:
    """The letters of both operands and of the result of an einsum, with letters for `...`.

    None where the result is not named, or the operands are given as lists.
    """
    if not isinstance(equation, str) or "->" not in equation or equation.count(",") != 1:
        return None
    terms, _, out = equation.replace(" ", "").partition("->")
    of_left, _, of_right = terms.partition(",")
    counts = [
        tensor.ndim - len(letters.replace("...", ""))
        for tensor, letters in ((left, of_left), (right, of_right))
        if "..." in letters
    ]
    unused = [letter for letter in _LETTERS if letter not in equation][: max(counts, default=0)]
    expanded = []
    for letters, tensor in ((of_left, left), (of_right, right), (out, None)):
        size = len(unused)
        if tensor is not None and "..." in letters:
            size = tensor.ndim - len(letters.replace("...", ""))
        expanded.append(letters.replace("...", "".join(unused[len(unused) - size :])))
    return expanded[0], expanded[1], expanded[2]


def summed_axes(
    letters: tuple[str, str, str] | None, left: Tensor, right: Tensor
) -> tuple[int, int]:
    """The axes of both operands of a product over which it sums. letters: of an einsum, None for a matrix product."""
    if letters is None:
        return left.ndim - 1, max(right.ndim - 2, 0)
    of_left, of_right, out = letters
    summed = next((each for each in of_left if each in of_right and each not in out), "")
    return (of_left.index(summed), of_right.index(summed)) if summed else (-1, -1)
