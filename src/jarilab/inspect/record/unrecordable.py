"""Names what computes attention in a way that PyTorch does not report: graphs, scripts and extensions."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.inspect.record.function_kinds import names

EXTENSIONS = names(
    "flash_attn flash_attn_interface xformers sageattention natten transformer_engine deepspeed "
    "apex kernels"
)
"""Packages with attention kernels of their own."""


def check_is_recordable(model: Any) -> None:
    """Raises UserError for a model whose modules cannot be hooked."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError(
            "expected a module of Python, got a module of torch.jit, whose functions are not reported; record the "
            "module that it was made from"
        )
    if not isinstance(model, nn.Module):
        raise UserError(
            f"expected a torch.nn.Module, got {type(model).__name__}; record the module that it was made from"
        )


def unreported_in(model: nn.Module) -> list[str]:
    """What in the model may attend without being reported, in words."""
    paths: dict[str, str] = {}
    for path, module in model.named_modules():
        for name in _names_of(module):
            paths.setdefault(name, path)
    return [f"{name} (in {path or 'the model'})" for name, path in paths.items()]


def scripted_attentions(model: nn.Module) -> dict[str, str]:
    """Paths of scripted modules that compute attention, or a softmax, each with why it is not recorded."""
    paths: dict[str, str] = {}
    for path, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            continue
        graph = str(getattr(module, "inlined_graph", ""))
        is_within = any(path.startswith(f"{above}.") for above in paths)
        if not is_within and any(f"aten::{name}(" in graph for name in _SCRIPTED):
            paths[path] = "it is a scripted module of torch.jit, whose functions are not reported"
    return paths


_SCRIPTED = ("softmax", "scaled_dot_product_attention", "_native_multi_head_attention")


def _names_of(module: nn.Module) -> list[str]:
    if isinstance(module, torch.jit.ScriptModule):
        return ["a scripted module of torch.jit"]
    graph = getattr(module, "graph", None)
    if isinstance(graph, torch.fx.Graph):
        is_exported = any(isinstance(node.target, torch._ops.OpOverload) for node in graph.nodes)
        return ["a graph of torch.export"] if is_exported else []
    implementation = str(getattr(getattr(module, "config", None), "_attn_implementation", ""))
    if implementation not in ("", "None", "eager", "sdpa", "flex_attention"):
        return [f"attn_implementation={implementation!r}"]
    source = sys.modules.get(type(module).__module__)
    names = []
    for name, value in vars(source).items() if source is not None else ():
        package = str(getattr(value, "__module__", None) or getattr(value, "__name__", ""))
        if package.partition(".")[0] in EXTENSIONS:
            names.append(f"the extension {package.partition('.')[0]}")
        elif isinstance(value, type) and issubclass(value, torch.autograd.Function):
            names.append(f"the autograd function {name}")
    return names
