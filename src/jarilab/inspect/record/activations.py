"""Activations: what goes into the stacks, norms and attentions of a model of jarilab, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeGuard

from torch import nn
from torch.utils.hooks import RemovableHandle

from jarilab.core.shapes import Tensor
from jarilab.encodings.compose import LayerEncodings
from jarilab.inspect.record.sites import attentions_of, layers_of
from jarilab.nn.norms import BatchNorm


def is_norm(module: object) -> TypeGuard[nn.Module]:
    """Whether a module is a norm whose input can be split into summands."""
    return isinstance(module, nn.LayerNorm | nn.RMSNorm | BatchNorm)


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module. inputs: its positional arguments that are tensors. output: None if it is no tensor."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    output: Tensor | None


@dataclass(eq=False)
class Activations:
    """What the modules of a forward read and return, for walks and parts of scores.

    arguments, output: of the model, in its last call. calls: of its modules, in the order in which they ended.
    """

    model: nn.Module
    arguments: tuple[Any, ...] = ()
    output: Any = None
    calls: list[ModuleCall] = field(default_factory=list)

    def calls_of(self, module: nn.Module) -> list[ModuleCall]:
        """The calls of one module."""
        return [call for call in self.calls if call.module is module]

    def attach(self) -> list[RemovableHandle]:
        """Register the hooks; returns their handles."""
        # Attentions, norms, stacks and the first layer of each stack, each once.
        modules = [placed.owner for placed in attentions_of(self.model).values()]
        for module in self.model.modules():
            if is_norm(module):
                modules.append(module)
            layers = layers_of(module)
            if layers is not None:
                modules += [module, first_layer(layers)]
        handles = [each.register_forward_hook(self._record) for each in dict.fromkeys(modules)]
        return [*handles, self.model.register_forward_hook(self._record_model)]

    def _record(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        inputs = tuple(value.detach() for value in args if isinstance(value, Tensor))
        detached = output.detach() if isinstance(output, Tensor) else None
        self.calls.append(ModuleCall(module, inputs, detached))

    def _record_model(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.arguments, self.output = args, output


def first_layer(layers: nn.ModuleList) -> nn.Module:
    """The module that a stack calls first."""
    # A layer may be a dictionary of its parts, which is never called.
    return next(each for each in layers[0].modules() if not isinstance(each, nn.ModuleDict))


def input_encodings(module: nn.Module) -> LayerEncodings | None:
    """The encodings that a stack adds to its input; None if it adds none."""
    encodings = getattr(module, "encoding", None)
    if not isinstance(encodings, LayerEncodings):
        return None
    return encodings if "embed" in encodings.by_layer[0].hooks else None


def is_same_tensor(x: Tensor, y: Tensor) -> bool:
    """Whether both are the same view of the same memory."""
    if x.data_ptr() != y.data_ptr():
        return False
    return x.shape == y.shape and x.stride() == y.stride()
