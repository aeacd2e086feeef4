"""What each head does for one answer, beside random changes of the residual stream that are as large.

    effects = HeadEffects(model, batch, read)
    for _ in effects.run():
        print(effects.measured)

A head is switched off: its output z is 0. What it no longer adds to the residual stream is then turned into `CONTROLS`
random directions, the same for all heads, and subtracted instead. A head passes if it changes the answer more than each
of these. By chance, one of `CONTROLS + 1` heads does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Int, Tensor
from jarilab.inspect.cause.copies import CleanRun, Copies, Group, Replacement
from jarilab.inspect.cause.parts import ModelParts, Part
from jarilab.inspect.cause.replays import repeat_rows
from jarilab.inspect.cause.steering import turned
from jarilab.inspect.intervene.controls import GaveWay, Proceed, giving_way
from jarilab.inspect.intervene.interventions import check_evaluating
from jarilab.inspect.study.example import Batch

CONTROLS = 39
"""Random directions of each head."""
STAGES = (3, 12, CONTROLS)
"""Random directions after which a head that is not above all of them is left out: it cannot pass any more."""
SMALLEST = 0.0005
"""Smaller effects, in nats a token, are not compared with random changes."""

Reader = Callable[[Any, Batch], tuple[Float[Tensor, "R A"], Int[Tensor, "R A"]]]
"""Reads outputs: of each row, the log-probability of each token of the answer, and the likeliest token instead."""


Draw = tuple[Part, int]
"""A head, and the number of a random direction."""


@dataclass(eq=False)
class HeadEffect:
    """The effect of one head, in nats.

    changes: of the log-probability of each token of the answer with the head off. likeliest: the token in its place.
    largest: of the `draws` random changes so far, the mean of the answer's tokens. added: `(B, Q, D)` of each call,
    what the head adds to the residual stream; None if that is not known.
    """

    changes: Float[Tensor, " A"]
    likeliest: Int[Tensor, " A"]
    largest: float = 0.0
    draws: int = 0
    added: list[Tensor] | None = None

    @property
    def effect(self) -> float:
        """The mean change of the log-probability of the answer's tokens."""
        return float(self.changes.mean())

    @property
    def is_open(self) -> bool:
        """Whether it is above all random changes so far, and more are to be drawn."""
        is_above = abs(self.effect) > max(self.largest, SMALLEST)
        return self.added is not None and is_above and self.draws < CONTROLS


@dataclass(eq=False)
class HeadEffects:
    """The effects of all heads of a model on one answer.

    batch: of one row. heads: by site and head, as far as they are measured. layers: the effects of whole sites.
    proceed: whether to go on, asked before each part of the model; a forward that stops is repeated later.
    """

    model: nn.Module
    batch: Batch
    read: Reader
    heads: dict[tuple[str, int], HeadEffect] = field(default_factory=dict)
    layers: dict[str, float] = field(default_factory=dict)
    is_done: bool = False
    proceed: Proceed = lambda: True

    @torch.no_grad()
    def run(self) -> Iterator[None]:
        """Measures everything, and yields after each forward, and where one gives way.

        Raises UserError if parts of the model cannot be replaced.
        """
        check_evaluating(self.model)
        yield from self._whole(self._check)
        parts = self._copies.parts
        singles = [parts.of_head(head) for head in parts.heads]
        offs = [(part, 0) for part in [*parts.select(["attention"]), *singles]]
        yield from self._forwards(offs, self._switch_off)
        for stage in STAGES:
            open_heads = [part for part in singles if self.heads[part.site, part.index].is_open]
            draws = range(([0, *STAGES])[STAGES.index(stage)], stage)
            turns = [(part, draw) for draw in draws for part in open_heads]
            yield from self._forwards(turns, self._turn)
        self.is_done = True
        # The rest is what the next forward would need.
        del self._clean, self._copies
        for effect in self.heads.values():
            effect.added = None

    @cached_property
    def _copies(self) -> Copies:
        return Copies(ModelParts(self.model, self.batch))

    @cached_property
    def _clean(self) -> CleanRun:
        return self._copies.run_clean(self.batch)

    @property
    def likeliest(self) -> Int[Tensor, " A"]:
        """The likeliest token in each place of the answer, with all heads."""
        return self._before[1]

    @cached_property
    def _before(self) -> tuple[Float[Tensor, " A"], Int[Tensor, " A"]]:
        logs_RA, likeliest_RA = self.read(self._clean.outputs, self.batch)
        return logs_RA[0], likeliest_RA[0]

    @cached_property
    def _projections(self) -> dict[str, str]:
        """The linear part through which each site writes to the residual stream, if there is one."""
        projections = {}
        for site in self._copies.parts.sites:
            paths = self._copies.parts.output_projections(self._clean.events, [site])
            calls = [call.output for path in paths for call in self._clean.linear.get(path, [])]
            if len(paths) == 1 and all(isinstance(out, Tensor) and out.ndim == 3 for out in calls):
                projections[site] = next(iter(paths))
        return projections

    def _check(self) -> None:
        if not len(self.likeliest):
            raise UserError("expected an answer of at least one token, got none to measure")
        self._copies.check(self._clean, lambda outputs, rows: self.read(outputs, rows)[0])

    def _switch_off(self, chosen: Sequence[Draw]) -> None:
        """Measure heads and whole sites that are off, and what the heads add to the residual stream."""
        written: dict[str, list[Tensor]] = {}

        def keep(path: str, output: Tensor) -> None:
            written.setdefault(path, []).append(output.unflatten(0, (-1, 1)).clone())

        logs, likeliest = self._read(chosen, self._copies.replacement(None), keep)
        for copy, (part, _) in enumerate(chosen):
            changes = logs[copy] - self._before[0]
            if part.kind == "attention":
                self.layers[part.site] = float(changes.mean())
                continue
            effect = HeadEffect(changes, likeliest[copy])
            path = self._projections.get(part.site)
            if path is not None:
                pairs = zip(self._clean.linear[path], written[path], strict=True)
                effect.added = [call.output - output[copy] for call, output in pairs]
            self.heads[part.site, part.index] = effect

    def _turn(self, chosen: Sequence[Draw]) -> None:
        """Measure random changes."""
        calls: dict[str, int] = {}

        def turn(path: str, output: Tensor) -> Tensor:
            call = calls[path] = calls.get(path, -1) + 1
            copies = list(output.unflatten(0, (len(chosen), -1)))
            for copy, (part, draw) in enumerate(chosen):
                added = self.heads[part.site, part.index].added
                if added is not None and self._projections[part.site] == path:
                    clean = self._clean.linear[path][call].output
                    copies[copy] = clean - turned(added[call], draw)
            return torch.cat(copies)

        logs, _ = self._read(chosen, lambda part, call, z: z, turn)
        for copy, (part, draw) in enumerate(chosen):
            effect = self.heads[part.site, part.index]
            change = abs(float((logs[copy] - self._before[0]).mean()))
            effect.largest = max(effect.largest, change)
            effect.draws = max(effect.draws, draw + 1)

    def _forwards(
        self, draws: Sequence[Draw], measure: Callable[[Sequence[Draw]], None]
    ) -> Iterator[None]:
        """Measure the draws, as many in each forward as fit."""
        groups: list[Group] = [(part,) for part, _ in draws]
        for numbers in self._copies.forwards(self._clean, groups):
            yield from self._whole(partial(measure, [draws[number] for number in numbers]))

    def _whole(self, work: Callable[[], None]) -> Iterator[None]:
        """Do work with forwards, from its beginning each time that it gives way."""
        is_done = False
        while not is_done:
            try:
                with giving_way(self.model, lambda: self.proceed()):
                    work()
                is_done = True
            except GaveWay:
                pass
            yield

    def _read(
        self, chosen: Sequence[Draw], replacement: Replacement, change: Any
    ) -> tuple[Tensor, Tensor]:
        """What is read of a forward with a copy for each draw. change: of what their sites write."""
        groups: list[Group] = [(part,) for part, _ in chosen]
        sites = {part.site for part, _ in chosen} & self._projections.keys()

        def hook(path: str, module: nn.Module, args: Any, output: Tensor) -> Any:
            return change(path, output)

        with ExitStack() as hooks:
            for path in {self._projections[site] for site in sites}:
                module = self.model.get_submodule(path)
                hooks.enter_context(module.register_forward_hook(partial(hook, path)))
            outputs = self._copies.run(self._clean, groups, replacement)
        return self.read(outputs, repeat_rows(self.batch, len(groups)))
