"""What functions do to tensors, by their names."""

from __future__ import annotations

import re
from functools import cache
from typing import Any


def names(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


_CONSTANT = re.compile(
    r"new_.*|.*_like|eq|ne|lt|le|gt|ge|__(eq|ne|lt|le|gt|ge)__|is(nan|inf|finite|in)|logical_.*|arg(max|min|sort)|"
    r"bucketize|searchsorted|one_hot|size|dim|numel"
)
_FRESH = re.compile(r"linear|conv\w*d|embedding|addmm|lstm|gru|rnn_\w+|bilinear")
_JOIN = re.compile(
    r"cat|concat|concatenate|stack|[hvd]stack|(index_copy|scatter|masked_scatter|index_put|slice_scatter)"
)
_WRITE = re.compile(r"__setitem__|(index_copy|scatter|masked_scatter|index_put|index_fill)_|copy_")
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
    r"(special_)?softmax|softmin|sigmoid|exp2?|relu\d?|softplus|square|pow|__pow__|clamp(_min)?|threshold|elu"
)


def positional(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a function, with its first tensors by position: `matmul(other=v, input=w)` -> `matmul(w, v)`."""
    if name == "where" or not kwargs:
        return args, kwargs
    for index, names in enumerate(_FIRST_NAMES):
        key = next((each for each in names if each in kwargs), None)
        if len(args) == index and key is not None:
            args = (*args, kwargs[key])
            kwargs = {name: value for name, value in kwargs.items() if name != key}
    return args, kwargs


_FIRST_NAMES = (("input", "tensors"), ("other", "mat2"))


@cache
def kind_of(name: str) -> str:
    """`constant`, `fresh`, `join`, `write`, `product` or `other`."""
    for kind, pattern in (
        ("constant", _CONSTANT),
        ("fresh", _FRESH),
        ("join", _JOIN),
        ("write", _WRITE),
    ):
        if pattern.fullmatch(name):
            return kind
    return "product" if name in PRODUCTS else "other"


@cache
def is_nonlinear(name: str) -> bool:
    """Whether a function of this name may turn scores into weights."""
    return _NONLINEAR.fullmatch(name.removesuffix("_")) is not None
