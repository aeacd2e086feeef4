"""Trained runs, looked into: one input at a time, at any step of their training that was kept."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from jarilab import api
from jarilab.errors import UserError, unknown
from jarilab.explorer import payload, summaries
from jarilab.explorer.detail import detail_of
from jarilab.explorer.intervention import Operation
from jarilab.explorer.kinds import Kind
from jarilab.explorer.painted import OfPaintings
from jarilab.explorer.seen import OfImages
from jarilab.explorer.tokens import OfTokens
from jarilab.inspect.alignment import Link, pharaoh
from jarilab.inspect.capture import Tape, look_inside, record
from jarilab.inspect.model_io import precise, scores_of
from jarilab.inspect.walk import goes_step_by_step, walk_of
from jarilab.runs import snapshots
from jarilab.runs.folder import read_metrics
from jarilab.tasks.base import Task
from jarilab.tasks.captions import Captions
from jarilab.tasks.classification import ImageTask
from jarilab.training.answering import Answered, inside, tokens_of

LONGEST = 2048
"""Tokens of an input: a map has their square."""
REMEMBERED = 8
"""How many inputs and models are kept at hand, the last used ones."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Seen:
    """One input's way through a model. untrained: None for an input that is too long to be measured."""

    read: Any
    said: Answered
    tape: Tape
    outputs: Any
    untrained: Tape | None


class Opened:
    """A run whose inside is looked at."""

    def __init__(self, folder: Path, name: str, *, trust_code: bool = False):
        self.folder, self.name = folder, name
        self.loaded = api.load(folder, trust_code=trust_code)
        self.task = self.loaded.task
        self.kind = kind_of(self.task)
        kept = snapshots.steps_of(folder, self.loaded.experiment.hash)
        self.steps = sorted({0, self.loaded.step, *kept})
        self._models: OrderedDict[Hashable, nn.Module] = OrderedDict()
        self._seen: OrderedDict[Hashable, Seen] = OrderedDict()
        self._views: OrderedDict[Hashable, dict[str, Any]] = OrderedDict()
        self._inside: dict[Hashable, Tape] = {}

    def model(self, step: int, *, precise: bool = False) -> nn.Module:
        """What is looked into, as it was after so many steps. precise: in float64. Raises UserError for a step not
        kept."""
        if precise:
            return _remembered(
                self._models, (step, "precise"), lambda: copy.deepcopy(self.model(step)).double()
            )
        return inside(self._answering(step), self.task)

    def _answering(self, step: int) -> nn.Module:
        """The model that answers."""
        if step == self.loaded.step:
            return self.loaded.model
        return _remembered(self._models, (step, "answering"), lambda: self._read(step))

    def _read(self, step: int) -> nn.Module:
        if step not in self.steps:
            kept = ", ".join(str(step) for step in self.steps)
            raise UserError(
                f"{self.folder} keeps its weights of the steps {kept}, not of {step}; train with --snapshots N to keep "
                "those of N steps"
            )
        return snapshots.load(self.folder, self.loaded.experiment, self.task, step).eval()

    def see(self, line: str, step: int) -> Seen:
        """Answer the input and keep the attention of one forward over input and answer."""

        @torch.no_grad()
        def look() -> Seen:
            read, model, first = self.task.read(line), self.model(step), self.model(0)
            said = self.kind.answered(self._answering(step), read, LONGEST)
            if (
                len(said.source) > payload.LARGEST
            ):  # a tape may hold the square of its length: no two of them
                self._seen.clear()
            with record(model) as tape:
                outputs = model(*said.inputs)
            untrained = None
            if any(payload.measurable(tape, site) for site in tape.sites):
                with record(first) as untrained:
                    first(*said.inputs)
            return Seen(read, said, tape, outputs, untrained)

        return _remembered(self._seen, (line, step), look)

    def view(self, line: str, step: int, gold: Sequence[Link] | None = None) -> dict[str, Any]:
        """One model's part of the page. gold: links of an alignment."""
        return _remembered(self._views, (line, step), lambda: self._whole(line, step, gold))

    def _whole(self, line: str, step: int, gold: Sequence[Link] | None) -> dict[str, Any]:
        looked = self.see(line, step)
        model, said = self.model(step), looked.said
        view = self._view(line, step, looked.tape, looked.outputs, looked)
        more = summaries.matters(model, said)
        for site, measured in self.kind.probed(model, self.model(0)).items():
            more.setdefault(site, {}).update(measured)
        for site in view["sites"]:
            site["measures"] |= more.get(site["site"], {})
        checks = summaries.checks(self.model(step, precise=True), said)
        lens = self.kind.lens(looked.tape, said, gold, self.loaded.experiment.task_options)
        return view | {"checks": checks, "lens": lens}

    def _view(self, line: str, step: int, tape: Tape, outputs: Any, looked: Seen) -> dict[str, Any]:
        """What a forward over the original answer looks like."""
        said, kind, experiment = looked.said, self.kind, self.loaded.experiment
        scores, model = scores_of(outputs)[0].float(), self.model(step)
        written = kind.written(said, scores)
        sides = kind.sides(model, looked.read, said, outputs)
        names = {side: shown["tokens"] for side, shown in sides.items()}
        return {
            "run": str(self.folder),
            "name": self.name,
            "task": experiment.task,
            "model": experiment.model,
            "encoding": experiment.encoding,
            "seed": experiment.seed,
            "step": step,
            "steps": self.steps,
            "experiment": experiment.hash,
            "curve": self.curve,
            "metric": self.task.metric.name,
            "input": line.strip(),
            "answer": kind.answer(model, line.strip(), looked.read, said),
            "expected": self._expected(line.strip()),
            "sides": sides,
            "outputs": payload.outputs_of(scores[: len(written)], written, kind.show),
            "sites": payload.sites_of(tape, names, looked.untrained),
            "vocabulary": self.vocabulary,
            "rollout": summaries.rollout(tape, names),
            "checks": [],
            "lens": None,
        }

    def _expected(self, line: str) -> str | None:
        """The right answer, where it is known: a run is looked at where its data are not, too."""
        try:
            return self.kind.expected(line)
        except UserError:
            return None

    def detail(self, line: str, step: int, site: str, head: int, query: int = 0) -> dict[str, Any]:
        """One head, matrix by matrix, in float64. query: of a recurrent decoder, whose walk follows one step. Raises
        UserError for a site, a head or a query that is not there."""
        looked = self.see(line, step)
        said, inside = looked.said, self._look_inside(line, step, looked.said)
        inside.head(site, head)  # told before anything is computed
        where, of_side = inside.site(site), {"source": said.source, "target": said.target}
        queries, keys = of_side[where.queries], of_side[where.keys]
        if not 0 <= query < len(queries):
            raise UserError(f"{site} has the queries 0 to {len(queries) - 1}, got {query}")
        by_step: dict[str, Any] = {}
        if goes_step_by_step(inside, site):
            tokens = range(next(reversed(self.task.model_options.values())))
            by_step = {"step": query, "vocabulary": self.kind.show(tokens)}
        walked = walk_of(inside, site, head, queries=queries, keys=keys, **by_step)
        return {
            "query": by_step.get("step"),
            **detail_of(looked.tape, inside, walked),
            "erasure": summaries.erased(inside, said, site, head),
        }

    def _look_inside(self, line: str, step: int, said: Answered) -> Tape:
        """One forward in float64 for all heads of an input; the last one alone is kept, since it is large."""
        if (line, step) not in self._inside:
            tape = look_inside(self.model(step, precise=True), precise(said.inputs))
            self._inside = {(line, step): tape}
        return self._inside[line, step]

    def operate(self, line: str, step: int, operation: Operation) -> dict[str, Any]:
        """The answer and the maps under edits, and how far they are from what they were."""
        looked, model = self.see(line, step), self.model(step)
        said = looked.said
        tape, outputs = operation.run(model, said)
        view = self._view(line, step, tape, outputs, looked)
        for site in view["sites"]:
            edited = operation.weights(tape, site["site"])
            if edited is not None:
                site["weights"] = payload.block(payload.pooled(edited)[0], "uint16")
        effect = operation.effect(model, said)
        answer = None
        if not self.kind.continues:
            answer = operation.answer(model, self.task, line.strip(), looked.read, said)
        tokens = self.kind.show(said.written[1:] if self.kind.continues else said.written)
        rows = zip(tokens, effect.before.tolist(), effect.after.tolist(), strict=True)
        return {
            "view": view,
            "effect": {
                "answer": answer,
                "log_probability": {"before": effect.log_before, "after": effect.log_after},
                "divergence": effect.divergence,
                "tokens": [
                    {"token": token, "before": before, "after": after}
                    for token, before, after in rows
                ],
                **operation.controls(model, said),
            },
        }

    @cached_property
    def curve(self) -> list[list[Any]]:
        """Step, training loss and held-out value, as the training wrote them."""
        return [
            [row["step"], row.get("loss"), row.get("value")] for row in read_metrics(self.folder)
        ]

    @cached_property
    def vocabulary(self) -> str:
        """Equal where two runs have the same tokens."""
        return hashlib.sha256(self.kind.vocabulary.encode()).hexdigest()[:12]


class Explorer:
    """Runs side by side on the same input. One caller at a time computes; the others wait."""

    def __init__(
        self, runs: Sequence[str | Path], *, align: str | None = None, trust_code: bool = False
    ):
        """align: gold links between the tokens of source and answer, such as `0-0 1-2`, counted from 0."""
        self._gold = None if align is None else pharaoh(align)
        if not runs:
            raise UserError("nothing to explore: expected the folder of a run, got none")
        folders = [Path(run) for run in runs]
        names = [folder.name for folder in folders]
        if len(set(names)) < len(names):
            names = [str(folder) for folder in folders]
        if len(set(names)) < len(names):
            raise UserError("the same run is given twice; name each once")
        self.opened = [
            Opened(f, n, trust_code=trust_code) for f, n in zip(folders, names, strict=True)
        ]
        self._lock = threading.Lock()

    def look(
        self,
        line: str,
        steps: Mapping[int, int] | None = None,
        *,
        live: bool,
        site: str | None = None,
        head: int = 0,
    ) -> dict[str, Any]:
        """The whole page for one input. steps: of training, by the number of the view; the newest by default.

        site, head: what it opens at. Raises UserError for an input, a step, a site or a head that is not there.
        """
        with self._lock:
            first = self.opened[0]
            site = _checked_site(
                first.see(line, (steps or {}).get(0, first.loaded.step)).tape, site, head
            )
            views = [
                opened.view(line, (steps or {}).get(number, opened.loaded.step), self._gold)
                for number, opened in enumerate(self.opened)
            ]
            noise = self._noise(line, steps or {})
        return payload.page_of(views, live=live, site=site, head=head) | {"noise": noise}

    def _noise(self, line: str, steps: Mapping[int, int]) -> dict[str, Any] | None:
        tapes = []
        for number, opened in enumerate(self.opened):
            apart_from_seed = replace(opened.loaded.experiment, seed=0).hash
            step = steps.get(number, opened.loaded.step)
            tapes.append((f"{apart_from_seed} {step}", opened.see(line, step).tape))
        return summaries.noise(tapes)

    def head(
        self, line: str, view: int, site: str, head: int, step: int | None = None, query: int = 0
    ) -> dict[str, Any]:
        """What is shown of one head that is opened."""
        opened = self.view(view)
        with self._lock:
            return opened.detail(
                line, opened.loaded.step if step is None else step, site, head, query
            )

    def operate(
        self, line: str, view: int, changes: Sequence[Mapping[str, Any]], step: int | None = None
    ) -> dict[str, Any]:
        """What becomes of one view's answer and maps under changes; see `Operation`."""
        opened, operation = self.view(view), Operation(changes)
        with self._lock:
            return opened.operate(line, opened.loaded.step if step is None else step, operation)

    def view(self, number: int) -> Opened:
        """The run with this number. Raises UserError where there is none."""
        if not 0 <= number < len(self.opened):
            raise UserError(f"expected a view from 0 to {len(self.opened) - 1}, got {number}")
        return self.opened[number]


def _checked_site(tape: Tape, site: str | None, head: int) -> str:
    """The site to open at, the first by default. Raises UserError for a site or a head that is not there."""
    opens = tape.sites[0] if site is None else site
    if opens not in tape.sites:
        raise unknown("site", opens, tape.sites)
    heads = tape.calls[opens][0].call.q.shape[1]
    if not 0 <= head < heads:
        raise UserError(f"{opens} has the heads 0 to {heads - 1}, got {head}")
    return opens


def kind_of(task: Task) -> Kind[Any]:
    """Raises UserError for a task of a kind of its own."""
    if isinstance(task, ImageTask):
        return OfImages(task)
    if isinstance(task, Captions):
        return OfPaintings(task)
    return OfTokens(tokens_of(task))


def _remembered(held: OrderedDict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """What was made for this key before; only the last few are kept."""
    if key not in held:
        held[key] = make()
        while len(held) > REMEMBERED:
            held.popitem(last=False)
    held.move_to_end(key)
    return held[key]
