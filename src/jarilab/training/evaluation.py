"""Measure a model in training on held-out data, and the result of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jarilab.core.errors import UserError
from jarilab.runs import checkpoint
from jarilab.runs.folder import Run
from jarilab.runs.outcomes import TRAINED, Outcomes
from jarilab.tasks.base import Task
from jarilab.tasks.predictors.base import Predictor, predictor_for, untrained_positions
from jarilab.training.checkpointing import Checkpointer
from jarilab.training.memory import peak_memory
from jarilab.training.state import TrainingState


class Evaluator:
    """Measures the model of a training on held-out data. checkpointer: loads the best weights in the end."""

    def __init__(self, state: TrainingState, checkpointer: Checkpointer):
        self.state, self.checkpointer = state, checkpointer
        self.outcomes: Outcomes = {}
        """Outcomes of the first evaluation on all held-out data of each length, for the run folder."""

    def evaluate(self, examples: int | None = None) -> dict[str, Any]:
        """The task's metrics in float32, on so many held-out examples; on all of them by default."""
        predictor = predictor_for(self.state.evaluated, self.state.task)
        if examples is not None:
            return predictor.evaluate(examples)
        return self._evaluate_examples(predictor, TRAINED)

    def evaluate_midway(self, examples: int) -> dict[str, Any]:
        """Evaluate on so many examples, update the best of the progress, and return the values for the curve."""
        metric, progress = self.state.task.metric, self.state.progress
        measured = self.evaluate(examples)
        value = measured[metric.name]
        best = None if progress.best is None else progress.best[metric.name]
        progress.evaluations_without_better += 1
        if best is None or not metric.better(best, value):
            # Of equal values the later is the best checkpoint, but no improvement.
            if value != best:
                progress.evaluations_without_better = 0
            progress.best = {"step": progress.step, metric.name: value}
        held_out = measured.pop("examples")
        summary = f"held-out {metric.title} {metric.text(value)}"
        return {**measured, "value": value, "held_out": held_out, "measured": summary}

    def evaluate_lengths(self, longer: Mapping[int, Task]) -> dict[str, dict[str, Any]]:
        """The metric at each length on all its held-out data. longer: the task at each length."""
        task, model = self.state.task, self.state.evaluated
        measured = {}
        for length, at_length in longer.items():
            metrics = self._evaluate_examples(predictor_for(model, at_length), str(length))
            measured[str(length)] = {
                "value": metrics[task.metric.name],
                "examples": int(metrics["examples"]),
                "notices": untrained_positions(model, task, at_length),
            }
        return measured

    def result(self, run: Run, longer: Mapping[int, Task]) -> dict[str, Any]:
        """The fields of result.json: metrics of the last and of the best weights on all held-out data, sizes, times.

        longer: the task at the other lengths to measure. Raises UserError if the checkpoint lacks the best step.
        """
        progress = self.state.progress
        last = self.evaluate()
        lengths = {"lengths": self.evaluate_lengths(longer)} if longer else {}
        return {
            "hash": self.state.experiment.hash,
            "encoding": self.state.experiment.encoding,
            "seed": self.state.experiment.seed,
            "metric": self.state.task.metric.name,
            **last,
            **lengths,
            "best": self._best(run, last),
            "ceiling": self.state.task.ceiling(),
            "steps": progress.step,
            "trained_examples": progress.examples,
            "parameters": sum(parameter.numel() for parameter in self.state.model.parameters()),
            "seconds": progress.seconds,
            "cpu_seconds": progress.cpu_seconds,
            "peak_memory": peak_memory(),
        }

    def _evaluate_examples(self, predictor: Predictor, length: str) -> dict[str, Any]:
        metrics, outcomes_N = predictor.evaluate_examples()
        if outcomes_N is not None:
            # The best weights are evaluated after the last ones, which are compared.
            self.outcomes.setdefault(length, outcomes_N.numpy())
        return metrics

    def _best(self, run: Run, last: dict[str, Any]) -> dict[str, Any]:
        best = self.state.progress.best
        # The last step is evaluated, so this is a checkpoint that was changed.
        if best is None:
            raise UserError(
                f"{run.checkpoints}: the last checkpoint does not say which step was the best; put back a copy"
            )
        if best["step"] == self.state.progress.step:
            return {"step": self.state.progress.step, **last}
        try:
            path = run.checkpoints / f"step-{best['step']:09d}"
            checkpoint.verify(path)
            self.checkpointer.load_weights(path)
        except UserError as error:
            run.notice(
                f"{error}; the best metric is the one measured during training, on fewer examples"
            )
            return best
        return {"step": best["step"], **self.evaluate()}
