"""A run as a subject of the explorer, at any training step whose weights were kept."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
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
from jarilab.explorer.effects import EffectsInProgress
from jarilab.explorer.intervention import InterventionRequest, effect_payload
from jarilab.explorer.subject import LRU, Subject, Writer, check_file
from jarilab.inspect.explain.walk import goes_step_by_step, walk_of
from jarilab.inspect.intervene.controls import Proceed
from jarilab.inspect.measure.alignment import Link
from jarilab.inspect.record.capture import Tape, look_inside, record
from jarilab.inspect.record.model_io import scores_of, to_float64
from jarilab.pages.program.program import program_of, why_not
from jarilab.runs import snapshots
from jarilab.runs.folder import read_metrics
from jarilab.runs.loaded import load
from jarilab.tasks.predictors.base import Predictor, Trace, predictor_for

MAX_TOKENS = 2048
"""Tokens of an input: a map has their square."""
EFFECTS_SECONDS = 2.0
"""How long a view waits for the effects of its heads."""


@dataclass(frozen=True, eq=False)
class RecordedInput:
    """An input, the forward over it, and that of the model before training; None if the input is too long."""

    trace: Trace
    tape: Tape
    outputs: Any
    untrained: Tape | None


class RunSubject(Subject):
    """A run, whose models of several steps are loaded when they are needed.

    gold: links between the tokens of source and answer, which alignment is compared with.
    """

    saves_details = True

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        gold: Sequence[Link] | None = None,
        trust_code: bool = False,
    ):
        self.folder, self.name, self._gold = folder, name, gold
        self.run = load(folder, trust_code=trust_code)
        self.experiment = self.run.experiment
        self.reads_files = self.run.predictor.reads_files
        snapshot_steps = snapshots.steps_of(folder, self.experiment.hash)
        # A run that starts from weights has those of step 0 only as a snapshot.
        initial = [0] if self.experiment.options.init is None else []
        self.steps = sorted({*initial, self.run.step, *snapshot_steps})
        self._predictors: LRU[Predictor] = LRU()
        self._precise: LRU[nn.Module] = LRU()
        self._recorded: LRU[RecordedInput] = LRU()
        self._views: LRU[dict[str, Any]] = LRU()
        self._effects: LRU[EffectsInProgress] = LRU()
        self._inside: dict[Hashable, Tape] = {}

    def example(self) -> str:
        return self.run.example()

    def check_input(self, line: str, first: str) -> None:
        if self.reads_files:
            check_file(line, first, numbered=True)

    def model_step(self, step: int | None) -> int:
        if step is None:
            return self.run.step
        if step not in self.steps:
            steps = ", ".join(str(step) for step in self.steps)
            raise UserError(
                f"{self.folder} keeps its weights of the steps {steps}, not of {step}; train with --snapshots N to "
                "keep those of N steps"
            )
        return step

    def recipe(self, step: int) -> str | None:
        return f"{replace(self.experiment, seed=0).hash} {step}"

    def predictor(self, step: int) -> Predictor:
        """The predictor with the weights after `step` steps. Raises UserError for a damaged snapshot."""
        if step == self.run.step:
            return self.run.predictor
        return self._predictors.get_or_make(step, lambda: self._load(step))

    def _load(self, step: int) -> Predictor:
        model = snapshots.load(self.folder, self.experiment, self.run.task, step)
        return predictor_for(model.eval(), self.run.task)

    def model(self, step: int, *, precise: bool = False) -> nn.Module:
        """The recorded model after `step` steps. precise: in float64."""
        model = self.predictor(step).traced_model
        if not precise:
            return model
        return self._precise.get_or_make(step, lambda: copy.deepcopy(model).double())

    def tape(self, line: str, step: int) -> Tape:
        return self.record(line, step).tape

    def record(self, line: str, step: int) -> RecordedInput:
        """Answers the input and records one forward over input and answer."""
        return self._recorded.get_or_make((line, step), lambda: self._record(line, step))

    @torch.no_grad()
    def _record(self, line: str, step: int) -> RecordedInput:
        model, first = self.model(step), self.model(0)
        trace = self.predictor(step).trace(line, MAX_TOKENS)
        # A tape may hold the square of its length, so two long ones are never kept.
        if len(trace.source) > payload.MAX_CELLS:
            self._recorded.clear()
        with record(model) as tape:
            outputs = model(*trace.inputs)
        untrained = None
        if any(payload.measurable(tape, site) for site in tape.sites):
            with record(first) as untrained:
                first(*trace.inputs)
        return RecordedInput(trace, tape, outputs, untrained)

    def view(self, line: str, step: int) -> dict[str, Any]:
        return self._views.get_or_make((line, step), lambda: self._measured_view(line, step))

    def _measured_view(self, line: str, step: int) -> dict[str, Any]:
        """The view with measures that take forwards of their own."""
        recorded = self.record(line, step)
        trace, model, predictor = recorded.trace, self.model(step), self.predictor(step)
        view = self._view(step, recorded)
        more = summaries.matters(model, trace)
        if predictor.block_tokens:
            probed = summaries.probe(model, self.model(0), predictor.block_tokens, predictor.task)
            for site, measured in probed.items():
                more.setdefault(site, {}).update(measured)
        effects = self.effects(line, step)
        effects.advance(EFFECTS_SECONDS)
        for site, measured in effects.payload().get("sites", {}).items():
            rises = [-effect for effect in measured["effect"]]
            more.setdefault(site, {})["ablation"] = summaries.alone(rises)
        for site in view["sites"]:
            site["measures"] |= more.get(site["site"], {})
        checks = summaries.checks(self.model(step, precise=True), trace)
        return view | {"checks": checks, "lens": self._lens(recorded, predictor)}

    def _lens(self, recorded: RecordedInput, predictor: Predictor) -> dict[str, Any] | None:
        """The digit places and carries of an expression, or the links of an alignment; None for other tasks."""
        trace, tape = recorded.trace, recorded.tape
        if not trace.is_text:
            return None
        ones_first = getattr(self.run.task, "ones_first", False)
        # A decoder without a source writes on its own sequence.
        has_source = "source" in trace.sequences
        written = predictor.names(trace.measured) if has_source else trace.source
        digits = summaries.digits(tape, trace, written, ones_first=ones_first)
        return digits or summaries.aligned(tape, self._gold)

    def _view(self, step: int, recorded: RecordedInput) -> dict[str, Any]:
        """The view of one forward."""
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
            "outputs": payload.outputs_of(
                scores_LV[: len(labels)], predictor.names(labels), predictor.names
            ),
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

    def detail(self, line: str, step: int, site: str, head: int, query: int) -> dict[str, Any]:
        recorded = self.record(line, step)
        trace, inside = recorded.trace, self._look_inside(line, step, recorded.trace)
        inside.head(site, head)  # raises before anything is computed
        attention = inside.site(site)
        queries, keys = trace.names(attention.queries), trace.names(attention.keys)
        if not 0 <= query < len(queries):
            raise UserError(f"{site} has the queries 0 to {len(queries) - 1}, got {query}")
        by_step: dict[str, Any] = {}
        if goes_step_by_step(inside, site):
            tokens = range(next(reversed(self.run.task.model_options.values())))
            by_step = {"step": query, "vocabulary": self.predictor(step).names(tokens)}
        walk = walk_of(inside, site, head, queries=queries, keys=keys, **by_step)
        return {
            "query": by_step.get("step"),
            **detail_of(recorded.tape, inside, walk),
            "erasure": summaries.erased(inside, trace, site, head),
        }

    def _look_inside(self, line: str, step: int, trace: Trace) -> Tape:
        """The activations of one forward in float64, which serve all heads; only the last are kept."""
        if (line, step) not in self._inside:
            tape = look_inside(self.model(step, precise=True), to_float64(trace.inputs))
            self._inside = {(line, step): tape}
        return self._inside[line, step]

    def intervene(
        self,
        line: str,
        step: int,
        intervention: InterventionRequest,
        *,
        proceed: Proceed | None,
        draft: bool = False,
    ) -> tuple[Tape, dict[str, Any]]:
        trace, model = self.record(line, step).trace, self.model(step)
        tape = intervention.run(model, trace)
        tokens = self.predictor(step).names(trace.measured)
        effect = effect_payload(intervention.effect(model, trace), tokens)
        answer = self.answer(line, step, intervention)
        random_edits = intervention.controls(model, trace, proceed) if proceed else {}
        return tape, {"answer": answer, **effect, **random_edits}

    def answer(self, line: str, step: int, intervention: InterventionRequest) -> str | None:
        return self.predictor(step).edited(self.record(line, step).trace, intervention)

    def effects(self, line: str, step: int) -> EffectsInProgress:
        return self._effects.get_or_make((line, step), lambda: self._new_effects(line, step))

    def _new_effects(self, line: str, step: int) -> EffectsInProgress:
        trace, predictor = self.record(line, step).trace, self.predictor(step)
        effects = summaries.effects(self.model(step), trace)
        return EffectsInProgress(effects, "nats", predictor.names(trace.measured), predictor.names)

    def engine(self, line: str, step: int, program: Writer = program_of) -> dict[str, Any]:
        predictor = self.predictor(step)
        text = predictor.text_of_page()
        if text is None:
            task, model = self.experiment.task, self.experiment.model
            return {
                "why": (
                    f"a page cannot compute the answers of model {model} for task {task}",
                    f"과제 {task}, 모델 {model}의 답은 페이지가 스스로 계산할 수 없습니다",
                )
            }
        if not predictor.task.policy.plain:
            positions = self.experiment.options.positions
            return {
                "why": (
                    f"a page cannot compute the position IDs of --positions {positions}, which this run uses",
                    f"이 실행이 쓰는 --positions {positions}의 위치는 페이지가 스스로 계산할 수 없습니다",
                )
            }
        trace = self.record(line, step).trace
        try:
            exported = program(predictor.traced_model, trace.inputs)
        except UserError as error:
            return {"why": why_not(error)}
        return {"program": exported, "text": text}

    @cached_property
    def curve(self) -> list[list[Any]]:
        """Step, training loss and held-out value of each evaluation."""
        rows = read_metrics(self.folder)
        return [[row["step"], row.get("loss"), row.get("value")] for row in rows]

    @cached_property
    def vocabulary(self) -> str:
        """A hash of the tokens, equal for runs that share them."""
        return sha256(self.run.predictor.vocabulary.encode())[:12]
