"""Forwards of copies of one batch, each copy with other parts of the model replaced.

A head's output z `(Q, W)` is replaced before the output projection W_O. Copies lie along the batch axis, so that one
forward replaces many parts. Linear parts that run before the first replaced part return their clean outputs instead of
computing them again. For the direct effect, later heads and MLPs return their clean outputs too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.hooks import RemovableHandle

from jarilab.attention.definition import AttentionCall
from jarilab.core.errors import UserError
from jarilab.core.shapes import Bool, Int, Tensor
from jarilab.inspect.cause.answers import AnswerMetric, checked, token_at, valid_of
from jarilab.inspect.cause.parts import SITE, ModelParts, Part, is_within, is_within_any
from jarilab.inspect.cause.replays import (
    LinearCall,
    Replay,
    change_stream,
    repeat_rows,
    replaced_forward,
    run_at,
)
from jarilab.inspect.intervene.interventions import change_outputs
from jarilab.inspect.study.example import Batch

MAX_TOKENS = 1536
"""Tokens in one forward of copies."""
MAX_OUTPUTS = 2**24
"""Numbers in the outputs of one forward of copies."""

Group = tuple[Part, ...]
"""The parts that are replaced in one copy of a batch."""
Replacement = Callable[[Part, int, Tensor], Tensor]
"""Takes a part, the number of its call, and its output; returns what replaces the output.

The output is `(B, Q, W)` of a head, `(B, H, Q, W)` of an attention, and `(B, L, D)` of an MLP or the residual stream.
"""


@dataclass(eq=False)
class CleanRun:
    """A forward without replacement.

    heads: the output `(B, H, Q, W)` of each call, by site. streams: the residual stream of each call, by event. linear:
    the calls of linear parts, by path. units: of modules of several linear parts. events: sites, paths of linear parts
    and names of streams in the order in which they ended.
    """

    batch: Batch
    outputs: Any = None
    heads: dict[str, list[Tensor]] = field(default_factory=dict)
    streams: dict[str, list[Tensor]] = field(default_factory=dict)
    linear: dict[str, list[LinearCall]] = field(default_factory=dict)
    units: dict[str, list[LinearCall]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)


class _Change:
    """What replaces the outputs of parts in one forward of copies. parts: one of each event."""

    def __init__(
        self, owner: Copies, clean: CleanRun, copies: Sequence[Group], replacement: Replacement
    ):
        self._replacement, self._copies = replacement, len(copies)
        self._by_event: dict[str, list[tuple[int, Part, Tensor | None]]] = {}
        for copy, parts in enumerate(copies):
            for part in parts:
                places = None if part.position is None else owner.positions(clean, part)
                self._by_event.setdefault(part.event, []).append((copy, part, places))
        self.parts = [items[0][1] for items in self._by_event.values()]
        self._expected = {part.event: len(owner.values(clean, part)) for part in self.parts}
        self._calls = dict.fromkeys(self._by_event, 0)

    def __call__(self, event: str, output: Tensor) -> Tensor:
        output = output.unflatten(0, (self._copies, -1)).clone()
        for copy, part, places_BQ in self._by_event[event]:
            index = (copy, slice(None), part.index) if part.kind == "head" else copy
            old = output[index]
            new = self._replacement(part, self._calls[event], old)
            if places_BQ is not None:
                places = places_BQ.view(len(old), *[1] * (old.ndim - 3), -1, 1)
                new = torch.where(places, new, old)
            output[index] = new
        self._calls[event] += 1
        return output.flatten(0, 1)

    def check_ran(self) -> None:
        """Raises UserError if a part did not run as often as in the clean run."""
        for part in self.parts:
            count, expected = self._calls[part.event], self._expected[part.event]
            if count != expected:
                raise UserError(
                    f"{part.short} ran {count} times with replaced parts, expected {expected}; the model chooses its "
                    "layers by their values, so its parts cannot be replaced"
                )


class Copies:
    """Runs a model with replaced parts.

    can_freeze: whether the direct effect can be computed. can_replay: whether linear parts can return their clean
    outputs. pointwise: linear parts that compute each position alone. read_once: those that can run at the answers'
    positions only. All are found by `check`. report: is called after each forward of `scores`, with the number of
    groups that are done and of all.
    """

    def __init__(self, parts: ModelParts, report: Callable[[int, int], None] | None = None):
        self.parts, self.model = parts, parts.model
        self._report = report or (lambda done, total: None)
        self.can_freeze, self.can_replay = parts.can_freeze, True
        self.pointwise: frozenset[str] = frozenset()
        self.read_once: frozenset[str] = frozenset()

    # Clean runs -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def run_clean(self, batch: Batch, *, heads_only: bool = False) -> CleanRun:
        """Run a batch and keep the outputs of its heads, layers and linear parts, or of its heads only."""
        run = CleanRun(batch)

        def keep_heads(site: str, call: AttentionCall, output: Tensor) -> Tensor:
            if output.shape[0] != len(batch):
                raise UserError(
                    f"{site}: expected the {len(batch)} rows of the batch, got {output.shape[0]}; heads of a model "
                    "that divides its input, as into windows, cannot be replaced in copies"
                )
            run.heads.setdefault(site, []).append(output.detach().clone())
            run.events.append(SITE + site)
            return output

        def keep_module(path: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            # The model may write into the output afterwards.
            copied = tree_map_only(Tensor, torch.clone, output)
            is_linear = path in self.parts.linear
            calls = run.linear if is_linear else run.units
            calls.setdefault(path, []).append(LinearCall.of(len(run.events), args, copied))
            if is_linear:
                run.events.append(path)

        def keep_stream(event: str, stream: Tensor) -> Tensor:
            run.streams.setdefault(event, []).append(stream.clone())
            run.events.append(event)
            return stream

        paths = [] if heads_only else [*self.parts.linear, *self.parts.units]
        with ExitStack() as hooks:
            for part in () if heads_only else self.parts.streams():
                keep = partial(keep_stream, part.event)
                hooks.enter_context(self._hook_stream(part, len(batch), keep))
            hooks.enter_context(self.parts.hooked(keep_heads, keep_module, paths))
            run.outputs = batch.forward(self.model)
        return run

    def replacement(self, donor: CleanRun | None) -> Replacement:
        """Puts in the outputs of another run, or 0 without one."""
        if donor is None:
            return lambda part, call, value: torch.zeros_like(value)
        return lambda part, call, value: self.values(donor, part)[call]

    def values(self, clean: CleanRun, part: Part) -> list[Tensor]:
        """The outputs of a part in a clean run, one a call; an MLP has one for each of its linear parts.

        Raises UserError if the part did not run, and if its outputs have no axis of the batch.
        """
        if part.kind == "stream":
            values = clean.streams.get(part.event, [])
        elif part.kind == "mlp":
            calls = [
                call for path in self.parts.mlps[part.site] for call in clean.linear.get(path, [])
            ]
            values = [call.output for call in sorted(calls, key=lambda call: call.number)]
        else:
            values = clean.heads.get(part.site, [])
            if part.kind == "head":
                values = [z[:, part.index] for z in values if 0 <= part.index < z.shape[1]]
        is_ready = all(
            isinstance(each, Tensor) and len(each) == len(clean.batch) for each in values
        )
        if not values or not is_ready or (part.kind in ("mlp", "stream") and values[0].ndim != 3):
            got = [tuple(getattr(each, "shape", ())) for each in values] or "no vectors"
            raise UserError(
                f"{part.short}: expected vectors (B, L, D) of the {len(clean.batch)} rows of the batch at {part.site} "
                f"of {type(self.model).__name__}, got {got}; replace other kinds of parts in this model"
            )
        return values

    def positions(self, clean: CleanRun, part: Part) -> Bool[Tensor, "B Q"]:
        """Where a part is replaced, in each row. Raises UserError if a row does not have its position."""
        value = self.values(clean, part)[0]
        valid_BQ = valid_of(clean.batch, part.side, value.shape[-2]).to(value.device)
        if part.position is None:
            return torch.ones_like(valid_BQ)
        place_B = token_at(valid_BQ, part.position, part.short)
        return functional.one_hot(place_B, valid_BQ.shape[1]).bool()

    # Runs -------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def run(
        self,
        clean: CleanRun,
        copies: Sequence[Group],
        replacement: Replacement,
        *,
        frozen: bool = False,
        live: Collection[str] = (),
        read_at: Int[Tensor, " B"] | None = None,
    ) -> Any:
        """The outputs of the copies, `(C * B, ...)`.

        frozen: keep later heads and MLPs at their clean outputs. live: paths of linear parts that run even so. read_at:
        the position of each row at which logits are read; the logits at others may be wrong. Raises UserError if a
        replaced part did not run.
        """
        change = _Change(self, clean, copies, replacement)
        with (
            self._replayed(clean, len(copies), change.parts, live, read_at, frozen=frozen),
            self._hooked(change, len(copies) * len(clean.batch)),
        ):
            outputs = repeat_rows(clean.batch, len(copies)).forward(self.model)
        change.check_ran()
        return outputs

    @contextmanager
    def _hooked(self, change: _Change, rows: int) -> Iterator[None]:
        """Inside the block, the outputs of parts are changed. rows: of the forward."""

        def change_linear(event: str, module: nn.Module, args: object, output: Tensor) -> Tensor:
            return change(event, output)

        def change_heads(site: str, call: AttentionCall, output: Tensor) -> Tensor:
            return change(SITE + site, output)

        sites = [part.site for part in change.parts if part.event.startswith(SITE)]
        with ExitStack() as hooks:
            for part in change.parts:
                if part.kind == "stream":
                    on_stream = partial(change, part.event)
                    hooks.enter_context(self._hook_stream(part, rows, on_stream))
                for path in self.parts.mlps[part.site] if part.kind == "mlp" else ():
                    hook = partial(change_linear, part.event)
                    hooks.enter_context(self.parts.linear[path].register_forward_hook(hook))
            if sites:
                hooks.enter_context(
                    change_outputs(self.model, change_heads, sites, self.parts.names)
                )
            yield

    def _hook_stream(
        self, part: Part, rows: int, change: Callable[[Tensor], Tensor]
    ) -> RemovableHandle:
        """Pass the residual stream of a layer through `change`. rows: of the forward."""
        layer = self.model.get_submodule(part.site)

        def hook(module: nn.Module, *values: Any) -> Any:
            # Of a layer that ends its arguments and its output; of one that starts both kinds of arguments.
            return change_stream(values[-1] if part.index else values, rows, change)

        if part.index:
            return layer.register_forward_hook(hook)
        return layer.register_forward_pre_hook(hook, with_kwargs=True)

    @contextmanager
    def _replayed(
        self,
        clean: CleanRun,
        copies: int,
        parts: Sequence[Part],
        live: Collection[str],
        read_at: Int[Tensor, " B"] | None,
        *,
        frozen: bool,
    ) -> Iterator[None]:
        """Inside the block, linear parts that the replaced parts do not change return their clean outputs.

        Those after the last attention run at one position of each row if `read_at` says which.
        """
        first = min((self.first_event(clean, part) for part in parts), default=len(clean.events))
        sites = {part.site for part in parts if part.event.startswith(SITE)}
        live = {*live, *self.parts.output_projections(clean.events, sites)}
        with ExitStack() as undo:
            for path, calls in self._replaying(clean, parts, frozen=frozen).items():
                module = self.model.get_submodule(path)
                forward = module.forward
                if frozen or self.can_replay:
                    is_frozen = frozen and path in self.parts.stacked and path not in live
                    until = len(clean.events) if is_frozen else first
                    is_pointwise = path in self.pointwise
                    forward = Replay(
                        forward, calls, (len(clean.batch), copies), until, is_pointwise
                    )
                if read_at is not None and path in self.read_once:
                    forward = partial(run_at, forward, read_at.repeat(copies))
                undo.enter_context(replaced_forward(module, forward))
            yield

    def _replaying(
        self, clean: CleanRun, parts: Sequence[Part], *, frozen: bool
    ) -> dict[str, list[LinearCall]]:
        """The calls of units and of the linear parts outside them. A unit with a replaced part is divided."""
        divided = [
            path for part in parts if part.kind == "mlp" for path in self.parts.mlps[part.site]
        ]
        kept = () if frozen else self.pointwise

        def is_divided(path: str) -> bool:
            return any(is_within(each, path) for each in divided)

        units = {
            path: calls
            for path, calls in clean.units.items()
            if path in kept and not is_divided(path)
        }
        outside = (each for each in clean.linear.items() if not is_within_any(each[0], units))
        return units | dict(outside)

    def first_event(self, clean: CleanRun, part: Part) -> int:
        """The number of the event at which a part first runs. Raises UserError if it did not."""
        self.values(clean, part)
        if part.kind == "mlp":
            return min(clean.events.index(path) for path in self.parts.mlps[part.site])
        return clean.events.index(part.event)

    def forwards(
        self,
        clean: CleanRun,
        groups: Sequence[Group],
        *,
        frozen: bool = False,
        read_once: bool = False,
    ) -> Iterator[list[int]]:
        """The numbers of the groups of each forward, as many as fit, the first to run first.

        They have the same first event, unless linear parts compute only what changed. frozen: as in `run`. read_once:
        whether `run` is called with `read_at`.
        """
        tensors = [each for each in tree_leaves(clean.outputs) if isinstance(each, Tensor)]
        size = max((each.numel() for each in tensors), default=1)
        if read_once and clean.events[-1] in self.read_once:
            size //= clean.linear[clean.events[-1]][0].output.shape[1]
        tokens = max(each[0].shape[0] * each[0].shape[2] for each in clean.heads.values())
        at_once = max(1, min(MAX_TOKENS // tokens, MAX_OUTPUTS // max(1, size)))
        by_event: dict[int, list[int]] = {}
        for number, parts in enumerate(groups):
            firsts = (self.first_event(clean, part) for part in parts)
            by_event.setdefault(min(firsts, default=len(clean.events)), []).append(number)
        runs = [by_event[first] for first in sorted(by_event)]
        is_pointwise = self.parts.stacked & clean.linear.keys() <= self.pointwise
        # Frozen copies share what stays live, so that a later part of another copy must not be among them.
        if self.can_replay and is_pointwise and not frozen:
            runs = [list(chain.from_iterable(runs))]
        for numbers in runs:
            for start in range(0, len(numbers), at_once):
                yield numbers[start : start + at_once]

    def scores(
        self,
        clean: CleanRun,
        groups: Sequence[Group],
        replacement: Replacement,
        score: Callable[[Any, Batch], Tensor],
        *,
        frozen: bool = False,
        read_at: Int[Tensor, " B"] | None = None,
        name: str = "",
    ) -> Tensor:
        """The score of each row with each group replaced, `(G, B, ...)`. score: of outputs and their batch.

        frozen, read_at: as in `run`. name: of a score that is checked. Raises UserError if that is not finite.
        """
        scores: dict[int, Tensor] = {}
        for numbers in self.forwards(clean, groups, frozen=frozen, read_once=read_at is not None):
            chosen = [groups[number] for number in numbers]
            outputs = self.run(clean, chosen, replacement, frozen=frozen, read_at=read_at)
            rows = repeat_rows(clean.batch, len(chosen))
            values = checked(score(outputs, rows), name, rows) if name else score(outputs, rows)
            scores |= zip(numbers, values.unflatten(0, (len(chosen), -1)), strict=True)
            self._report(len(scores), len(groups))
        if not scores:
            return torch.zeros(0, len(clean.batch))
        return torch.stack([scores[number] for number in range(len(groups))])

    def measure(
        self,
        clean: CleanRun,
        groups: Sequence[Group],
        replacement: Replacement,
        metrics: Sequence[AnswerMetric],
        *,
        allow_nan: bool = False,
    ) -> list[np.ndarray]:
        """Each metric with each group replaced, `(B, G)`. All metrics are read at the same position.

        Raises UserError for a metric that is not finite, unless `allow_nan`.
        """

        def values(outputs: Any, batch: Batch) -> Tensor:
            return torch.stack([metric(outputs, batch) for metric in metrics], 1)

        read_at = metrics[0].read_at(clean.outputs, clean.batch)
        values_GBM = self.scores(clean, groups, replacement, values, read_at=read_at)
        for parts, values_BM in zip(groups, () if allow_nan else values_GBM, strict=not allow_nan):
            names = " and ".join(part.short for part in parts)
            for metric, values_B in zip(metrics, values_BM.T, strict=True):
                checked(values_B, f"{metric.name} with {names} replaced", clean.batch)
        shape = (len(groups), len(clean.batch), len(metrics))
        return [*values_GBM.reshape(shape).permute(2, 1, 0).cpu().numpy()]

    def check(
        self,
        clean: CleanRun,
        measure: Callable[[Any, Batch], Tensor],
        read_at: Int[Tensor, " B"] | None = None,
    ) -> None:
        """Find out what linear parts can return: without replacement, two copies give what the batch gave.

        read_at: as for `run`. Raises UserError if they do not when everything runs.
        """
        expected = measure(clean.outputs, clean.batch)
        last = next(event for event in reversed(clean.events) if event.startswith(SITE))
        copies: list[Group] = [(Part("head", last.removeprefix(SITE), 0, ""),)] * 2
        is_precise = next(self.model.parameters()).dtype in (torch.float32, torch.float64)

        def is_same(*, frozen: bool = False, read_at: Tensor | None = None) -> bool:
            try:
                outputs = self.run(
                    clean, copies, lambda part, call, z: z, frozen=frozen, read_at=read_at
                )
                actual = measure(outputs, repeat_rows(clean.batch, 2))
            except (RuntimeError, ValueError, IndexError, TypeError, UserError):
                return False
            return torch.allclose(
                actual, torch.cat([expected] * 2), rtol=tolerance, atol=tolerance, equal_nan=True
            )

        tolerance = 1e-4 if is_precise else 3e-2
        pointwise = []
        for path, calls in (clean.linear | clean.units).items():
            module = self.model.get_submodule(path)
            if all(call.is_pointwise(module, tolerance) for call in calls):
                pointwise.append(path)
        self.pointwise = frozenset(pointwise)
        # Repeated outputs do not fit where rows have another order, as the tokens of an expert.
        self.can_replay = is_same()
        if not self.can_replay and not is_same():
            raise UserError(
                f"expected {type(self.model).__name__} to give each row of a batch the answer that it has alone, got "
                "other answers for two copies of a batch; its parts cannot be replaced in copies"
            )
        parents = {_parent(path) for path in clean.linear}
        idle = self.parts.stacked - set(clean.linear)
        is_idle = any(_parent(path) not in parents for path in idle)
        self.can_freeze = self.can_freeze and self.can_replay and not is_idle
        self.can_freeze = self.can_freeze and is_same(frozen=True)
        self.read_once = self._after_attention(clean) if read_at is not None else frozenset()
        if self.read_once and not is_same(read_at=read_at):
            self.read_once = frozenset()

    def _after_attention(self, clean: CleanRun) -> frozenset[str]:
        """The pointwise linear parts that run once, after the last attention."""
        last = max(number for number, event in enumerate(clean.events) if event.startswith(SITE))
        once = [
            path
            for path, calls in (clean.linear | clean.units).items()
            if len(calls) == 1 and calls[0].number > last
        ]
        return self.pointwise & {*once}


# Replays ------------------------------------------------------------------------------------------------------------


def _parent(path: str) -> str:
    return path.rpartition(".")[0]
