"""Training, top to bottom."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jarilab.errors import UserError
from jarilab.inspect.capture import record
from jarilab.inspect.sites import attentions_of
from jarilab.nn.init import generator_for
from jarilab.runs import checkpoint
from jarilab.runs import snapshots as snapshot
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import Run
from jarilab.runs.signals import Interrupted, StopSignals
from jarilab.tasks.base import Task
from jarilab.training.batching import Batches, batches_of
from jarilab.training.memory import keep_freed_memory
from jarilab.training.state import Progress, TrainingState

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
) -> dict[str, Any]:
    """Train as `experiment` says, into the folder `out`, and give the result; go on if it was begun there before.

    threads: of torch; results are bit-identical for the same number only. snapshots: at how many steps, evenly spread,
    to keep the weights for good; they change nothing else.
    Raises UserError if `out` holds another run, and `jarilab.runs.signals.Interrupted` after a signal, when a
    checkpoint has been written. Nothing is written before everything has been checked.
    """
    deterministic(threads)
    keep_freed_memory()
    options = experiment.options
    task = experiment.task_instance()
    state = TrainingState(experiment, task)
    batches = batches_of(options, task.training_size, task.training_lengths, experiment.seed)
    _check_forward(state.model, task, batches, experiment)
    evaluations = evenly_spread(batches.steps, options.evaluations) | {batches.steps}
    pictured = snapshot.planned(batches.steps, snapshots)
    every = max(1, batches.steps // CURVE_POINTS)
    torch.manual_seed(experiment.seed)  # from here on only dropout draws from it

    with (
        Run.open(out, experiment, task.fingerprint(), task.artifacts()) as run,
        StopSignals() as stop,
    ):
        if run.result is not None:
            run.notice(
                f"{out} is finished already: this is its result; choose another --out to train anew"
            )
            return run.result
        _begin(run, state, batches.steps)
        begun = state.progress.step
        for step in range(begun, batches.steps):
            if _patience_ended(run, state):
                break
            # 1 one step
            norm, rate = _step(run, state, batches, step, first=step == begun)
            done = step + 1

            # 2 evaluate and log
            row = _row(state.progress, batches.steps, task.tokens_per_example)
            if done in evaluations or done % every == 0:
                row |= _curve_row(state.progress, norm, rate)
                if done in evaluations:
                    # The loss of training stands first: the metric may be a loss too.
                    row = state.evaluate_on_the_way(options.evaluation_examples) | row
                run.log(row)

            # 3 save
            # Asked once: a signal from here on is for the next step, which will be saved too.
            stopping = stop.signal
            if done in pictured:
                snapshot.save(run.folder, done, state.evaluated, experiment.hash)
            if done in evaluations or stopping:
                state.save(run)
            if report is not None:
                report(row)
            if stopping:
                raise Interrupted(stopping)
        return _finish(run, state)


def _begin(run: Run, state: TrainingState, steps: int) -> None:
    """Go on from the last checkpoint, if there is one."""
    for notice in state.task.notices():
        run.notice(notice)
    state.load(run)
    if state.progress.step > steps:
        raise UserError(
            f"the newest checkpoint in {run.checkpoints} is of step {state.progress.step:,}, and this training has "
            f"{steps:,}; put back a copy"
        )
    if state.progress.step:
        run.notice(f"going on from step {state.progress.step:,} of {steps:,}")
    state.model.train()


def _step(
    run: Run, state: TrainingState, batches: Batches, step: int, *, first: bool
) -> tuple[float, float]:
    """One step of training; gives the norm of its gradient, and the learning rate. first: of this process."""
    experiment, task, progress = state.experiment, state.task, state.progress
    options = experiment.options
    wall, cpu = time.perf_counter(), time.process_time()

    chance = generator_for(experiment.seed, f"batch/{step}")
    batch = task.training_batch(batches.at(step), chance)
    with autocast(experiment.precision), _note_kernels(run, state.model, needed=first):
        scores = state.model(*batch.inputs)
    loss = task.loss(scores, batch, options.label_smoothing)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(state.model.parameters(), options.clip).item()
    progress.losses.append(loss.item())
    _check_finite(progress, norm, run.checkpoints)
    rate = options.rate(step, batches.steps)
    state.update(rate)

    progress.step = step + 1
    progress.examples += len(batch.labels)
    progress.seconds += time.perf_counter() - wall
    progress.cpu_seconds += time.process_time() - cpu
    return norm, rate


def _finish(run: Run, state: TrainingState) -> dict[str, Any]:
    """Measure on all held-out data, and write the result down."""
    result = state.result(run)
    for notice in state.task.held_out_notices():
        # Held-out data taken from the training data share its notices.
        if notice not in state.task.notices():
            run.notice(notice)
    run.finish(result)
    return result


def check_trainable(experiment: Experiment, task: Task) -> None:
    """Raises UserError where the model of an experiment cannot be built or cannot read what the task gives."""
    model = experiment.model_instance(task)
    options, lengths = experiment.options, task.training_lengths
    batches = batches_of(options, task.training_size, lengths, experiment.seed)
    _check_forward(model, task, batches, experiment)


@torch.no_grad()
def _check_forward(model: nn.Module, task: Task, batches: Batches, experiment: Experiment) -> None:
    """One forward of two examples: an encoding of rows and columns, for one, cannot read a text, and not every
    processor computes every layer in bfloat16."""
    batch = task.training_batch(batches.at(0)[:2], generator_for(0, "check"))
    training, precision = model.training, experiment.precision
    model.eval()
    try:
        with autocast(precision):
            model(*batch.inputs)
    except UserError as error:
        raise UserError(f"with the encoding {experiment.encoding}: {error}") from None
    except RuntimeError as error:
        if precision == "float32":
            raise
        raise UserError(
            f"this processor cannot compute {type(model).__name__} in {precision}: {error}; "
            "use --precision float32"
        ) from None
    model.train(training)


def evenly_spread(steps: int, count: int) -> set[int]:
    """`count` steps of a training of so many, the last one among them."""
    return {round(steps * number / count) for number in range(1, count + 1)}


def autocast(precision: str) -> torch.autocast:
    """Matrix products in bfloat16 where the experiment says so; parameters, norms and the loss stay float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")


def deterministic(threads: int | None) -> None:
    """Make results depend on the seed and the number of threads alone."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _row(progress: Progress, steps: int, tokens_per_example: int | None) -> dict[str, Any]:
    done = {"step": progress.step, "steps": steps, "examples": progress.examples}
    if tokens_per_example is not None:
        done["tokens"] = progress.examples * tokens_per_example
    return {**done, "loss": progress.losses[-1]}


def _curve_row(progress: Progress, norm: float, rate: float) -> dict[str, Any]:
    """What a point of the curve has beside; its loss is the mean since the last one."""
    mean = math.fsum(progress.losses) / len(progress.losses)
    progress.losses.clear()
    times = {"seconds": progress.seconds, "cpu_seconds": progress.cpu_seconds}
    return {"loss": mean, "gradient_norm": norm, "learning_rate": rate, **times}


def _patience_ended(run: Run, state: TrainingState) -> bool:
    patience, progress = state.experiment.options.patience, state.progress
    if patience is None or progress.evaluations_without_better < patience:
        return False
    title = state.task.metric.title
    run.notice(
        f"no better {title} in {patience} evaluations: stopped early, after step {progress.step}"
    )
    return True


@contextlib.contextmanager
def _note_kernels(run: Run, model: nn.Module, *, needed: bool) -> Iterator[None]:
    """Write down, at the first step, which kernel each attention chose. A model of one's own may have none of ours."""
    if not needed or not attentions_of(model):
        yield
        return
    with record(model) as tape:
        yield
    run.note_kernels(tape.kernels())


def _check_finite(progress: Progress, norm: float, checkpoints: Path) -> None:
    """Raises UserError where training would go on from numbers that are none."""
    loss = progress.losses[-1]
    if math.isfinite(loss) and math.isfinite(norm):
        return
    kept = checkpoint.newest(checkpoints)[0]
    last = f"{kept} is the last checkpoint" if kept else "there is no checkpoint yet"
    raise UserError(
        f"step {progress.step + 1}: the loss is {loss} and the norm of its gradient {norm}, so training stopped before "
        f"the update; {last}. "
        "A lower training.learning_rate or training.clip, a longer training.warm_up or --precision float32 may help"
    )
