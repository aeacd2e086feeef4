"""Forwards of copies of one batch, each copy with other heads ablated.

A head's output z `(Q, W)` is replaced before the output projection W_O. Copies lie along the batch axis, so that one
forward ablates many heads. Linear layers that run before the first ablated head return their clean outputs instead of
computing them again. For the direct effect, later heads and MLPs return their clean outputs too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.intervene.interventions import change_outputs
from jarilab.inspect.record.capture import Tape
from jarilab.inspect.record.model_io import repeat_batch
from jarilab.inspect.record.modules import SiteNames
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.head import Head
from jarilab.positions.coordinates import Tokens
from jarilab.positions.patches import Images

SITE = "site "
"""Before the names of sites among events."""

ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activations")
"""Where the activations between the matrices of an MLP are defined."""

Ablated = tuple[Head, ...]
"""The heads that are ablated in one copy of a batch."""
Replacement = Callable[[Head, int, Tensor], Tensor]
"""Takes a head, the number of the call of its site, and its output `(B, Q, W)`; returns what replaces the output."""


@dataclass(eq=False)
class CleanRun:
    """A forward without ablation.

    heads: the output `(B, H, Q, W)` of each call, by site. linear: the outputs of linear parts, by path, each with its
    number among the events. events: sites and paths of linear parts in the order in which they ended.
    """

    batch: Batch
    outputs: Any = None
    heads: dict[str, list[Float[Tensor, "B H Q W"]]] = field(default_factory=dict)
    linear: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)


class HeadAblation:
    """Runs a model with ablated heads. tape: of any forward of it.

    can_freeze: whether the direct effect can be computed. can_replay: whether linear parts, which are the modules that
    multiply by a matrix and the activations, can return their clean outputs.
    """

    def __init__(self, model: nn.Module, tape: Tape):
        self.model, self.can_replay = model, True
        self._sites = {name: tape.calls[name][0].placed.path for name in tape.sites}
        # Sites are named by what they read, which outputs of earlier forwards do not tell.
        self._names = SiteNames(model)
        attending = list(self._sites.values())
        stacks = _stacks(model, attending)
        self._parts: dict[str, nn.Module] = {}
        self.can_freeze = bool(stacks)
        for path, module in model.named_modules():
            if not _is_linear_part(path, module, attending) or _is_within_any(path, self._parts):
                continue
            if any(site.startswith(f"{path}.") for site in attending):
                # A layer with a matrix of its own cannot be frozen.
                self.can_freeze = self.can_freeze and not _is_within_any(path, stacks)
            else:
                self._parts[path] = module
        self._stacked = {path for path in self._parts if _is_within_any(path, stacks)}

    @torch.no_grad()
    def run_clean(self, batch: Batch, *, heads_only: bool = False) -> CleanRun:
        """Run a batch and keep the outputs of its heads and linear parts, or of its heads only."""
        run = CleanRun(batch)

        def keep_heads(site: str, call: AttentionCall, output: Tensor) -> Tensor:
            if output.shape[0] != len(batch):
                raise UserError(
                    f"{site}: expected the {len(batch)} rows of the batch, got {output.shape[0]}; heads of a model "
                    "that divides its input, as into windows, cannot be ablated in copies"
                )
            run.heads.setdefault(site, []).append(output.detach().clone())
            run.events.append(SITE + site)
            return output

        def keep_linear(path: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: object, output: Any) -> None:
                # The model may write into the output afterwards.
                copied = tree_map_only(Tensor, torch.clone, output)
                run.linear.setdefault(path, []).append((len(run.events), copied))
                run.events.append(path)

            return hook

        with ExitStack() as hooks:
            for path, module in () if heads_only else self._parts.items():
                hooks.callback(module.register_forward_hook(keep_linear(path)).remove)
            with change_outputs(self.model, keep_heads, self._sites, self._names):
                run.outputs = batch.forward(self.model)
        return run

    @torch.no_grad()
    def run(
        self, clean: CleanRun, copies: Sequence[Ablated], replacement: Replacement, *, frozen: bool
    ) -> Any:
        """The outputs of the copies, `(C * B, ...)`.

        frozen: keep later heads and MLPs at their clean outputs. Raises UserError if an ablated site did not run.
        """
        sites = list(dict.fromkeys(head.site for heads in copies for head in heads))
        calls = dict.fromkeys(sites, 0)

        def ablate(site: str, call: AttentionCall, output: Tensor) -> Tensor:
            output = output.unflatten(0, (len(copies), -1)).clone()
            for copy, heads in enumerate(copies):
                for head in heads:
                    if head.site == site:
                        z_BQW = output[copy, :, head.index]
                        output[copy, :, head.index] = replacement(head, calls[site], z_BQW)
            calls[site] += 1
            return output.flatten(0, 1)

        with (
            self._replayed(clean, len(copies), sites, frozen=frozen),
            change_outputs(self.model, ablate, sites, self._names),
        ):
            outputs = repeat_rows(clean.batch, len(copies)).forward(self.model)
        for site, count in calls.items():
            if count != len(clean.heads[site]):
                raise UserError(
                    f"{site} ran {count} times with ablated heads, expected {len(clean.heads[site])}; the model "
                    "chooses its layers by their values, so its heads cannot be ablated"
                )
        return outputs

    @contextmanager
    def _replayed(
        self, clean: CleanRun, copies: int, sites: Collection[str], *, frozen: bool
    ) -> Iterator[None]:
        """Inside the block, linear parts that the ablated heads do not change return their clean outputs."""
        names = [SITE + site for site in sites]
        first = min((clean.events.index(name) for name in names), default=len(clean.events))
        live = self._output_projections(clean, names) if frozen else frozenset(self._parts)
        frozen_parts = self._stacked if frozen else frozenset()
        with ExitStack() as undo:
            for path, module in self._parts.items():
                if path not in clean.linear or not (frozen or self.can_replay):
                    continue
                until = len(clean.events) if path in frozen_parts - live else first
                undo.callback(_restore_forward, module, vars(module).get("forward"))
                calls, rows = clean.linear[path], len(clean.batch)
                module.forward = _replay(module.forward, calls, until, rows, copies)
            yield

    def _output_projections(self, clean: CleanRun, names: Collection[str]) -> frozenset[str]:
        """The linear parts through which the heads of these sites write: the first that runs after each."""
        live: set[str] = set()
        for number, event in enumerate(clean.events):
            if event not in names:
                continue
            attends = self._sites[event.removeprefix(SITE)]
            for path in clean.events[number + 1 :]:
                if path not in self._stacked:
                    continue
                live.add(path)
                # A module with matrices that attends itself may have no output projection of its own.
                has_projection = isinstance(self._parts[path], nn.MultiheadAttention)
                if has_projection or not _is_within(attends, path):
                    break
        return frozenset(live)

    def check(self, clean: CleanRun, measure: Callable[[Any, Batch], Tensor]) -> None:
        """Find out what linear parts can return: without ablation, two copies give what the batch gave.

        Raises UserError if they do not when everything runs.
        """
        expected = measure(clean.outputs, clean.batch)
        last = next(event for event in reversed(clean.events) if event.startswith(SITE))
        copies: list[Ablated] = [(Head(last.removeprefix(SITE), 0, ""),)] * 2
        is_precise = next(self.model.parameters()).dtype in (torch.float32, torch.float64)

        def is_same(*, frozen: bool) -> bool:
            try:
                outputs = self.run(clean, copies, lambda head, call, z: z, frozen=frozen)
                actual = measure(outputs, repeat_rows(clean.batch, 2))
            except (RuntimeError, ValueError, IndexError, TypeError, UserError):
                return False
            tolerance = 1e-4 if is_precise else 3e-2
            return torch.allclose(
                actual, torch.cat([expected] * 2), rtol=tolerance, atol=tolerance, equal_nan=True
            )

        # Repeated outputs do not fit where rows have another order, as the tokens of an expert.
        self.can_replay = is_same(frozen=False)
        if not self.can_replay and not is_same(frozen=False):
            raise UserError(
                f"expected {type(self.model).__name__} to give each row of a batch the answer that it has alone, got "
                "other answers for two copies of a batch; its heads cannot be ablated in copies"
            )
        parents = {_parent(path) for path in clean.linear}
        idle = [path for path in self._stacked - set(clean.linear) if _parent(path) not in parents]
        self.can_freeze = self.can_freeze and self.can_replay and not idle and is_same(frozen=True)


# Linear parts -------------------------------------------------------------------------------------------------------


def _is_linear_part(path: str, module: nn.Module, attending: Collection[str]) -> bool:
    """Whether a module multiplies by a matrix of its own, or is an activation outside attention."""
    if isinstance(module, nn.Embedding):
        return False  # cheap, and those of positions have no axis of the batch
    if any(each.ndim > 1 for each in module.parameters(recurse=False)):
        return True
    # A softmax inside an attention must run, or the recorder does not see the attention.
    return type(module).__module__ in ACTIVATIONS and not _is_within_any(path, attending)


def _is_within(path: str, outer: str) -> bool:
    """Whether a module is another one, or a part of it."""
    return not outer or path == outer or path.startswith(f"{outer}.")


def _is_within_any(path: str, outers: Collection[str]) -> bool:
    return any(_is_within(path, outer) for outer in outers)


def _stacks(model: nn.Module, sites: Collection[str]) -> list[str]:
    """For each site, the innermost list of modules that all attend; without one, the outermost list around it."""
    stacks: dict[str, None] = {}
    for site in sites:
        complete, around = "", ""
        for path, module in model.named_modules():
            if not isinstance(module, nn.ModuleList | nn.Sequential) or not _is_within(site, path):
                continue
            layers = [f"{path}.{name}".lstrip(".") for name, _ in module.named_children()]
            # A list within a layer, as of T5, has parts that do not attend.
            attending = {layer for layer in layers for each in sites if _is_within(each, layer)}
            if len(attending) == len(layers):
                complete = path
            elif isinstance(module, nn.ModuleList):
                around = around or path
        if complete or around:
            stacks[complete or around] = None
    return list(stacks)


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _replay(
    forward: Callable[..., Any],
    calls: Sequence[tuple[int, Any]],
    until: int,
    rows: int,
    copies: int,
) -> Callable[..., Any]:
    """A forward that returns the outputs of earlier calls, repeated, if their numbers are below `until`.

    rows: of the batch.
    """
    remaining = iter(calls)

    def repeat(tensor: Tensor) -> Tensor:
        has_rows = tensor.ndim > 0 and tensor.shape[0] % rows == 0
        return _repeat(tensor, copies) if has_rows else tensor

    def replay(*args: Any, **kwargs: Any) -> Any:
        number, output = next(remaining, (until, None))
        if number >= until:
            return forward(*args, **kwargs)
        # The recorder then takes the output for a function of the module's inputs.
        with torch._C.DisableTorchFunction():
            return tree_map_only(Tensor, repeat, output)

    return replay


def _restore_forward(module: nn.Module, forward: Any) -> None:
    """Undo the replacement of a forward. forward: that of the instance before; None without one."""
    del module.forward
    if forward is not None:
        module.forward = forward


# Copies -------------------------------------------------------------------------------------------------------------


def repeat_rows(batch: Batch, copies: int) -> Batch:
    """The batch `copies` times, one copy below the other."""

    def repeat(value: Any) -> Any:
        if isinstance(value, Tokens | Images):
            return repeat_batch(value, copies)
        has_rows = value.ndim > 0 and value.shape[0] == len(batch)
        return _repeat(value, copies) if has_rows else value

    with_rows = {name: getattr(batch, name) for name in ("args", "kwargs", "valid", "ids")}
    repeated = tree_map_only((Tensor, Tokens, Images), repeat, with_rows)
    for name in ("tokens", "origins", "extras", "words"):
        repeated[name] = getattr(batch, name) * copies
    return replace(batch, **repeated)


def _repeat(tensor: Tensor, copies: int) -> Tensor:
    return tensor.repeat(copies, *[1] * (tensor.ndim - 1))
