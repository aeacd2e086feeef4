"""jaxtyping's look at the shapes of a call, once for each kind of call: what it says follows from shapes, dtypes and
types alone, and a look takes longer than most of what is called (half the CPU time of the tests, before)."""

import dataclasses
import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

import jaxtyping
import numpy
import torch


def array(value: Any) -> Any:
    # PyTorch refuses the shape of nested tensors.
    shape = () if getattr(value, "is_nested", False) else tuple(value.shape)
    return type(value), value.dtype, shape


LOOKS: dict[type, Callable[[Any], Any]] = {
    torch.Tensor: array,
    numpy.ndarray: array,
    tuple: lambda value: (type(value), tuple(map(kind_of, value))),
    list: lambda value: (list, frozenset(map(kind_of, value))),
    dict: lambda value: (dict, frozenset((type(key), kind_of(one)) for key, one in value.items())),
    str: str,  # `Literal[...]` is read with the value
    type: lambda value: value,  # and so is `type[...]`
}
"""What a check of a value may depend on, by its type or a base of it; of all others, the type alone."""
OF_TYPES: dict[type, Callable[[Any], Any]] = {}
"""What was found for each type that came."""


def kind_of(value: Any) -> Any:
    """Values of one kind pass the checks of jaxtyping and beartype, or none does."""
    kind = type(value)
    look = OF_TYPES.get(kind)
    if look is None:
        bases = [LOOKS[base] for base in kind.__mro__ if base in LOOKS]
        look = OF_TYPES[kind] = bases[0] if bases else type
    return look(value)


def once_a_kind(jaxtyped: Callable[..., Any], checked: Any, typechecker: Any) -> Any:
    """`jaxtyped(checked)` that looks at calls of a new kind only, and at results of a new kind."""
    here = threading.local()
    seen: dict[Any, set[Any]] = {}

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        """What jaxtyping calls: the function, or what it has given already."""
        answers = here.__dict__.pop("answers", None)
        return checked(*args, **kwargs) if answers is None else answers[0]

    @functools.cache
    def looked_at() -> Any:
        """Made at the first call: most functions are not called in most processes."""
        inside = types.FunctionType(stand_in.__code__, checked.__globals__, closure=stand_in.__closure__)
        return jaxtyped(functools.update_wrapper(inside, checked), typechecker=typechecker)

    @functools.wraps(checked)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return checked(*args, **kwargs)
        try:
            given = (*map(kind_of, args), *((name, kind_of(one)) for name, one in kwargs.items()))
            results = seen.get(given)
        except TypeError:  # the sizes of a graph that is followed are no numbers
            return looked_at()(*args, **kwargs)
        if results is None:
            answer = looked_at()(*args, **kwargs)
            seen.setdefault(given, set()).add(kind_of(answer))
            return answer
        answer = checked(*args, **kwargs)
        if (result := kind_of(answer)) not in results:
            here.answers = [answer]
            looked_at()(*args, **kwargs)
            results.add(result)
        return answer

    return call


def check_shapes(jaxtyped: Callable[..., Any], checked: Any, *, typechecker: Any) -> Any:
    """What the import hook decorates everything with. Looked at are data classes, and functions where axes are named;
    pyright reads all types there are."""
    if inspect.isfunction(checked):
        named = "Tensor, " in str(checked.__annotations__)
        return once_a_kind(jaxtyped, checked, typechecker) if named else checked
    if inspect.isclass(checked):
        if dataclasses.is_dataclass(checked) and "__init__" in vars(checked):
            checked.__init__ = once_a_kind(jaxtyped, checked.__init__, typechecker)
        return checked
    return jaxtyped(checked, typechecker=typechecker)
