"""The modules of a model that are running, and the names of its attention layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from jarilab.core.errors import UserError
from jarilab.core.shapes import Tensor
from jarilab.inspect.record.foreign_call import ForeignCall, Relation
from jarilab.inspect.record.function_kinds import tensors_of
from jarilab.inspect.record.sites import foreign_site_name, foreign_site_numbers
from jarilab.inspect.record.tracing import Trace, Tracer
from jarilab.inspect.record.value_paths import replace_tensors


@dataclass(frozen=True, eq=False)
class ModuleFrame:
    """A running module. inputs: the traces of the tensors that it was called with.

    part: which of its attentions runs, in a module that has one in chunks and others.
    """

    path: str
    module: nn.Module
    inputs: tuple[Trace, ...]
    part: int = 0

    def has_groups_as_queries(self, q: Tensor, k: Tensor) -> bool:
        """Whether heads that share keys lie along the axis of queries, as transformers does for one query."""
        group_size = getattr(self.module, "num_key_value_groups", 1)
        heads = getattr(getattr(self.module, "config", None), "num_attention_heads", None)
        return group_size > 1 and q.shape[2] == group_size and q.shape[1] * group_size == heads


class ModuleStack:
    """The modules of a model that are running, outermost first; kept up to date by forward hooks.

    thread_mode: activated while modules run; None in the thread where the mode is active already.
    """

    def __init__(self, model: nn.Module, tracer: Tracer, thread_mode: TorchFunctionMode | None):
        self._model, self._tracer, self._thread_mode = model, tracer, thread_mode
        self._frames: list[ModuleFrame] = []
        self._hooks = ExitStack()

    def attach(self, stack_of_thread: Callable[[], ModuleStack]) -> None:
        """Register the hooks. stack_of_thread: returns the stack of the current thread."""

        def enter(path: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> None:
            stack_of_thread()._enter(path, module, args, kwargs)

        def leave(module: nn.Module, args: object, output: Any) -> Any:
            return stack_of_thread()._leave(module, output)

        for path, module in self._model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # it takes no hooks
            hook = partial(enter, path)
            before = module.register_forward_pre_hook(hook, with_kwargs=True)
            # The last recording that began is the first that ends, as modes are.
            after = module.register_forward_hook(leave, prepend=True, always_call=True)
            self._hooks.enter_context(before)
            self._hooks.enter_context(after)

    def detach(self) -> None:
        """Remove the hooks."""
        self._hooks.close()

    def __bool__(self) -> bool:
        return bool(self._frames)

    @property
    def innermost(self) -> ModuleFrame:
        return self._frames[-1]

    def _enter(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        values = (*args, *kwargs.values())
        with torch._C.DisableTorchFunction():  # no mode follows what is read
            if not self._frames:
                names = (*_argument_names(type(module))[: len(args)], *kwargs)
                self._tracer.start_forward(path, names, values)
            self._tracer.name_replicated(path, module)
            inputs = tuple(self._tracer.of(tensor) for tensor in tensors_of(values))
        if not self._frames and self._thread_mode is not None:
            TorchFunctionMode.__enter__(self._thread_mode)
        self._frames.append(ModuleFrame(path, module, inputs))
        fuses = isinstance(module, nn.MultiheadAttention | nn.TransformerEncoderLayer)
        if fuses and any(tensor.is_nested for tensor in tensors_of(values)):
            raise UserError(
                f"expected a padded batch for {type(module).__name__}, got a nested tensor, whose attention PyTorch "
                "computes in a kernel that cannot be recorded; pass torch.nested.to_padded_tensor and a padding mask"
            )

    def _leave(self, module: nn.Module, output: Any) -> Any:
        if not self._frames or self._frames[-1].module is not module:
            return None
        frame = self._frames.pop()
        # What a module computes by functions that the mode does not see comes from its inputs.
        for tensor in tensors_of((output,)):
            if not self._tracer.knows(tensor) and frame.inputs:
                self._tracer.set_from(tensor, frame.inputs)
        if self._frames:
            return None
        completed = [(each, complete_output(each)) for each in tensors_of((output,))]
        if self._thread_mode is not None:
            TorchFunctionMode.__exit__(self._thread_mode, None, None, None)
        changed = {id(before): after for before, after in completed if after is not before}
        return replace_tensors(output, changed) if changed else None


def complete_output(output: Tensor) -> Tensor:
    """The tensor itself. A function mode reports an attention whose parts it holds, and may edit its output."""
    if has_torch_function((output,)):
        return handle_torch_function(complete_output, (output,), output)
    return output


@cache
def _argument_names(module: type[nn.Module]) -> tuple[str, ...]:
    """Names of the positional arguments of a module's forward, numbered where it has none."""
    parameters = list(inspect.signature(module.forward).parameters.values())[1:]
    positional = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL]
    return (*positional, *(f"argument {index}" for index in range(len(positional), 32)))


class SiteNames:
    """Names the sites of a model by the modules that attend. taken: names that other sites have."""

    def __init__(self, model: nn.Module, taken: Collection[str] = ()):
        self._model, self._taken = model, taken
        self._names: dict[str, dict[Relation, str]] = {}
        self._numbers: dict[type, tuple[int, bool] | None] = {}

    def name_of(self, frame: ModuleFrame, call: ForeignCall) -> str:
        """The site of a call, named at the first call of its module that has its relation."""
        names, relation = self._names.setdefault(frame.path, {}), call.facts.relation
        if names and (relation == "unknown" or "unknown" in names):
            relation = next(iter(names))
        if relation not in names:
            kind = type(frame.module)
            if kind not in self._numbers:
                self._numbers[kind] = foreign_site_numbers(self._model, frame.module)
            names[relation] = self._new_name(frame.path, call, self._numbers[kind])
        name = names[relation]
        return f"{name}.attention{frame.part + 1}" if frame.part else name

    @property
    def paths(self) -> list[str]:
        """The paths of the modules that attended."""
        return list(self._names)

    def names_at(self, path: str) -> list[str]:
        """The sites of the module at `path`."""
        return list(self._names.get(path, {}).values())

    def _new_name(self, path: str, call: ForeignCall, numbers: tuple[int, bool] | None) -> str:
        def is_decoder() -> bool:
            return call.is_cross or call.of_first_head.looks_back_only()

        for count, context in (numbers, (9, True)) if numbers else ():
            name = foreign_site_name(path, is_decoder, call.is_cross, count, context=context)
            taken = (self._taken, *(names.values() for names in self._names.values()))
            if all(name not in names for names in taken):
                return name
        return path if not self._names[path] else f"{path or 'attention'}.{call.facts.relation}"


def layers_without_attention(model: nn.Module, attending: Sequence[str]) -> list[str]:
    """Paths of layers in which no module attends, in lists of layers of which others do."""

    def attends(path: str) -> bool:
        return any(each == path or each.startswith(f"{path}.") for each in attending)

    outermost: list[str] = []
    layers = []
    for path, module in model.named_modules():
        is_within = any(path.startswith(f"{above}.") for above in outermost)
        if isinstance(module, nn.ModuleList) and not is_within and attends(path):
            outermost.append(path)
            layers += [f"{path}.{name}" for name, _ in module.named_children()]
    return [layer for layer in layers if not attends(layer)]
