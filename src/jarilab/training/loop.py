"""The training loop."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from jarilab._version import __version__
from jarilab.core.errors import UserError
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import ReadOnlyRun, Run, continued
from jarilab.runs.origins import Origin, history, origin_of
from jarilab.runs.results import read_result
from jarilab.runs.signals import Interrupted, StopSignals
from jarilab.runs.snapshots import evenly_spread, write_snapshot
from jarilab.tasks.base import Task
from jarilab.training.batching import batches_of
from jarilab.training.checkpointing import Checkpointer
from jarilab.training.determinism import deterministic, seed_all
from jarilab.training.distributed.world import World, join_world
from jarilab.training.evaluation import Evaluator
from jarilab.training.execution import Execution, Report
from jarilab.training.memory import grow_onednn_cache, keep_freed_memory
from jarilab.training.preflight import (
    check_batch_size,
    check_continued,
    check_forward,
    check_lengths,
)
from jarilab.training.state import TrainingState
from jarilab.training.step import Steps
from jarilab.training.tensorboard import Board

CURVE_POINTS = 200
"""Rows of a curve, besides those of evaluations."""


def train(
    experiment: Experiment,
    out: Path,
    *,
    threads: int | None = None,
    snapshots: int = 0,
    report: Report | None = None,
    execution: Execution | None = None,
) -> dict[str, Any]:
    """Train an experiment into the folder `out`, resuming from its last checkpoint; returns the result.

    A finished run goes on if the experiment differs in a larger budget alone: the learning rate rises again, and falls
    to 0 at the new end (warm restart).

    threads: PyTorch's threads; only runs with the same number are bit-identical. snapshots: number of steps, evenly
    spread, whose weights are saved for good. execution: device and distribution. Under `torchrun` all processes train
    one model, and rank 0 alone writes files and calls `report`. Raises UserError, before the first file is written, for
    settings that do not fit, and if `out` holds another run. Raises `jarilab.runs.signals.Interrupted` after a signal,
    once a checkpoint is written.
    """
    deterministic(threads)
    keep_freed_memory()
    grow_onednn_cache()
    execution = execution or Execution()
    world, device = join_world(execution.device)
    try:
        with world.collective():
            experiment = continued(experiment, out)
            trainer = Trainer(experiment, replace(execution, device=device), world)
            return trainer.train_into(out, snapshots, report if world.is_writer else None)
    finally:
        world.close()


class Trainer:
    """Trains one experiment in one process of a world."""

    def __init__(self, experiment: Experiment, execution: Execution, world: World):
        self.experiment, self.execution, self.world = experiment, execution, world
        options = experiment.options
        with world.shared_errors():
            check_batch_size(options, world.size, execution.accumulate)
            task, self.longer = experiment.resolved.build_task_at(execution.eval_lengths)
            self.task, self.origin = task, origin_of(experiment)
            lengths = task.training_lengths
            self.batches = batches_of(options, task.training_size, lengths, experiment.seed)
            check_continued(experiment, self.batches.steps)
            self.state = TrainingState(experiment, task, execution, world, self.origin)
            self.board = Board(self.state)
        if not execution.shard:
            with world.shared_errors():
                check_forward(self.state.model, task, experiment, execution.device)
                check_lengths(self.state.model, task, list(self.longer.values()), experiment)
        self.steps = Steps(self.state, self.batches)
        self.checkpointer = Checkpointer(self.state)
        self.evaluator = Evaluator(self.state, self.checkpointer)

    def train_into(self, out: Path, snapshots: int, report: Report | None) -> dict[str, Any]:
        """Train into a run folder; returns the result. Raises UserError and Interrupted as `train` does."""
        # From here on only dropout draws random numbers.
        seed_all(self.experiment.seed, self.world)
        with self._open(out) as run, self.board, StopSignals() as stop:
            if run.result is not None:
                if missing := self._missing_lengths(run.result):
                    return self._measure_lengths(run, run.result, missing)
                run.notice(
                    f"{out} is finished already: this is its result; choose another --out to train anew"
                )
                return run.result
            self._resume(run)
            if self.state.progress.due is not None:
                self._evaluate(run, stop)
                self.checkpointer.save(run)
            self._run_steps(run, stop, snapshots, report)
            return self._finish(run, stop)

    def _missing_lengths(self, result: dict[str, Any]) -> dict[int, Task]:
        measured = result.get("lengths", {})
        return {length: at for length, at in self.longer.items() if str(length) not in measured}

    def _measure_lengths(
        self, run: Run, result: dict[str, Any], missing: dict[int, Task]
    ) -> dict[str, Any]:
        """Measure a finished run at the lengths that its result lacks."""
        self.checkpointer.load(run)
        lengths = result.get("lengths", {}) | self.evaluator.evaluate_lengths(missing)
        result = {**result, "lengths": lengths}
        run.finish(result, self.evaluator.outcomes)
        return result

    def _run_steps(
        self, run: Run, stop: StopSignals, snapshots: int, report: Report | None
    ) -> None:
        """Take all steps that are left, unless patience ends; raises Interrupted after a signal."""
        steps, first, saved = self.batches.steps, self.state.progress.step, time.monotonic()
        if snapshots and not first and self.origin is not None:
            self._save_snapshot(run)  # no seed gives these values
        restart = self.experiment.restart
        evaluated = evenly_spread(steps, self.experiment.options.evaluations, restart)
        snapshotted = evenly_spread(steps, snapshots, restart)
        log_every = max(1, (steps - restart) // CURVE_POINTS)
        for step in range(first, steps):
            if self._patience_ended(run):
                break
            # 1 Take one step.
            done = step + 1
            evaluates = done in evaluated or done == steps
            logs = evaluates or done % log_every == 0
            is_first = step == first
            row = self.steps.take(run, step, first=is_first, sync=logs or is_first)

            # 2 Save a snapshot, evaluate and log.
            # The snapshot comes first: after a signal in the evaluation, training resumes after this step.
            if done in snapshotted:
                self._save_snapshot(run)
            if evaluates:
                row = self._evaluate(run, stop)
            elif logs:
                row |= self.steps.curve_row()
                self._log(run, row)

            # 3 Save.
            # Read once: a later signal stops the next step, which is saved, too.
            signal, is_late = self._stop_requested(stop, saved)
            if evaluates or signal or is_late:
                self.steps.sync_losses(run, done)
                self.board.flush()
                self.checkpointer.save(run)
                saved = time.monotonic()
            if report is not None:
                report(row)
            if signal:
                raise Interrupted(signal)

    def _open(self, out: Path) -> Run:
        """The run folder: rank 0 opens it to write, the other ranks to read."""
        world, experiment = self.world, self.experiment
        data = self.task.fingerprint()
        version = f"jari {__version__}, torch {torch.__version__}"
        computed = self.execution.record() | world.record()
        world.check_equal(
            {"options": experiment.hash, "data": data, "code": version, "execution": computed}
        )
        run: Run | None = None
        with world.shared_errors():
            if world.is_writer:
                origin = None if self.origin is None else self.origin.record
                run = Run.open(out, experiment, data, self.task.artifacts(), computed, origin)
        finished = world.all_gather_text("finished" if run and run.result else "")[0]
        if run is not None:
            return run
        return ReadOnlyRun(out, read_result(out, experiment.hash) if finished else None)

    def _resume(self, run: Run) -> None:
        """Load the last checkpoint, if there is one."""
        state = self.state
        for notice in state.task.notices():
            run.notice(notice)
        self.checkpointer.load(run)
        step, steps = state.progress.step, self.batches.steps
        if step > steps:
            raise UserError(
                f"{run.checkpoints}: expected a checkpoint of step {steps:,} at most, got one of step {step:,}; put "
                "back a copy"
            )
        if step and step == self.experiment.restart:
            state.progress.evaluations_without_better = 0
            run.notice(
                f"{run.folder} was finished after step {step:,} and goes on to step {steps:,}: the learning rate rises "
                f"again to {self.experiment.options.lr:g} and falls to 0 (warm restart)"
            )
        elif step:
            run.notice(f"going on from step {step:,} of {steps:,}")
        elif self.origin is not None:
            self._start_from(run, self.origin)
        state.train()
        if self.world.is_writer:
            self.board.open(run, step)

    def _start_from(self, run: Run, origin: Origin) -> None:
        """Say what the training starts from."""
        options = self.experiment.options
        total = sum(parameter.numel() for parameter in self.state.model.parameters())
        frozen = sum(p.numel() for p in self.state.model.parameters() if not p.requires_grad)
        origins = history({"origin": origin.record, "experiment": {}})
        notes = [f"starting from {', '.join(origins)}", f"learning rate {options.lr:g}"]
        if origin.positions not in (None, options.positions):
            notes.append(f"positions {options.positions}, instead of {origin.positions} before")
        if frozen:
            notes.append(f"{frozen:,} of {total:,} parameters keep their values")
        run.notice("; ".join(notes))

    def _stop_requested(self, stop: StopSignals, saved: float) -> tuple[int, bool]:
        """The signal that any rank received (0 for none), and whether the time for a checkpoint has come."""
        minutes = self.execution.checkpoint_minutes
        is_late = minutes is not None and time.monotonic() - saved > 60 * minutes
        if not self.world.is_distributed:
            return stop.signal or 0, is_late
        signal, late = self.world.all_max([stop.signal or 0, is_late and self.world.is_writer])
        return int(signal), bool(late)

    def _interruptible(self, stop: StopSignals) -> AbstractContextManager[None]:
        """A block that a signal ends at once, if a checkpoint can then be written without the other ranks."""
        return stop.at_once() if self.world.size == 1 else nullcontext()

    def _evaluate(self, run: Run, stop: StopSignals) -> dict[str, Any]:
        """Evaluate on held-out data, log and give the row. After a signal it is repeated when training resumes."""
        progress = self.state.progress
        if progress.due is None:
            progress.due = self.steps.curve_row()
        try:
            with self._interruptible(stop):
                examples = self.experiment.options.evaluation_examples
                measured = self.evaluator.evaluate_midway(examples)
            self.state.train()
        except Interrupted:
            self.checkpointer.save(run)
            raise
        due, progress.due = progress.due, None
        # The loss of training comes last: the metric may be called loss, too.
        row = measured | self.steps.row() | due
        self._log(run, row)
        self.board.draw(self.state)
        return row

    def _log(self, run: Run, row: dict[str, Any]) -> None:
        run.log(row)
        self.board.log(row)

    def _finish(self, run: Run, stop: StopSignals) -> dict[str, Any]:
        """Evaluate on all held-out data and write the result."""
        with self._interruptible(stop):
            result = self.evaluator.result(run, self.longer)
        for notice in self.task.held_out_notices():
            # Held-out data taken from the training data have the same notices.
            if notice not in self.task.notices():
                run.notice(notice)
        run.finish(result, self.evaluator.outcomes)
        return result

    def _patience_ended(self, run: Run) -> bool:
        patience, progress = self.experiment.options.patience, self.state.progress
        if patience is None or progress.evaluations_without_better < patience:
            return False
        title = self.task.metric.title
        run.notice(
            f"no better {title} in {patience} evaluations: stopped early, after step {progress.step}"
        )
        return True

    def _save_snapshot(self, run: Run) -> None:
        """Save the weights for good."""
        weights = self.state.weights()
        if self.world.is_writer:
            write_snapshot(run.folder, self.state.progress.step, weights, self.experiment.hash)
