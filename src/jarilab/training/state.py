"""A model on its way, and all else that a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from annotated_types import Ge, Lt
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from jarilab.errors import UserError
from jarilab.nn.init import initialise
from jarilab.options import check_fields
from jarilab.predictors.base import predictor_for
from jarilab.runs import checkpoint
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import Run
from jarilab.tasks.base import Task
from jarilab.training.memory import peak_memory
from jarilab.training.optim import build_optimizers

FORMER = {"looks_without_better": "evaluations_without_better"}
"""Names in the checkpoints of before, and what they are now."""


Count = Annotated[int, Ge(0), Lt(2**63)]


@dataclass
class Progress:
    """How far a training is.

    step: steps taken. examples: trained on, counted as often as they were seen. losses: since the last row of the
    curve. best: the step and the metric of the best evaluation. evaluations_without_better: since then.
    """

    step: Count = 0
    examples: Count = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    best: dict[str, int | float] | None = None
    evaluations_without_better: Count = 0

    @staticmethod
    def of(record: Mapping[str, Any], where: str = "state.json") -> Progress:
        """From what a checkpoint holds, which may be more. Raises UserError that names a field that is none of ours."""
        current = {FORMER.get(name, name): value for name, value in record.items()}
        check_fields(where, get_type_hints(Progress, include_extras=True), current)
        return Progress(**{own.name: current[own.name] for own in fields(Progress)})


class TrainingState:
    """A model, its optimizers and its progress.

    averaged: a copy that follows the model as a moving average, where one is asked for.
    """

    def __init__(self, experiment: Experiment, task: Task):
        options = experiment.options
        self.experiment, self.task = experiment, task
        self.model = experiment.model_instance(task)
        initialise(self.model, experiment.seed)
        self.optimizers = build_optimizers(self.model, options)
        self.averaged: AveragedModel | None = None
        if options.average:
            average = get_ema_multi_avg_fn(options.average)
            # Buffers too: running statistics of a norm are of the weights beside them.
            self.averaged = AveragedModel(self.model, multi_avg_fn=average, use_buffers=True)
        self.progress = Progress()

    @property
    def evaluated(self) -> nn.Module:
        """The weights that are evaluated, saved and used: the average's, where there is one."""
        return self.model if self.averaged is None else self.averaged.module

    @property
    def _raw(self) -> nn.Module | None:
        """The weights that are trained, where others are evaluated."""
        return None if self.averaged is None else self.model

    def load(self, run: Run) -> None:
        """Take up the newest whole checkpoint, if there is one."""
        begun, problems = checkpoint.newest(run.checkpoints)
        for problem in problems:
            run.notice(problem)
        if begun is not None:
            checkpoint.load_model(begun, self.evaluated, self.experiment.hash)
            held = checkpoint.load_training(begun, self.optimizers, self._raw)
            self.progress = Progress.of(held, str(begun / "state.json"))
            self._check_best(begun)
            if self.averaged is not None:
                self.averaged.n_averaged.fill_(self.progress.step)
        run.cut_metrics(self.progress.step)

    def _check_best(self, path: Path) -> None:
        """Raises UserError where a checkpoint does not say which was the best so far, as this task judges."""
        best, metric = self.progress.best, self.task.metric.name
        known = best is None or (set(best) == {"step", metric} and isinstance(best["step"], int))
        if not known or (best is not None and not 0 < best["step"] <= self.progress.step):
            raise UserError(
                f"{path / 'state.json'}: best is {best!r}, expected a step and its {metric}; put back a copy"
            )

    def save(self, run: Run) -> None:
        """Write a checkpoint."""
        run.check_there()
        progress = self.progress
        record = {**asdict(progress), "run": self.experiment.hash}
        keep = set() if progress.best is None else {progress.best["step"]}
        run.synchronise()
        checkpoint.save(
            run.checkpoints, progress.step, self.evaluated, self.optimizers, record, keep, self._raw
        )

    def update(self, rate: float) -> None:
        """Take a step by the gradient, at this learning rate."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)

    def evaluate(self, examples: int | None = None) -> dict[str, Any]:
        """The task's metrics, in float32; on all held-out data unless told."""
        return predictor_for(self.evaluated, self.task).evaluate(examples)

    def evaluate_on_the_way(self, examples: int) -> dict[str, Any]:
        """Evaluate, and note whether it is the best so far; what a row of the curve says of it."""
        metric, progress = self.task.metric, self.progress
        measured = self.evaluate(examples)
        value = measured[metric.name]
        best = None if progress.best is None else progress.best[metric.name]
        progress.evaluations_without_better += 1
        if best is None or not metric.better(best, value):
            if value != best:
                progress.evaluations_without_better = 0
            progress.best = {"step": progress.step, metric.name: value}
        held_out = measured.pop("examples")
        told = f"held-out {metric.title} {metric.text(value)}"
        return {**measured, "value": value, "held_out": held_out, "measured": told}

    def result(self, run: Run) -> dict[str, Any]:
        """The metrics of the last weights on all held-out data, and of the best ones if they are others."""
        progress = self.progress
        last = self.evaluate()
        parameters = sum(parameter.numel() for parameter in self.evaluated.parameters())
        return {
            "hash": self.experiment.hash,
            "encoding": self.experiment.encoding,
            "seed": self.experiment.seed,
            "metric": self.task.metric.name,
            **last,
            "best": self._best(run, last),
            "ceiling": self.task.ceiling(),
            "steps": progress.step,
            "trained_examples": progress.examples,
            "parameters": parameters,
            "seconds": progress.seconds,
            "cpu_seconds": progress.cpu_seconds,
            "peak_memory": peak_memory(),
        }

    def _best(self, run: Run, last: dict[str, Any]) -> dict[str, Any]:
        best = self.progress.best
        assert best is not None, "the last step is evaluated"
        if best["step"] == self.progress.step:
            return {"step": self.progress.step, **last}
        try:
            self._load_weights(run.checkpoints / f"step-{best['step']:09d}")
        except UserError as error:
            run.notice(
                f"{error}; the best on the way is given as it was measured then, on fewer examples"
            )
            return best
        return {"step": best["step"], **self.evaluate()}

    def _load_weights(self, path: Path) -> None:
        checkpoint.verify(path)
        checkpoint.load_model(path, self.evaluated, self.experiment.hash)
