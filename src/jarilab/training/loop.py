"""Training, top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from jarilab._version import __version__
from jarilab.core.errors import UserError
from jarilab.runs import snapshots as snapshot
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import Run
from jarilab.runs.results import read_result
from jarilab.runs.signals import Interrupted, StopSignals
from jarilab.training.batching import batches_of
from jarilab.training.checks import check_forward, check_parts
from jarilab.training.distributed.onlooker import Onlooker
from jarilab.training.distributed.world import World, joined
from jarilab.training.execution import Execution
from jarilab.training.memory import keep_freed_memory, keep_kernels
from jarilab.training.numerics import deterministic
from jarilab.training.randomness import seed_all
from jarilab.training.state import TrainingState
from jarilab.training.step import Steps
from jarilab.training.tensorboard import Board

Report = Callable[[dict[str, Any]], None]
"""Told after every step how far training is: step, steps, examples, loss, and `measured` where it was measured."""

CURVE_POINTS = 200


def train(
    experiment: Experiment,
    out: Path,
    *,
    threads: int | None = None,
    snapshots: int = 0,
    report: Report | None = None,
    execution: Execution | None = None,
) -> dict[str, Any]:
    """Train as `experiment` says, into the folder `out`, and give the result; go on if it was begun there before.

    threads: of torch; results are bit-identical for the same number only. snapshots: at how many steps, evenly spread,
    to keep the weights for good; they change nothing else. execution: where and how it is computed.
    Under `torchrun` all its processes train one model; the first one writes, and `report` is told by it alone.
    Raises UserError if `out` holds another run, and `jarilab.runs.signals.Interrupted` after a signal, when a
    checkpoint has been written. Nothing is written before everything has been checked.
    """
    deterministic(threads)
    keep_freed_memory()
    keep_kernels()
    execution = execution or Execution()
    world, device = joined(execution.device)
    try:
        with world.together():
            training = Training(experiment, replace(execution, device=device), world)
            return training.into(out, snapshots, report if world.writes else None)
    finally:
        world.end()


class Training:
    """A training, as one process of a world computes it."""

    def __init__(self, experiment: Experiment, execution: Execution, world: World):
        self.experiment, self.execution, self.world = experiment, execution, world
        options = experiment.options
        with world.one_error_for_all():
            check_parts(options, world.size, execution.accumulate)
            self.task = task = experiment.resolved.build_task()
            lengths = task.training_lengths
            self.batches = batches_of(options, task.training_size, lengths, experiment.seed)
            self.state = TrainingState(experiment, task, execution, world)
            self.board = Board(experiment, task, execution)
        if not execution.shard:
            with world.one_error_for_all():
                check_forward(self.state.model, task, self.batches, experiment)
        self.steps = Steps(self.state, self.batches)

    def into(self, out: Path, snapshots: int, report: Report | None) -> dict[str, Any]:
        """Train into a folder; gives the result."""
        options, state, steps = self.experiment.options, self.state, self.batches.steps
        evaluations = evenly_spread(steps, options.evaluations) | {steps}
        pictured = snapshot.planned(steps, snapshots)
        every = max(1, steps // CURVE_POINTS)
        seed_all(self.experiment.seed, self.world)  # from here on only dropout draws from it
        with self._open(out) as run, self.board, StopSignals() as stop:
            if run.result is not None:
                run.notice(
                    f"{out} is finished already: this is its result; choose another --out to train anew"
                )
                return run.result
            self._begin(run)
            begun, saved = state.progress.step, time.monotonic()
            if state.progress.due is not None:  # a signal came before it was evaluated
                self._evaluate(run, stop)
                state.save(run)
            for step in range(begun, steps):
                if self._patience_ended(run):
                    break
                # 1 one step
                done = step + 1
                logs = done in evaluations or done % every == 0
                row = self.steps.take(run, step, first=step == begun, asks=logs or step == begun)

                # 2 evaluate and log
                if done in evaluations:
                    row = self._evaluate(run, stop)
                elif logs:
                    row |= self.steps.curve_row()
                    self._log(run, row)

                # 3 save
                # Asked once: a signal from here on is for the next step, which will be saved too.
                stopping, late = self._asked_to_stop(stop, saved)
                if done in pictured:
                    self._take_snapshot(run)
                if done in evaluations or stopping or late:
                    self.steps.ask(run, done)
                    self.board.flush()
                    state.save(run)
                    saved = time.monotonic()
                if report is not None:
                    report(row)
                if stopping:
                    raise Interrupted(stopping)
            return self._finish(run, stop)

    def _open(self, out: Path) -> Run:
        """The folder of the run: the first process opens it, and the others go by what it found there."""
        world, experiment = self.world, self.experiment
        data = self.task.fingerprint()
        version = f"jari {__version__}, torch {torch.__version__}"
        computed = self.execution.record() | world.record()
        world.agree({"options": experiment.hash, "data": data, "code": version, "how": computed})
        run: Run | None = None
        with world.one_error_for_all():
            if world.writes:
                run = Run.open(out, experiment, data, self.task.artifacts(), computed)
        finished = world.texts("finished" if run and run.result else "")[0]
        if run is not None:
            return run
        return Onlooker(out, read_result(out, experiment.hash) if finished else None)

    def _begin(self, run: Run) -> None:
        """Go on from the last checkpoint, if there is one."""
        state = self.state
        for notice in state.task.notices():
            run.notice(notice)
        state.load(run)
        begun, steps = state.progress.step, self.batches.steps
        if begun > steps:
            raise UserError(
                f"the newest checkpoint in {run.checkpoints} is of step {begun:,}, and this training has {steps:,}; "
                "put back a copy"
            )
        if begun:
            run.notice(f"going on from step {begun:,} of {steps:,}")
        state.model.train()
        if self.world.writes:
            self.board.open(run, begun)

    def _asked_to_stop(self, stop: StopSignals, saved: float) -> tuple[int, bool]:
        """The signal that any process got, 0 for none; and whether a checkpoint is due by the clock."""
        minutes = self.execution.checkpoint_minutes
        late = minutes is not None and time.monotonic() - saved > 60 * minutes
        if not self.world.several:
            return stop.signal or 0, late
        signals, due = self.world.most([stop.signal or 0, late and self.world.writes])
        return int(signals), bool(due)

    def _evaluate(self, run: Run, stop: StopSignals) -> dict[str, Any]:
        """Measure the task's metric on held-out data, and log it. A signal ends it at once, where a checkpoint can be
        written without the others; it is then evaluated when training goes on. Gives the row of the curve."""
        state, progress = self.state, self.state.progress
        if progress.due is None:
            progress.due = self.steps.curve_row()
        try:
            with stop.at_once(self.world.size == 1):
                # The loss of training stands first: the metric may be a loss too.
                examples = self.experiment.options.evaluation_examples
                measured = state.evaluate_on_the_way(examples)
        except Interrupted:
            state.save(run)
            raise
        due, progress.due = progress.due, None
        row = measured | self.steps.row() | due
        self._log(run, row)
        self.board.look(state)
        return row

    def _log(self, run: Run, row: dict[str, Any]) -> None:
        """A row of the curve."""
        run.log(row)
        self.board.log(row)

    def _finish(self, run: Run, stop: StopSignals) -> dict[str, Any]:
        """Measure on all held-out data, and write the result down."""
        with stop.at_once(self.world.size == 1):
            result = self.state.result(run)
        for notice in self.task.held_out_notices():
            # Held-out data taken from the training data share its notices.
            if notice not in self.task.notices():
                run.notice(notice)
        run.finish(result)
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

    def _take_snapshot(self, run: Run) -> None:
        """Keep the weights for good."""
        weights = self.state.weights()
        if self.world.writes:
            snapshot.save(run.folder, self.state.progress.step, weights, self.experiment.hash)


def evenly_spread(steps: int, count: int) -> set[int]:
    """`count` steps of a training of so many, the last one among them."""
    return {round(steps * number / count) for number in range(1, count + 1)}
