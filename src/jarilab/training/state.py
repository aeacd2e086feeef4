"""A model on its way, and all else that a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel

from jarilab.core.devices import to_device
from jarilab.core.errors import UserError
from jarilab.core.options import check_fields
from jarilab.nn.init import generator_for, initialise
from jarilab.runs import checkpoint
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import Run
from jarilab.tasks.base import Task
from jarilab.tasks.predictors.base import predictor_for
from jarilab.training.distributed.parallel import (
    cut_like,
    full_weights,
    moving_average,
    own_rows,
    replicated,
    shard,
    unsynchronised,
)
from jarilab.training.distributed.world import World
from jarilab.training.execution import Execution
from jarilab.training.layers import recompute
from jarilab.training.memory import peak_memory
from jarilab.training.numerics import compiled
from jarilab.training.optim import build_optimizers
from jarilab.training.randomness import random_states, restore

Count = Annotated[int, Ge(0), Lt(2**63)]


@dataclass
class Progress:
    """How far a training is.

    step: steps taken. examples: trained on, counted as often as they were seen. losses: since the last row of the
    curve, which has so many rows. best: the step and the metric of the best evaluation. evaluations_without_better:
    since then. due: what the next row will hold beside, where the step is yet to be evaluated: a signal came meanwhile.
    """

    step: Count = 0
    examples: Count = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    best: dict[str, Any] | None = None
    evaluations_without_better: Count = 0
    due: dict[str, float] | None = None
    rows: Count | None = None

    @staticmethod
    def of(record: Mapping[str, Any], where: str = "state.json") -> Progress:
        """From what a checkpoint holds, which may be more. Raises UserError that names a field that is none of ours."""
        check_fields(where, get_type_hints(Progress, include_extras=True), record)
        return Progress(**{one.name: record[one.name] for one in fields(Progress)})


class TrainingState:
    """A model, its optimizers and its progress.

    model: what is trained, on its device. called: the same as what a step calls, with all that runs around it: several
    processes, torch.compile. averaged: a copy that follows the model as a moving average, where one is asked for.
    """

    def __init__(
        self, experiment: Experiment, task: Task, execution: Execution, world: World | None = None
    ):
        options = experiment.options
        self.experiment, self.task, self.execution = experiment, task, execution
        self.world = world or World(device=execution.device)
        self.model = experiment.resolved.build_model(task)
        initialise(self.model, experiment.seed)
        self.model.to(execution.device)
        self.averaged: AveragedModel | None = None
        if options.average:
            self.averaged = moving_average(self.model, options.average)
        if execution.recompute:
            recompute(self.model)
        if execution.shard:
            shard(self.model)
            if self.averaged is not None:
                shard(self.averaged.module)
        self.optimizers = build_optimizers(self.model, options)
        self.progress = Progress()
        self.called = self._called()

    def _called(self) -> nn.Module:
        called = self.model
        if self.world.several and not self.execution.shard:
            unused = self._has_unused()
            with self.world.together():
                called = replicated(called, unused)
        return compiled(called) if self.execution.compile else called

    def _has_unused(self) -> bool:
        """Whether a step leaves parameters without a gradient, such as an encoding's for pairs that never are."""
        seed = self.experiment.seed
        few = torch.arange(min(2, self.task.training_size))
        batch = to_device(
            self.task.training_batch(few, generator_for(seed, "check")), self.execution.device
        )
        # Running statistics of a norm take up what they are given: copies of them do.
        copies = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        scores = functional_call(self.model, copies, batch.inputs)
        self.task.loss(scores, batch).backward()
        unused = any(parameter.grad is None for parameter in self.model.parameters())
        self.model.zero_grad()
        return unused

    def without_exchange(self, wanted: bool) -> AbstractContextManager[Any]:
        """Inside the block gradients stay with the process that computed them, if that is wanted: another pass follows,
        after which the sum is exchanged."""
        if not wanted or not self.world.several:
            return nullcontext()
        if self.execution.shard:
            return unsynchronised(self.model)
        return self.called.no_sync()  # type: ignore[operator]

    @property
    def evaluated(self) -> nn.Module:
        """What is evaluated and used: the average, where there is one; whole, where the model is cut into parts."""
        if self.execution.shard:
            # Answers are written by other methods than forward, which know no shards.
            whole = self.experiment.resolved.build_model(self.task).to(self.execution.device)
            whole.load_state_dict(full_weights(self._saved))
            return whole
        return self._saved

    @property
    def _saved(self) -> nn.Module:
        """The same as it is held, perhaps cut into parts."""
        return self.model if self.averaged is None else self.averaged.module

    @property
    def _raw(self) -> nn.Module | None:
        """The weights that are trained, where others are evaluated."""
        return None if self.averaged is None else self.model

    def load(self, run: Run) -> None:
        """Take up the newest whole checkpoint, if there is one."""
        begun = self._newest(run)
        if begun is not None:
            self._load_weights(begun)
            held, random = checkpoint.load_training(begun, self.optimizers, self._raw, cut_like)
            self.progress = Progress.of(held, str(begun / "state.json"))
            self._check_best(begun)
            try:
                lost = restore(random, self.world, self.experiment.seed, self.progress.step)
            except RuntimeError as error:
                raise UserError(
                    f"{begun}: the random state is none: {error}; put back a copy"
                ) from None
            if lost is not None:
                run.notice(f"from here on not bit-exact, because {lost}")
            if self.averaged is not None:
                self.averaged.n_averaged.fill_(self.progress.step)
        if self.world.writes:
            run.cut_metrics(self.progress.step, self.progress.rows)

    def _newest(self, run: Run) -> Path | None:
        """The newest whole checkpoint, the same for all ranks: the one that rank 0 finds."""
        found = ""
        with self.world.one_error_for_all():
            if self.world.writes:
                begun, problems = checkpoint.newest(run.checkpoints)
                for problem in problems:
                    run.notice(problem)
                found = "" if begun is None else begun.name
        found = self.world.texts(found)[0]
        return run.checkpoints / found if found else None

    def _check_best(self, path: Path) -> None:
        """Raises UserError where a checkpoint does not say which was the best so far, as this task judges."""
        best, metric = self.progress.best, self.task.metric.name
        if best is None:
            return
        steps = Annotated[int, Ge(1), Le(self.progress.step)]
        fields: dict[str, Any] = {"step": steps, metric: float}
        check_fields(f"{path / 'state.json'}: best", fields, best)

    def save(self, run: Run) -> None:
        """Write a checkpoint. Where the model is cut into parts, each process writes its own, and the first one joins
        them."""
        run.check_there()
        world, progress, folder = self.world, self.progress, run.checkpoints
        keep = set() if progress.best is None else {progress.best["step"]}
        weights = own_rows(self._saved.state_dict(), world.rank)
        tensors, groups = checkpoint.training_tensors(self.optimizers, self._raw)
        tensors = own_rows(tensors, world.rank)
        random = random_states(world)
        progress.rows = run.rows
        record = {**asdict(progress), "groups": groups, "run": self.experiment.hash}
        run.fsync()
        step, parts = progress.step, world.size if self.execution.shard else 1
        try:
            with world.one_error_for_all():
                if 0 < world.rank < parts:
                    checkpoint.write_part(folder, step, world.rank, weights, tensors)
            with world.one_error_for_all():
                if world.writes:
                    checkpoint.save(folder, step, weights, tensors | random, record, keep, parts)
        finally:
            checkpoint.remove_part(folder, step, world.rank)

    def weights(self) -> dict[str, Tensor]:
        """The weights that are saved, whole and on the processor."""
        return full_weights(self._saved)

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
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "seconds": progress.seconds,
            "cpu_seconds": progress.cpu_seconds,
            "peak_memory": peak_memory(),
        }

    def _best(self, run: Run, last: dict[str, Any]) -> dict[str, Any]:
        best = self.progress.best
        if best is None:  # the last step is evaluated, so a checkpoint was changed
            raise UserError(
                f"{run.checkpoints}: its last one does not say which was the best; put back a copy"
            )
        if best["step"] == self.progress.step:
            return {"step": self.progress.step, **last}
        try:
            path = run.checkpoints / f"step-{best['step']:09d}"
            checkpoint.verify(path)
            self._load_weights(path)
        except UserError as error:
            run.notice(
                f"{error}; the best on the way is given as it was measured then, on fewer examples"
            )
            return best
        return {"step": best["step"], **self.evaluate()}

    def _load_weights(self, path: Path) -> None:
        """Fill what is saved; a model that is cut into parts takes its own of them."""
        checkpoint.load_model(path, self._saved, self.experiment.hash, cut_like)
