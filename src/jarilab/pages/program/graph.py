"""Conversion of an exported graph to plain JSON."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.proxy_tensor import make_fx

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.pages.kit.data_blocks import block

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool")
"""Number types that the page computes with."""

# The operators that `pages/kit/static/program/` computes; a test compares the two lists.
_NAMES = """
_log_softmax.default _softmax.default _to_copy.default _unsafe_view.default abs.default
add.Scalar add.Tensor addmm.default alias.default all.default all.dim all.dims amax.default
amin.default any.default any.dim any.dims arange.default arange.start arange.start_step
argmax.default argmin.default atan.default atan2.default baddbmm.default bitwise_and.Scalar
bitwise_and.Tensor bitwise_not.default bitwise_or.Scalar bitwise_or.Tensor bitwise_xor.Tensor
bmm.default cat.default ceil.default clamp.Tensor clamp.default clamp_max.default
clamp_min.default clone.default constant_pad_nd.default cos.default cumsum.default
detach.default div.Scalar div.Scalar_mode div.Tensor div.Tensor_mode dot.default
embedding.default empty.memory_format eq.Scalar eq.Tensor erf.default exp.default
exp2.default expand.default expm1.default fill.Scalar flip.default floor.default fmod.Scalar
fmod.Tensor full.default full_like.default gather.default ge.Scalar ge.Tensor gelu.default
gt.Scalar gt.Tensor hypot.default index.Tensor index_select.default isinf.default isnan.default le.Scalar
le.Tensor lift_fresh_copy.default log.default log10.default log1p.default log2.default
logical_and.default logical_not.default logical_or.default logical_xor.default lt.Scalar
lt.Tensor masked_fill.Scalar masked_fill.Tensor max.default max.dim maximum.default
mean.default mean.dim min.default min.dim minimum.default mm.default mul.Scalar mul.Tensor
mv.default native_layer_norm.default ne.Scalar ne.Tensor neg.default new_zeros.default
ones.default ones_like.default operator.add operator.floordiv operator.getitem operator.mod
operator.mul operator.neg operator.pow operator.sub operator.truediv permute.default
pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor prod.default prod.dim_int reciprocal.default
relu.default remainder.Scalar remainder.Tensor repeat.default reshape.default round.default
rsqrt.default scalar_tensor.default scatter.src scatter.value scatter_add.default select.int
sigmoid.default sign.default silu.default sin.default slice.Tensor split.Tensor
split_with_sizes.default sqrt.default squeeze.default squeeze.dim squeeze.dims stack.default
sub.Scalar sub.Tensor sum.default sum.dim_IntList sym_numel.default sym_size.int t.default
tan.default tanh.default torch.sym_float torch.sym_int torch.sym_max torch.sym_min
transpose.int tril.default triu.default trunc.default unbind.int unsqueeze.default
var.correction var.dim view.default where.Scalar where.ScalarOther where.ScalarSelf
where.self zeros.default zeros_like.default
"""

OPERATORS = frozenset(_NAMES.split())
"""Operators that the page has. For another one, add a function there and its name here."""

# Arguments on storage, which a page does not need; the type is part of each node.
_WHERE = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"}


class Graph:
    """A graph with numbered values: inputs, then constants, then the nodes that the outputs need.

    outputs: `{"value": n}` of each. Raises UserError for an operator or a number type that the page lacks.
    """

    def __init__(
        self, exported: ExportedProgram, stored: Mapping[str, str], *, is_fixed: bool = False
    ):
        """stored: the 16-bit type of each parameter of the model, which is `model` in the graph.

        is_fixed: what follows from constants other than parameters is computed here.
        """
        graph = _lowered(exported)
        folded = _folded(graph, exported) if is_fixed else {}
        needed = _needed(graph, folded)
        placeholders = graph.find_nodes(op="placeholder")
        specs = dict(zip(placeholders, exported.graph_signature.input_specs, strict=True))
        inputs = [node for node in placeholders if specs[node].kind is InputKind.USER_INPUT]
        constants = [node for node in placeholders if node not in inputs and node in needed]
        constants += [node for node in folded if node in needed]
        calls = [node for node in graph.nodes if node.op == "call_function"]
        nodes = [node for node in calls if node in needed and node not in folded]
        self._number: dict[fx.Node, int] = {}
        for node in (*inputs, *constants, *nodes):
            self._number[node] = len(self._number)
        self.constants = []
        for node in constants:
            value = folded.get(node)
            each = _constant(exported, specs[node], stored) if value is None else _block(value)
            self.constants.append(each)
        self.nodes = [self._node(node) for node in nodes]
        (ends,) = graph.find_nodes(op="output")
        self.outputs = [self._argument(output) for output in ends.args[0]]

    def _node(self, node: fx.Node) -> list[Any]:
        name = _operator(node)
        if name not in OPERATORS:
            raise UserError(
                f"the model uses {name}, which a page cannot compute; look into this model live, with jarilab explore"
            )
        arguments = [self._argument(argument) for argument in _arguments(node)]
        return [name, arguments, _dtype(node.meta.get("val"))]

    def _argument(self, argument: Any) -> Any:
        """An argument as JSON."""
        if isinstance(argument, fx.Node):
            return {"value": self._number[argument]}
        if isinstance(argument, list | tuple):
            return [self._argument(entry) for entry in argument]
        if isinstance(argument, float) and not math.isfinite(argument):
            return {"number": str(argument).replace("inf", "Infinity").replace("nan", "NaN")}
        if argument is None or isinstance(argument, bool | int | float | str):
            return argument
        raise UserError(f"the model uses {type(argument).__name__}, which is no JSON: {argument}")


def values_of(exported: ExportedProgram) -> list[Tensor]:
    """The fake tensor of each graph input: its symbolic shape and its type."""
    placeholders = exported.graph.find_nodes(op="placeholder")
    specs = zip(placeholders, exported.graph_signature.input_specs, strict=True)
    return [node.meta["val"] for node, spec in specs if spec.kind is InputKind.USER_INPUT]


def sizes_of(value: Tensor) -> list[int | str]:
    """A shape of numbers and symbol names. Raises UserError for sizes that depend on others."""
    sizes: list[int | str] = []
    for size in value.shape:
        if isinstance(size, int):
            sizes.append(size)
        elif size.node.expr.is_Symbol:
            sizes.append(str(size.node.expr))
        else:
            raise UserError(
                f"expected inputs whose sizes are free, got one of {size.node.expr}; look into this model live"
            )
    return sizes


def _lowered(exported: ExportedProgram) -> fx.Graph:
    """The graph in core ATen without in-place operations, with the same inputs in order."""
    # `exported.run_decompositions()` takes 13 s instead of 3 for a model of four layers: it traces symbolic sizes
    # twice, and builds a program that PyTorch can run.
    placeholders = exported.graph.find_nodes(op="placeholder")
    values = [node.meta["val"] for node in placeholders]
    written = torch.func.functionalize(lambda *inputs: exported.graph_module(*inputs))
    table: Any = core_aten_decompositions()
    traced = make_fx(written, decomposition_table=table)
    mode: Any = detect_fake_mode(values)
    # As in PyTorch's own decomposition: otherwise symbolic sizes would become numbers.
    with mode, enable_python_dispatcher():
        return traced(*values).graph


def _folded(graph: fx.Graph, exported: ExportedProgram) -> dict[fx.Node, Tensor]:
    """The values of nodes that depend on neither masks nor parameters alone, such as the embedding of an input."""
    placeholders = graph.find_nodes(op="placeholder")
    specs = dict(zip(placeholders, exported.graph_signature.input_specs, strict=True))
    tensors = {**exported.state_dict, **exported.constants}
    values: dict[fx.Node, Any] = {}
    of_parameters = set()
    for node, spec in specs.items():
        if spec.kind is InputKind.USER_INPUT:
            continue
        values[node] = tensors[str(spec.target)]
        if spec.kind is InputKind.PARAMETER:
            of_parameters.add(node)
    folded: dict[fx.Node, Tensor] = {}
    for node in graph.nodes:
        above = node.all_input_nodes
        if node.op != "call_function" or not all(each in values for each in above):
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: values[each])
        values[node] = node.target(*args, **kwargs)
        if above and all(each in of_parameters for each in above):
            of_parameters.add(node)
        elif isinstance(values[node], torch.Tensor):
            folded[node] = values[node]
    return folded


def _needed(graph: fx.Graph, folded: Collection[fx.Node] = ()) -> set[fx.Node]:
    """The nodes that the outputs depend on, without shape checks and replaced kernels. folded: become constants."""
    (ends,) = graph.find_nodes(op="output")
    needed, open_nodes = set(), [ends]
    while open_nodes:
        node = open_nodes.pop()
        if node not in needed:
            needed.add(node)
            open_nodes += [] if node in folded else node.all_input_nodes
    return needed


def _constant(exported: ExportedProgram, spec: Any, stored: Mapping[str, str]) -> dict[str, Any]:
    """A parameter with 16 bits; other constants as they are."""
    name = spec.target
    value = {**exported.state_dict, **exported.constants}[name]
    if spec.kind is InputKind.PARAMETER:
        return block(value, stored[name.removeprefix("model.")])
    return _block(value)


def _block(value: Tensor) -> dict[str, Any]:
    return block(value, _checked(value.dtype))


def _operator(node: fx.Node) -> str:
    """The name of an operator: `add.Tensor` of core ATen, `operator.add` or `torch.sym_max` of sizes."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removeprefix("aten.")
    module = target.__module__.removeprefix("_")
    return f"{module}.{target.__name__}"


def _arguments(node: fx.Node) -> list[Any]:
    """All arguments in order, with defaults."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return list(node.args)
    arguments = target._schema.arguments
    values = list(node.args)
    for argument in arguments[len(values) :]:
        values.append(node.kwargs.get(argument.name, argument.default_value))
    named = zip(arguments, values, strict=True)
    return [value for argument, value in named if argument.name not in _WHERE]


def _dtype(value: Any) -> Any:
    """The type of a result, a list for several results, None for a size."""
    if isinstance(value, list | tuple):
        return [_dtype(entry) for entry in value]
    return _checked(value.dtype) if isinstance(value, torch.Tensor) else None


def _checked(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UserError(
            f"the model computes in {name}, which a page does not; expected {', '.join(DTYPES)}"
        )
    return name
