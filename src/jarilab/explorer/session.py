"""Trained runs, looked into: one input at a time, at any step of their training that was kept."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.storage.files import sha256
from jarilab.explorer import payload, summaries
from jarilab.explorer.detail import detail_of
from jarilab.explorer.explored import check_file
from jarilab.explorer.intervention import Operation, effect_told
from jarilab.explorer.opening import check_head, opening_of
from jarilab.explorer.remembering import remembered
from jarilab.export.program import program_of
from jarilab.export.reading import Inputs
from jarilab.inspect.explain.walk import goes_step_by_step, walk_of
from jarilab.inspect.measure.alignment import Link, pharaoh
from jarilab.inspect.record.capture import Tape, look_inside, record
from jarilab.inspect.record.model_io import precise, scores_of
from jarilab.runs import snapshots
from jarilab.runs.folder import read_metrics
from jarilab.runs.loaded import load
from jarilab.tasks.predictors.base import Predictor, Trace, predictor_for

LONGEST = 2048
"""Tokens of an input: a map has their square."""

Writer = Callable[[nn.Module, Inputs], dict[str, Any]]
"""Makes a program of a model and an example of what it reads."""


@dataclass(frozen=True, eq=False)
class RecordedInput:
    """One input's way through a model. untrained: None for an input that is too long to be measured."""

    trace: Trace
    tape: Tape
    outputs: Any
    untrained: Tape | None


class ExploredRun:
    """A run whose inside is looked at."""

    def __init__(self, folder: Path, name: str, *, trust_code: bool = False):
        self.folder, self.name = folder, name
        self.run = load(folder, trust_code=trust_code)
        self.experiment = self.run.experiment
        kept = snapshots.steps_of(folder, self.experiment.hash)
        self.steps = sorted({0, self.run.step, *kept})
        self._models: OrderedDict[Hashable, Any] = OrderedDict()
        self._recorded: OrderedDict[Hashable, RecordedInput] = OrderedDict()
        self._views: OrderedDict[Hashable, dict[str, Any]] = OrderedDict()
        self._inside: dict[Hashable, Tape] = {}

    def predictor(self, step: int) -> Predictor:
        """What answers, as it was after so many steps. Raises UserError for a step that was not kept."""
        if step == self.run.step:
            return self.run.predictor
        return remembered(self._models, step, lambda: self._predictor(step))

    def _predictor(self, step: int) -> Predictor:
        if step not in self.steps:
            kept = ", ".join(str(step) for step in self.steps)
            raise UserError(
                f"{self.folder} keeps its weights of the steps {kept}, not of {step}; train with --snapshots N to keep "
                "those of N steps"
            )
        model = snapshots.load(self.folder, self.experiment, self.run.task, step)
        return predictor_for(model.eval(), self.run.task)

    def model(self, step: int, *, precise: bool = False) -> nn.Module:
        """What is looked into, as it was after so many steps. precise: in float64."""
        model = self.predictor(step).traced_model
        if not precise:
            return model
        return remembered(self._models, (step, "precise"), lambda: copy.deepcopy(model).double())

    def record(self, line: str, step: int) -> RecordedInput:
        """Answer the input and keep the attention of one forward over input and answer."""
        return remembered(self._recorded, (line, step), lambda: self._record(line, step))

    @torch.no_grad()
    def _record(self, line: str, step: int) -> RecordedInput:
        model, first = self.model(step), self.model(0)
        trace = self.predictor(step).trace(line, LONGEST)
        # A tape may hold the square of its length: no two of them.
        if len(trace.source) > payload.LARGEST:
            self._recorded.clear()
        with record(model) as tape:
            outputs = model(*trace.inputs)
        untrained = None
        if any(payload.measurable(tape, site) for site in tape.sites):
            with record(first) as untrained:
                first(*trace.inputs)
        return RecordedInput(trace, tape, outputs, untrained)

    def view(self, line: str, step: int, gold: Sequence[Link] | None = None) -> dict[str, Any]:
        """One model's part of the page. gold: links of an alignment."""
        return remembered(self._views, (line, step), lambda: self._whole(line, step, gold))

    def _whole(self, line: str, step: int, gold: Sequence[Link] | None) -> dict[str, Any]:
        recorded = self.record(line, step)
        trace, model, predictor = recorded.trace, self.model(step), self.predictor(step)
        view = self._view(step, recorded)
        more = summaries.matters(model, trace)
        if predictor.block_tokens:
            probed = summaries.probe(model, self.model(0), predictor.block_tokens, predictor.task)
            for site, measured in probed.items():
                more.setdefault(site, {}).update(measured)
        for site in view["sites"]:
            site["measures"] |= more.get(site["site"], {})
        checks = summaries.checks(self.model(step, precise=True), trace)
        return view | {"checks": checks, "lens": self._lens(recorded, predictor, gold)}

    def _lens(
        self, recorded: RecordedInput, predictor: Predictor, gold: Sequence[Link] | None
    ) -> dict[str, Any] | None:
        """What is known of the task itself: digit places and carries, or links of an alignment."""
        trace, tape = recorded.trace, recorded.tape
        if not trace.is_text:
            return None
        ones_first = getattr(self.run.task, "ones_first", False)
        # Of one sequence, what is written is the sequence itself.
        of_two = "source" in trace.sequences
        written = predictor.names(trace.measured) if of_two else trace.source
        digits = summaries.digits(tape, trace, written, ones_first=ones_first)
        return digits or summaries.aligned(tape, gold)

    def _view(self, step: int, recorded: RecordedInput) -> dict[str, Any]:
        """What the forward over the answer looks like."""
        predictor, experiment = self.predictor(step), self.experiment
        trace, tape = recorded.trace, recorded.tape
        scores_LV = scores_of(recorded.outputs)[0].float()
        names = {frame: sequence.names for frame, sequence in trace.sequences.items()}
        labels, metric = trace.labels, self.run.task.metric
        return {
            "run": str(self.folder),
            "name": self.name,
            "task": experiment.task,
            "purpose": list(self.run.task.purpose()),
            "model": experiment.model,
            "encoding": experiment.encoding,
            "seed": experiment.seed,
            "step": step,
            "steps": self.steps,
            "experiment": experiment.hash,
            "curve": self.curve,
            "metric": {"title": metric.title, "share": metric.share, "digits": metric.digits},
            "input": trace.line,
            "answer": trace.answer,
            "expected": trace.expected,
            "sides": {frame: payload.side_of(s) for frame, s in trace.sequences.items()},
            "outputs": payload.outputs_of(scores_LV[: len(labels)], labels, predictor.names),
            "sites": payload.sites_of(tape, names, recorded.untrained),
            "vocabulary": self.vocabulary,
            "rollout": summaries.rollout(tape, names),
            "checks": [],
            "lens": None,
            "words": [str(self.folder)],
            "edits": ["place", "head", "link", "token"],
            "opens": ["walk", "lens", "parts", "erasure"],
            "says": None,
        }

    def detail(self, line: str, step: int, site: str, head: int, query: int = 0) -> dict[str, Any]:
        """One head, matrix by matrix, in float64. query: of a recurrent decoder, whose walk follows one step. Raises
        UserError for a site, a head or a query that is not there."""
        recorded = self.record(line, step)
        trace, inside = recorded.trace, self._look_inside(line, step, recorded.trace)
        inside.head(site, head)  # told before anything is computed
        where = inside.site(site)
        queries, keys = trace.names(where.queries), trace.names(where.keys)
        if not 0 <= query < len(queries):
            raise UserError(f"{site} has the queries 0 to {len(queries) - 1}, got {query}")
        by_step: dict[str, Any] = {}
        if goes_step_by_step(inside, site):
            tokens = range(next(reversed(self.run.task.model_options.values())))
            by_step = {"step": query, "vocabulary": self.predictor(step).names(tokens)}
        walked = walk_of(inside, site, head, queries=queries, keys=keys, **by_step)
        return {
            "query": by_step.get("step"),
            **detail_of(recorded.tape, inside, walked),
            "erasure": summaries.erased(inside, trace, site, head),
        }

    def _look_inside(self, line: str, step: int, trace: Trace) -> Tape:
        """One forward in float64 for all heads of an input; the last one alone is kept, since it is large."""
        if (line, step) not in self._inside:
            tape = look_inside(self.model(step, precise=True), precise(trace.inputs))
            self._inside = {(line, step): tape}
        return self._inside[line, step]

    def operate(
        self,
        line: str,
        step: int,
        changes: Sequence[Mapping[str, Any]],
        *,
        controls: bool = True,
    ) -> dict[str, Any]:
        """The answer and the maps under changes, and how far they are from what they were. controls: and how far they
        are under the same changes at random other places."""
        recorded, model, predictor = self.record(line, step), self.model(step), self.predictor(step)
        operation, trace = Operation(changes, recorded.tape), recorded.trace
        tape = operation.run(model, trace)
        sites = [
            payload.weights_of(tape, site, operation.weights(tape, site)) for site in tape.sites
        ]
        effect = operation.effect(model, trace)
        told = effect_told(effect, predictor.names(trace.measured))
        answer = predictor.edited(trace, operation)
        beside = operation.controls(model, trace) if controls else {}
        return {"view": {"sites": sites}, "effect": {"answer": answer, **told, **beside}}

    def without(self, line: str, step: int, site: str, head: int) -> str | None:
        """The answer without one head; None where an edited model says nothing new."""
        recorded = self.record(line, step)
        off = Operation([{"kind": "head", "site": site, "head": head}], recorded.tape)
        return self.predictor(step).edited(recorded.trace, off)

    def engine(self, line: str, step: int, program: Writer = program_of) -> dict[str, Any]:
        """What a page computes with by itself: the model after this step as a program, with this input as its example,
        and how it reads and answers; or why a page cannot, in English and in Korean. program: what makes it."""
        predictor = self.predictor(step)
        text = predictor.text_of_page()
        if text is None:
            task, model = self.experiment.task, self.experiment.model
            return {
                "why": (
                    f"no page can answer by itself as the model {model} does for the task {task}",
                    f"과제 {task}에서 모델 {model}이(가) 하는 답은 페이지가 스스로 낼 수 없습니다",
                )
            }
        if not predictor.task.policy.plain:
            positions = self.experiment.options.positions
            return {
                "why": (
                    f"no page can place tokens by itself as this run does, with --positions {positions}",
                    f"이 실행처럼 --positions {positions}(으)로 토큰에 위치를 주는 일은 페이지가 스스로 할 수 없습니다",
                )
            }
        trace = self.record(line, step).trace
        try:
            made = program(predictor.traced_model, trace.inputs)
        except UserError as error:
            return {"why": (str(error), str(error))}
        return {"program": made, "text": text}

    @cached_property
    def curve(self) -> list[list[Any]]:
        """Step, training loss and held-out value, as the training wrote them."""
        rows = read_metrics(self.folder)
        return [[row["step"], row.get("loss"), row.get("value")] for row in rows]

    @cached_property
    def vocabulary(self) -> str:
        """Equal where two runs have the same tokens."""
        return sha256(self.run.predictor.vocabulary.encode())[:12]


class Explorer:
    """Runs side by side on the same input. One caller at a time computes; the others wait."""

    def __init__(
        self, runs: Sequence[str | Path], *, align: str | None = None, trust_code: bool = False
    ):
        """align: gold links between the tokens of source and answer, such as `0-0 1-2`, counted from 0."""
        self.align, self.trusts_code = align, trust_code
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
            ExploredRun(f, n, trust_code=trust_code) for f, n in zip(folders, names, strict=True)
        ]
        self._lock = threading.Lock()

    def check(self, line: str, first: str) -> None:
        """Raises UserError for an input that names a file which nobody has shown."""
        if any(opened.run.predictor.reads_files for opened in self.opened):
            check_file(line.strip(), first.strip(), numbered=True)

    def all_at(self, step: int | None) -> dict[int, int]:
        """One step of training for every view, as `look` takes them; of None, the newest of each."""
        return {} if step is None else dict.fromkeys(range(len(self.opened)), step)

    def look(
        self,
        line: str,
        steps: Mapping[int, int] | None = None,
        *,
        live: bool,
        site: str | None = None,
        head: int | None = None,
    ) -> dict[str, Any]:
        """The whole page for one input. steps: of training, by the number of the view; the newest by default.

        site, head: what it opens at; by default, the head that says most. Raises UserError for an input, a step, a site
        or a head that is not there.
        """
        with self._lock:
            first = self.opened[0]
            step = (steps or {}).get(0, first.run.step)
            check_head(first.record(line, step).tape, site, head)
            views = [
                opened.view(line, (steps or {}).get(number, opened.run.step), self._gold)
                for number, opened in enumerate(self.opened)
            ]
            noise = self._noise(line, steps or {})
            opening = opening_of(views, site, head)
            opened = self.opened[opening["view"]]
            step = (steps or {}).get(opening["view"], opened.run.step)
            without = opened.without(line, step, opening["site"], opening["head"])
        page = payload.page_of(views, live=live, opening=opening)
        return page | {"noise": noise, "without": without}

    def _noise(self, line: str, steps: Mapping[int, int]) -> dict[str, Any] | None:
        tapes = []
        for number, opened in enumerate(self.opened):
            apart_from_seed = replace(opened.experiment, seed=0).hash
            step = steps.get(number, opened.run.step)
            tapes.append((f"{apart_from_seed} {step}", opened.record(line, step).tape))
        return summaries.noise(tapes)

    def head(
        self, line: str, view: int, site: str, head: int, step: int | None = None, query: int = 0
    ) -> dict[str, Any]:
        """What is shown of one head that is opened."""
        opened = self.view(view)
        with self._lock:
            return opened.detail(line, opened.run.step if step is None else step, site, head, query)

    def operate(
        self,
        line: str,
        view: int,
        changes: Sequence[Mapping[str, Any]],
        step: int | None = None,
        *,
        controls: bool = True,
    ) -> dict[str, Any]:
        """What becomes of one view's answer and maps under changes; see `Operation`. controls: and under the same
        changes at random other places."""
        opened = self.view(view)
        with self._lock:
            step = opened.run.step if step is None else step
            return opened.operate(line, step, changes, controls=controls)

    def view(self, number: int) -> ExploredRun:
        """The run with this number. Raises UserError where there is none."""
        if not 0 <= number < len(self.opened):
            raise UserError(f"expected a view from 0 to {len(self.opened) - 1}, got {number}")
        return self.opened[number]
