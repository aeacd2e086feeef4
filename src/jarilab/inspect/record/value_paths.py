"""The functions through which values reach the output of an attention that computes in chunks.

Such an attention cuts, pads, gathers and concatenates its values before they are multiplied with weights, and its
outputs afterwards. All these functions are linear in the values. A `Path` remembers them, and a `Replay` applies them
to other values. `chunks.py` computes the map from that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from jarilab.core.shapes import Tensor
from jarilab.inspect.record.function_kinds import FunctionCall, names, tensors_of

MOVES = names(
    "view reshape _unsafe_view flatten unflatten transpose swapaxes permute movedim t squeeze "
    "unsqueeze unsqueeze_ squeeze_ contiguous clone narrow select __getitem__ chunk split "
    "tensor_split unbind pad as_strided unfold gather index_select take_along_dim cat concat stack "
    "roll flip repeat __setitem__ mean sum cumsum __get__"
)
"""Functions that move, copy, sum or drop elements."""
CASTS = names("to float half bfloat16 double type type_as detach")
SELECTS = names("gather index_select take_along_dim as_strided unfold __setitem__")
"""Functions after which the rows of values may no longer be the tokens in their order."""
CUTS = names("narrow select __getitem__ chunk split tensor_split unbind mean")
ZEROS = names("zeros new_zeros zeros_like empty new_empty empty_like")
ADDS = names("add add_ __add__ __radd__ __iadd__ sub sub_ __sub__ __isub__")
SCALES = names("mul mul_ __mul__ __rmul__ __imul__ div div_ __truediv__ __itruediv__")
FILLS = frozenset(("masked_fill", "masked_fill_", "where"))
PRODUCTS = frozenset(("matmul", "linalg_matmul", "__matmul__", "bmm"))
LINEAR = MOVES | CASTS | ZEROS | ADDS | SCALES | FILLS | PRODUCTS


@dataclass(frozen=True, eq=False, slots=True)
class Operand:
    """The weights of a product on a path."""

    weights: Tensor


@dataclass(frozen=True, eq=False, slots=True)
class Path:
    """A tensor as a linear function of others.

    func, args, kwargs: the function. Its tensors that have a path are replaced by it. index: of the result, for a
    function with several. root: the tensor itself, for one without a function. base: the only root; None for zeros.
    selects: whether a function of `SELECTS` was applied. cuts: whether tokens or inputs were dropped.
    products: the products of weights and values on the path.
    """

    func: Callable[..., Any] | None = None
    args: Any = ()
    kwargs: Any = None
    index: int | None = None
    root: Tensor | None = None
    base: Tensor | None = None
    selects: bool = False
    cuts: bool = False
    products: frozenset[Any] = frozenset()

    @staticmethod
    def of_root(tensor: Tensor) -> Path:
        return Path(root=tensor, base=tensor)

    def of_product(self, call: FunctionCall, weights: tuple[Tensor, Tensor], product: Any) -> Path:
        """The path of weights times the values that have this path.

        weights: as they were multiplied, and before dropout.
        """
        operands = [each for each in call.tensors if each is not weights[0]]
        by_tensor = {id(each): self for each in operands} | {id(weights[0]): Operand(weights[1])}
        args, kwargs = replace_tensors((call.args, call.kwargs), by_tensor)
        products = self.products | {product}
        return Path(call.func, args, kwargs, base=self.base, products=products)


_SOME = frozenset((True,))


class DetachedPath:
    """A copy of a path without autograd graphs, on the same memory. tensors: all that it reads beside its base."""

    def __init__(self, path: Path):
        self._tensors: dict[int, Tensor] = {}
        self._paths: dict[int, Path] = {}
        self.path: Path = self._copy(path)
        self.tensors = [each for key, each in self._tensors.items() if key != id(path.base)]

    def of(self, tensor: Tensor) -> Tensor:
        """The detached copy of a tensor of the path."""
        return self._tensors.setdefault(id(tensor), tensor.detach())

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.of(value)
        if isinstance(value, Operand):
            return Operand(self.of(value.weights))
        if type(value) in (tuple, list):
            return type(value)(self._copy(each) for each in value)
        if type(value) is dict:
            return {key: self._copy(each) for key, each in value.items()}
        if not isinstance(value, Path):
            return value
        if id(value) not in self._paths:
            names = ("args", "kwargs", "root", "base")
            copies = {name: self._copy(getattr(value, name)) for name in names}
            self._paths[id(value)] = replace(value, **copies, products=value.products and _SOME)
        return self._paths[id(value)]


def path_after(
    call: FunctionCall,
    path_of: Callable[[Tensor], Path | None],
    output: Tensor,
    index: int | None,
    cuts: Callable[[], bool],
) -> Path | None:
    """The path of a function's result; None if the function is not linear or its result is a root.

    cuts: whether a function of `CUTS` dropped tokens or inputs of the batch.
    """
    name = call.name
    if name not in LINEAR or not output.is_floating_point():
        return None
    if name in ZEROS:
        return Path(torch.zeros, (tuple(output.shape),), {"device": output.device})
    tensors = [each for each in call.tensors if each.is_floating_point()]
    paths = [path_of(tensor) for tensor in tensors]
    if name in CASTS:
        return paths[0] if paths else None
    is_output = any(path.products for path in paths if path is not None)
    in_place = name == "__setitem__" or any(output is tensor for tensor in tensors)
    if not tensors or (in_place and paths[0] is None):
        return None
    if is_output and not _is_linear(name, tensors, paths):
        return None
    if not is_output and name in MOVES:
        paths = [
            path or (Path.of_root(tensor) if tensor.numel() else None)  # a new cache is empty
            for path, tensor in zip(paths, tensors, strict=True)
        ]
    by_tensor = {id(tensor): path for tensor, path in zip(tensors, paths, strict=True) if path}
    known = list(by_tensor.values())
    bases = {id(path.base): path.base for path in known if path.base is not None}
    if not is_output and (name not in MOVES or len(bases) > 1):
        # The values of one projection alone: others, as of a cache or of two streams, are joined to new values.
        return None
    args, kwargs = replace_tensors((call.args, call.kwargs), by_tensor)
    return Path(
        call.func,
        args,
        kwargs,
        index,
        base=next(iter(bases.values()), None),
        selects=_selects(name, call.args, known),
        cuts=any(path.cuts for path in known) or (name in CUTS and (name == "mean" or cuts())),
        products=frozenset[Any]().union(*(path.products for path in known)),
    )


def _selects(name: str, args: Any, paths: Sequence[Path]) -> bool:
    """Whether the rows of a result may no longer be the tokens in their order."""
    if any(path.selects for path in paths):
        return True
    if name == "__getitem__":
        return bool(list(tensors_of(args[1:])))
    if name in ("cat", "concat"):
        return len(paths) > 1 and any(path.cuts for path in paths)  # heads may be concatenated too
    return name in SELECTS


def replace_tensors(value: Any, by_tensor: Mapping[int, Any]) -> Any:
    """Arguments of a function with some of their tensors replaced, by their id."""
    if type(value) in (tuple, list):
        return type(value)(replace_tensors(each, by_tensor) for each in value)
    if type(value) is dict:
        return {key: replace_tensors(each, by_tensor) for key, each in value.items()}
    return by_tensor.get(id(value), value)


def _is_linear(name: str, tensors: Sequence[Tensor], paths: Sequence[Path | None]) -> bool:
    """Whether a function of an attention's output is linear in it, and treats all features of a head alike."""
    if name in MOVES or name in ADDS or name in FILLS:
        return True
    attended = [path is not None and bool(path.products) for path in paths]
    if name in SCALES:
        others = [each for each, is_output in zip(tensors, attended, strict=True) if not is_output]
        is_numerator = "div" not in name or attended[0]
        alike = all(each.ndim == 0 or each.shape[-1] == 1 for each in others)
        return is_numerator and attended.count(True) == 1 and alike
    return name in PRODUCTS and attended == [False, True]


READS = names(
    "size dim numel stride is_contiguous is_inference data_ptr storage_offset is_floating_point "
    "is_complex get_device element_size __len__ __repr__ __hash__ requires_grad_ register_hook"
)
"""Functions that do not read the elements of a tensor."""


def continues(call: FunctionCall, path_of: Callable[[Tensor], Path | None]) -> bool:
    """Whether a function leaves the paths of its arguments open, as `path_after` does."""
    name, tensors = call.name, [each for each in call.tensors if each.is_floating_point()]
    paths = [path_of(tensor) for tensor in tensors]
    return name in READS or name in CASTS or name in ZEROS or _is_linear(name, tensors, paths)


class Replay:
    """Applies the functions of a path to other roots.

    even: replaces weights by 1, so that only the order of rows and features matters.
    """

    def __init__(self, path: Path, dtype: torch.dtype, *, even: bool = False):
        self._path, self._dtype, self._even = path, dtype, even
        self._constants: dict[int, tuple[Tensor, Tensor]] = {}
        self._results: dict[int, Any] = {}
        self._roots: Mapping[int, Tensor] = {}

    @torch.no_grad()
    def of(self, roots: Mapping[int, Tensor]) -> Tensor:
        """The result. roots: the tensors that replace roots, by their id; the others stay as they are."""
        self._roots, self._results = roots, {}
        try:
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                return self._of(self._path)
        finally:
            self._roots, self._results = {}, {}

    def _of(self, path: Path) -> Any:
        if path.root is not None:
            replacement = self._roots.get(id(path.root))
            return self._constant(path.root) if replacement is None else replacement
        if id(path) not in self._results:
            self._results[id(path)] = self._computed(path)
        return self._results[id(path)]

    def _computed(self, path: Path) -> Any:
        assert path.func is not None
        name = path.func.__name__
        args = [self._value(each) for each in path.args]
        kwargs = {key: self._value(value) for key, value in path.kwargs.items()}
        is_masked = name in SCALES or name in FILLS
        if name == "__setitem__" and path.products:
            # Rows that something else computes.
            written = path.args[2]
            is_masked = not isinstance(written, Path) or id(written.base) not in self._roots
        if self._even and is_masked:
            return next(
                self._of(each) for each in path.args if isinstance(each, Path) and each.products
            )
        writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        if writes or name.startswith("__i"):
            args[0] = args[0].clone(memory_format=torch.preserve_format)
        result = path.func(*args, **kwargs)
        if name == "__setitem__":
            result = args[0]
        if path.index is not None:
            result = result[path.index]
        return result.to(self._dtype)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Path):
            return self._of(value)
        if isinstance(value, Operand):
            constant = self._constant(value.weights)
            return torch.ones_like(constant) if self._even else constant
        if isinstance(value, tuple | list):
            return type(value)(self._value(each) for each in value)
        return self._constant(value) if isinstance(value, Tensor) else value

    def _constant(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.dtype is self._dtype:
            return tensor.detach()
        if id(tensor) not in self._constants:
            # The tensor is stored as well: its id is taken only as long as it lives.
            self._constants[id(tensor)] = tensor, tensor.detach().to(self._dtype)
        return self._constants[id(tensor)][1]
