"""Calls of tensor functions, and what functions do to tensors, by their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from jarilab.core.shapes import Tensor


def names(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


_CONSTANT = re.compile(
    r"new_.*|.*_like|eq|ne|lt|le|gt|ge|__(eq|ne|lt|le|gt|ge)__|is(nan|inf|finite|in)|logical_.*|arg(max|min|sort)|"
    r"bucketize|searchsorted|one_hot|size|dim|numel"
)
RECURRENT = re.compile(r"lstm|gru|rnn_\w+")
_FRESH = re.compile(rf"linear|conv\w*d|embedding|addmm|{RECURRENT.pattern}|bilinear")
_JOIN = re.compile(
    r"cat|concat|concatenate|stack|[hvd]stack|(index_copy|scatter|masked_scatter|index_put|slice_scatter)"
)
_WRITE = re.compile(r"__setitem__|(index_copy|scatter|masked_scatter|index_put|index_fill)_|copy_")
_KINDS = {"constant": _CONSTANT, "fresh": _FRESH, "join": _JOIN, "write": _WRITE}
PRODUCTS = names("matmul linalg_matmul bmm mm baddbmm einsum __matmul__ __rmatmul__")
VIEWS = names(
    "t transpose permute view reshape flatten unflatten __getitem__ __get__ select unbind chunk "
    "split expand to type_as float contiguous unsqueeze squeeze detach"
)
"""Functions after which a parameter is still one."""
SELECTIONS = {"__getitem__", "index_select", "gather", "take_along_dim"}
"""Functions that select elements of their first tensor."""
KEEPS_WEIGHTS = names(
    "to type type_as view reshape contiguous clone float half bfloat16 dropout detach"
)
"""Functions after which weights are still the softmax of their scores."""
_NONLINEAR = re.compile(
    r"(special_|gumbel_)?softmax|softmin|sigmoid|exp2?|relu\d?|softplus|square|pow|__pow__|clamp(_min)?|clip|"
    r"threshold|elu"
)


_FIRST_NAMES = (("input", "tensors"), ("other", "mat2"))


@dataclass(eq=False)
class FunctionCall:
    """A call of a tensor function. name: of the function. tensors: among its arguments."""

    func: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]

    def __post_init__(self) -> None:
        self.name: str = getattr(self.func, "__name__", "")
        self.tensors = list(tensors_of((*self.args, *self.kwargs.values())))

    @property
    def positional(self) -> FunctionCall:
        """The call with its first tensors by position: `matmul(other=v, input=w)` -> `matmul(w, v)`."""
        args, kwargs = self.args, self.kwargs
        if self.name == "where" or not kwargs:
            return self
        for index, names in enumerate(_FIRST_NAMES):
            key = next((each for each in names if each in kwargs), None)
            if len(args) == index and key is not None:
                args = (*args, kwargs[key])
                kwargs = {name: value for name, value in kwargs.items() if name != key}
        return FunctionCall(self.func, args, kwargs)

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """An argument by its name, or else by its position."""
        return self.kwargs.get(name, self.args[index] if len(self.args) > index else default)


def tensors_within(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Tensors of an argument, one level of nesting deep, each with the suffix of its name."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Tensor):
        yield "", value
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, tuple | list):
        items = enumerate(value)
    yield from ((f"[{key}]", each) for key, each in items if isinstance(each, Tensor))


def tensors_of(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors of some arguments, one level of nesting deep."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list | dict):
            yield from (tensor for _, tensor in tensors_within(value))


@cache
def kind_of(name: str) -> str:
    """`constant`, `fresh`, `join`, `write`, `product` or `other`."""
    for kind, pattern in _KINDS.items():
        if pattern.fullmatch(name):
            return kind
    return "product" if name in PRODUCTS else "other"


@cache
def is_nonlinear(name: str) -> bool:
    """Whether a function of this name may turn scores into weights."""
    return _NONLINEAR.fullmatch(name.removesuffix("_")) is not None
