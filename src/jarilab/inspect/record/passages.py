"""What goes into the stacks, the norms and the attentions of a model, and what comes out, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, runtime_checkable

from torch import nn
from torch.utils.hooks import RemovableHandle

from jarilab.core.shapes import Tensor
from jarilab.encodings.compose import LayerEncodings
from jarilab.inspect.record.sites import attentions_of, layers_of


@runtime_checkable
class LinearNorm(Protocol):
    """A norm that, in evaluation, makes of a summand the same whatever else is in its input."""

    def of_part(self, part: Tensor) -> Tensor: ...


def is_norm(module: object) -> TypeGuard[nn.Module]:
    """Whether a module is a norm whose input can be taken apart."""
    return isinstance(module, nn.LayerNorm | nn.RMSNorm | LinearNorm)


@dataclass(frozen=True, eq=False)
class Passage:
    """One call of a module. inputs: those of its positional arguments that are tensors. output: None for others."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    output: Tensor | None


@dataclass(eq=False)
class Inside:
    """A forward, as far as walks and parts of scores need it.

    arguments, output: of the model itself, in its last call. passages: of what is in it, in the order of their ends.
    """

    model: nn.Module
    arguments: tuple[Any, ...] = ()
    output: Any = None
    passages: list[Passage] = field(default_factory=list)

    def through(self, module: nn.Module) -> list[Passage]:
        """The calls of one module."""
        return [passage for passage in self.passages if passage.module is module]

    def listen(self) -> list[RemovableHandle]:
        """From now on, keep what goes by. Take the handles away to end it."""
        handles = [module.register_forward_hook(self._keep) for module in _kept(self.model)]
        return [*handles, self.model.register_forward_hook(self._end)]

    def _keep(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        inputs = tuple(x.detach() for x in arguments if isinstance(x, Tensor))
        came_out = output.detach() if isinstance(output, Tensor) else None
        self.passages.append(Passage(module, inputs, came_out))

    def _end(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        self.arguments, self.output = arguments, output


def _kept(model: nn.Module) -> list[nn.Module]:
    """The modules that are listened to, each once."""
    kept = [placed.owner for placed in attentions_of(model).values()]
    for module in model.modules():
        if is_norm(module):
            kept.append(module)
        layers = layers_of(module)
        if layers is not None:
            kept += [module, first_layer(layers)]
    return list(dict.fromkeys(kept))


def first_layer(layers: nn.ModuleList) -> nn.Module:
    """What a stack hands its input to. A layer that is a dictionary of its parts is not called itself."""
    return next(_callable(layers[0]))


def _callable(layer: nn.Module) -> Iterator[nn.Module]:
    return (module for module in layer.modules() if not isinstance(module, nn.ModuleDict))


def added_by(module: nn.Module) -> LayerEncodings | None:
    """The encodings that a stack adds to its input; None of what adds none."""
    encodings = getattr(module, "encoding", None)
    if not isinstance(encodings, LayerEncodings):
        return None
    return encodings if "embed" in encodings.of_layer[0].hooks else None


def same(x: Tensor, y: Tensor) -> bool:
    """Whether both are the very same numbers in memory."""
    if x.data_ptr() != y.data_ptr():
        return False
    return x.shape == y.shape and x.stride() == y.stride()
