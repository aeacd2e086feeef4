"""The parts of a model that can be replaced, and its linear parts, found in one forward.

Linear parts are modules that multiply by a matrix of their own, and activations. No table of architectures is used: a
stack is a list of modules that attend, a layer is one of them, and the MLP of a layer is what else writes to its
residual stream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError, unknown
from jarilab.core.shapes import Tensor
from jarilab.inspect.intervene.interventions import change_outputs
from jarilab.inspect.record.capture import record
from jarilab.inspect.record.modules import SiteNames
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.head import Head, heads_of, short_names
from jarilab.inspect.study.losses import logits_of

Kind = Literal["head", "attention", "mlp", "stream"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SITE = "site "
"""Before the names of sites among events."""
ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activations")
"""Where the activations between the matrices of an MLP are defined."""


@dataclass(frozen=True)
class Part:
    """A part of a model, at all positions or at one.

    kind: `head`; `attention`, all heads of a site; `mlp`, what else a layer writes to the residual stream; `stream`,
    the residual stream that enters a layer. site: of the attention, as on a tape; for `mlp` and `stream`, the path of
    the layer. index: of the head; for `stream`, 1 for what leaves the layer, else 0.
    short: `L3H1`, `L3 attention`, `L3 MLP`, `L3 stream`; unique in a model. side: the sequence of its positions.
    position: counted among the tokens of a row without padding, from its end if negative; None for all.
    """

    kind: Kind
    site: str
    index: int
    short: str
    side: str = "target"
    position: int | None = None

    def at(self, position: int | None) -> Part:
        """The same part at one position."""
        return replace(self, position=position)

    @property
    def event(self) -> str:
        """The event at which it runs. Heads of a site share one."""
        if self.kind in ("head", "attention"):
            return SITE + self.site
        return f"{self.kind} {self.site} {self.index}"

    @property
    def columns(self) -> dict[str, Any]:
        """The first columns of a row about this part."""
        columns = {"part": self.short, "kind": self.kind, "site": self.site, "index": self.index}
        return columns | {"position": self.position}


class ModelParts:
    """The parts of a model, found in a forward of `batch`.

    heads: all heads. sites: the paths of the modules that attend, by site. sides: the sequences of queries, by site.
    linear: the linear parts, by path. stacked: those within layers. units: modules within layers, but outside
    attentions, of several linear parts. layers: paths of the layers of each stack.
    can_freeze: whether every matrix within layers belongs to a linear part.
    """

    def __init__(self, model: nn.Module, batch: Batch):
        self.model, self._batch = model, batch
        with torch.no_grad(), record(model) as tape:
            batch.forward(model)
        self.heads: list[Head] = heads_of(tape)
        sites = [tape.site(name) for name in tape.sites]
        self.sites = {site.name: site.path for site in sites}
        self.sides = {site.name: site.queries for site in sites}
        self._shorts = {site: name.rstrip(".") for site, name in short_names(sites).items()}
        # Sites are named by what they read, which outputs of earlier forwards do not tell.
        self.names = SiteNames(model)
        attending = list(self.sites.values())
        stacks = _stacks(model, attending)
        self.layers = {stack: _layers_of(model, stack) for stack in stacks}
        self.linear: dict[str, nn.Module] = {}
        self.can_freeze = bool(stacks)
        for path, module in model.named_modules():
            if not _is_linear_part(path, module, attending) or is_within_any(path, self.linear):
                continue
            if any(site.startswith(f"{path}.") for site in attending):
                # A layer with a matrix of its own cannot be frozen.
                self.can_freeze = self.can_freeze and not is_within_any(path, stacks)
            else:
                self.linear[path] = module
        self.stacked = {path for path in self.linear if is_within_any(path, stacks)}
        self.units = self._units()

    def _units(self) -> list[str]:
        """The outermost modules of several linear parts in each layer that neither attend nor stand in attentions."""
        units: list[str] = []
        layers = [layer for layers in self.layers.values() for layer in layers]
        for path, module in self.model.named_modules():
            count = sum(is_within(part, path) for part in self.linear)
            is_inside = any(path.startswith(f"{layer}.") for layer in layers)
            if count < 2 or not is_inside or isinstance(module, nn.ModuleList | nn.ModuleDict):
                continue
            attends = any(is_within(site, path) for site in self.sites.values())
            if not (
                attends or is_within_any(path, self.sites.values()) or is_within_any(path, units)
            ):
                units.append(path)
        return units

    def select(self, kinds: Iterable[Kind] = KINDS) -> list[Part]:
        """All parts of these kinds. Raises UserError for an unknown kind, and for one that the model does not have."""
        parts: list[Part] = []
        for kind in kinds:
            if kind not in KINDS:
                raise unknown("kind of part", kind, KINDS)
            if kind in ("mlp", "stream") and not any(self.layers.values()):
                what = "MLPs" if kind == "mlp" else "residual stream"
                raise UserError(
                    f"expected a model with a list of layers that attend, got {type(self.model).__name__} without one, "
                    f"so its {what} cannot be found; replace heads or attentions"
                )
            if kind == "head":
                parts += map(self.of_head, self.heads)
            elif kind == "attention":
                parts += [
                    Part("attention", site, 0, f"{self._shorts[site]} attention", side)
                    for site, side in self.sides.items()
                ]
            else:
                parts += self._mlps() if kind == "mlp" else self.streams()
        return parts

    def of_head(self, head: Head) -> Part:
        """A head as a part."""
        return Part("head", head.site, head.index, head.short, self.sides[head.site])

    def _mlps(self) -> list[Part]:
        parts = [
            self._of_layer("mlp", layer, 0, "MLP")
            for layers in self.layers.values()
            for layer in layers
            if self.mlps[layer]
        ]
        if not parts:
            raise UserError(
                f"expected layers with an MLP, got none in {type(self.model).__name__}, where no linear part but those "
                "of attentions writes to the residual stream; replace heads, attentions or the stream"
            )
        return parts

    def streams(self) -> list[Part]:
        """The residual stream before each layer and after the last of each stack; none without stacks."""
        parts = []
        for layers in filter(None, self.layers.values()):
            parts += [self._of_layer("stream", layer, 0, "stream") for layer in layers]
            parts.append(self._of_layer("stream", layers[-1], 1, "stream out"))
        return parts

    def _of_layer(self, kind: Kind, layer: str, index: int, word: str) -> Part:
        within = [site for site, path in self.sites.items() if is_within(path, layer)]
        name = self._shorts[within[0]] if within else layer
        stack = next(stack for stack, layers in self.layers.items() if layer in layers)
        beside = [site for site, path in self.sites.items() if is_within(path, stack)]
        return Part(kind, layer, index, f"{name} {word}", self.sides[(within or beside)[0]])

    @contextmanager
    def hooked(
        self,
        on_head: Callable[[str, AttentionCall, Tensor], Tensor],
        on_module: Callable[..., Any] = lambda *values: None,
        paths: Collection[str] = (),
        *,
        on_entry: Callable[..., Any] | None = None,
        on_exit: Callable[..., Any] | None = None,
    ) -> Iterator[None]:
        """Inside the block, call these when heads, modules and layers run; what they return replaces what they got.

        on_head: with site, call and output z. on_module: with path, module, arguments and output, for `paths`.
        on_entry: with a layer's path, module, args and kwargs. on_exit: likewise as on_module.
        """
        layers = [layer for layers in self.layers.values() for layer in layers]
        with ExitStack() as hooks:
            for path in paths:
                module = self.model.get_submodule(path)
                hooks.enter_context(module.register_forward_hook(partial(on_module, path)))
            for path in layers:
                layer = self.model.get_submodule(path)
                if on_entry is not None:
                    hook = partial(on_entry, path)
                    hooks.enter_context(layer.register_forward_pre_hook(hook, with_kwargs=True))
                if on_exit is not None:
                    hooks.enter_context(layer.register_forward_hook(partial(on_exit, path)))
            hooks.enter_context(change_outputs(self.model, on_head, self.sites, self.names))
            yield

    # Linear parts -----------------------------------------------------------------------------------------------------

    def output_projections(self, events: Sequence[str], sites: Collection[str]) -> frozenset[str]:
        """The linear parts through which these sites write: the first in the stacks that runs after each.

        events: sites and paths of linear parts in the order in which they ended.
        """
        projections: set[str] = set()
        for number, event in enumerate(events):
            if not event.startswith(SITE) or event.removeprefix(SITE) not in sites:
                continue
            attends = self.sites[event.removeprefix(SITE)]
            for path in events[number + 1 :]:
                if path not in self.stacked:
                    continue
                projections.add(path)
                # A module with matrices that attends itself may have no output projection of its own.
                has_projection = isinstance(self.linear[path], nn.MultiheadAttention)
                if has_projection or not is_within(attends, path):
                    break
        return frozenset(projections)

    @cached_property
    def mlps(self) -> dict[str, list[str]]:
        """The linear parts through which each layer writes to the residual stream, apart from attentions.

        Their outputs reach the end of a stack without passing another linear part of a layer: there is a gradient when
        all of these return leaves.
        """
        leaves, events, sums = self._run_with_leaves()
        gradients: Sequence[Tensor | None] = [None] * len(leaves)
        if leaves and sums:
            tensors = [tensor for _, tensor in leaves]
            gradients = torch.autograd.grad(sums, tensors, allow_unused=True)
        attention = self.output_projections(events, self.sites)
        writing = [
            path
            for (path, _), gradient in zip(leaves, gradients, strict=True)
            if gradient is not None and path not in attention
        ]
        mlps: dict[str, list[str]] = {}
        for layers in self.layers.values():
            for layer in layers:
                mlps[layer] = [path for path in dict.fromkeys(writing) if is_within(path, layer)]
        return mlps

    def _run_with_leaves(self) -> tuple[list[tuple[str, Tensor]], list[str], list[Tensor]]:
        """A forward in which the linear parts of layers return leaves.

        Returns the leaves with their paths, the events, and the sums of the outputs of the stacks and of the model.
        """
        leaves: list[tuple[str, Tensor]] = []
        events: list[str] = []
        results: list[Tensor | None] = []

        def leaf(path: str, tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            leaves.append((path, tensor.detach().requires_grad_()))
            return leaves[-1][1].clone()  # the model may write into it

        def detach(path: str, module: nn.Module, args: object, output: Any) -> Any:
            events.append(path)
            return tree_map_only(Tensor, partial(leaf, path), output)

        def note(site: str, call: AttentionCall, output: Tensor) -> Tensor:
            events.append(SITE + site)
            return output

        def leave(path: str, module: nn.Module, args: object, output: Any) -> None:
            if any(path == layers[-1] for layers in self.layers.values() if layers):
                results.append(_first_result(output))

        with torch.enable_grad(), self.hooked(note, detach, self.stacked, on_exit=leave):
            results.append(_first_result(self._batch.forward(self.model)))
            sums = [each.sum() for each in results if each is not None and each.requires_grad]
        return leaves, events, sums


def _first_result(outputs: Any) -> Tensor | None:
    """The logits of a model, or else the first floating tensor among its outputs."""
    logits = logits_of(outputs)
    if logits is not None:
        return logits
    tensors = [each for each in tree_leaves(outputs) if isinstance(each, Tensor)]
    return next((each for each in tensors if each.is_floating_point()), None)


def _is_linear_part(path: str, module: nn.Module, attending: Collection[str]) -> bool:
    """Whether a module multiplies by a matrix of its own, or is an activation outside attention."""
    if isinstance(module, nn.Embedding):
        return False  # cheap, and those of positions have no axis of the batch
    if any(each.ndim > 1 for each in module.parameters(recurse=False)):
        return True
    # A softmax inside an attention must run, or the recorder does not see the attention.
    return type(module).__module__ in ACTIVATIONS and not is_within_any(path, attending)


# Stacks and layers ------------------------------------------------------------------------------------------------


def is_within(path: str, outer: str) -> bool:
    """Whether a module is another one, or a part of it."""
    return not outer or path == outer or path.startswith(f"{outer}.")


def is_within_any(path: str, outers: Collection[str]) -> bool:
    """Whether a module is one of these, or a part of one."""
    return any(is_within(path, outer) for outer in outers)


def _stacks(model: nn.Module, sites: Collection[str]) -> list[str]:
    """For each site, the innermost list of modules that all attend; without one, the outermost list around it."""
    stacks: dict[str, None] = {}
    for site in sites:
        complete, around = "", ""
        for path, module in model.named_modules():
            if not isinstance(module, nn.ModuleList | nn.Sequential) or not is_within(site, path):
                continue
            layers = [f"{path}.{name}".lstrip(".") for name, _ in module.named_children()]
            # A list within a layer, as of T5, has parts that do not attend.
            attending = {layer for layer in layers for each in sites if is_within(each, layer)}
            if len(attending) == len(layers):
                complete = path
            elif isinstance(module, nn.ModuleList):
                around = around or path
        if complete or around:
            stacks[complete or around] = None
    return list(stacks)


def _layers_of(model: nn.Module, stack: str) -> list[str]:
    """The paths of the layers of a stack, as modules that run: containers of one module are left out."""
    layers = []
    for name, module in model.get_submodule(stack).named_children():
        path = f"{stack}.{name}".lstrip(".")
        while isinstance(module, nn.ModuleDict | nn.ModuleList) and len(module) == 1:
            ((name, module),) = module.named_children()
            path = f"{path}.{name}"
        layers.append(path)
    return layers
