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
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from jarilab.errors import UserError
from jarilab.inspect.capture import record
from jarilab.nn.init import generator_for, initialise
from jarilab.runs import checkpoint
from jarilab.runs import snapshots as snapshot
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import Interrupted, Run, StopSignals
from jarilab.tasks.base import Task
from jarilab.training.answering import evaluate
from jarilab.training.batching import batches_of
from jarilab.training.memory import keep_freed_memory
from jarilab.training.optim import build_optimizers

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

    threads: of torch, 1 to the number of cores; results are bit-identical for the same number only. snapshots: at how
    many steps, evenly spread, to keep the weights for good; they change nothing else.
    Raises UserError if `out` holds another run, and `training.run.Interrupted` after a signal, when a checkpoint has
    been written.
    """
    deterministic(threads)
    keep_freed_memory()
    options = experiment.options
    task = experiment.task_instance()
    learning = Learning(experiment, task)
    model, state = learning.model, learning.state
    order = batches_of(options, task.training_size, task.training_lengths, experiment.seed)
    looks = {
        round(order.steps * k / options.evaluations) for k in range(1, options.evaluations + 1)
    } | {order.steps}
    pictured = snapshot.planned(order.steps, snapshots)
    every = max(1, order.steps // CURVE_POINTS)
    torch.manual_seed(experiment.seed)  # from here on only dropout draws from it

    with Run.open(out, experiment, task.fingerprint(), task.kept()) as run, StopSignals() as stop:
        if run.result is not None:
            return run.result
        for notice in task.notices():
            run.notice(notice)
        learning.load(run)
        begun = state["step"]
        model.train()
        for step in range(begun, order.steps):
            if options.patience is not None and state["looks_without_better"] >= options.patience:
                run.notice(
                    f"no better {task.metric.title} in {options.patience} looks: stopped early, after step {step}"
                )
                break
            wall, cpu = time.perf_counter(), time.process_time()
            batch = task.training_batch(
                order.at(step), generator_for(experiment.seed, f"batch/{step}")
            )
            with autocast(experiment.precision), _note_kernels(run, model, needed=step == begun):
                scores = model(*batch.inputs)
            loss = task.loss(scores, batch, options.label_smoothing)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), options.clip).item()
            state["losses"].append(loss.item())
            if not math.isfinite(state["losses"][-1]) or not math.isfinite(norm):
                raise UserError(_not_finite(step + 1, state["losses"][-1], norm, run.checkpoints))
            rate = options.rate(step, order.steps)
            learning.update(rate)
            state["examples"] += len(batch.labels)
            state["seconds"] += time.perf_counter() - wall
            state["cpu_seconds"] += time.process_time() - cpu

            state["step"] = done = step + 1
            row = {
                "step": done,
                "steps": order.steps,
                "examples": state["examples"],
                "loss": state["losses"][-1],
            }
            if done in looks or done % every == 0:
                row |= {
                    "loss": math.fsum(state["losses"]) / len(state["losses"]),
                    "gradient_norm": norm,
                }
                row |= {
                    "learning_rate": rate,
                    "seconds": state["seconds"],
                    "cpu_seconds": state["cpu_seconds"],
                }
                state["losses"].clear()
                if done in looks:
                    # The loss of training stands first: the metric may be a loss too.
                    row = learning.look(options.evaluation_examples) | row
                run.log(row)
            stopping = (
                stop.signal
            )  # asked once: a signal from here on is for the next step, which will be saved too
            if done in pictured:
                snapshot.save(run.folder, done, learning.measured, experiment.hash)
            if done in looks or stopping:
                learning.save(run)
            if report is not None:
                report(row)
            if stopping:
                raise Interrupted(stopping)

        result = learning.result(run)
        for notice in task.held_out_notices():
            if (
                notice not in task.notices()
            ):  # held-out data taken from the training data share its notices
                run.notice(notice)
        run.finish(result)
        return result


class Learning:
    """A model on its way, and all else that a checkpoint keeps.

    averaged: a copy that follows the model as a moving average, where one is asked for. state: step, examples,
    seconds; `losses` since the last row of the curve; the `best` look and the `looks_without_better`.
    """

    def __init__(self, experiment: Experiment, task: Task):
        options = experiment.options
        self.experiment, self.task = experiment, task
        self.model = experiment.model_instance(task)
        initialise(self.model, experiment.seed)
        self.optimizers = build_optimizers(self.model, options)
        self.averaged: AveragedModel | None = None
        if options.average:
            self.averaged = AveragedModel(
                self.model, multi_avg_fn=get_ema_multi_avg_fn(options.average)
            )
        self.state: dict[str, Any] = {
            "step": 0,
            "examples": 0,
            "seconds": 0.0,
            "cpu_seconds": 0.0,
            "best": None,
        }
        self.state |= {"losses": [], "looks_without_better": 0}

    @property
    def measured(self) -> nn.Module:
        """The weights that are measured, kept and used: the average's, where there is one."""
        return self.model if self.averaged is None else self.averaged.module

    def load(self, run: Run) -> None:
        """Take up the newest whole checkpoint, if there is one."""
        checkpoint.remove_leftovers(run.checkpoints)
        begun, problems = checkpoint.newest(run.checkpoints)
        for problem in problems:
            run.notice(problem)
        if begun is not None:
            checkpoint.load_model(begun, self.measured, self.experiment.hash)
            self.state |= checkpoint.load_training(
                begun, self.optimizers, None if self.averaged is None else self.model
            )
            if self.averaged is not None:
                self.averaged.n_averaged.fill_(self.state["step"])
        run.cut_metrics(self.state["step"])

    def save(self, run: Run) -> None:
        state = {**self.state, "run": self.experiment.hash}
        best = set() if state["best"] is None else {state["best"]["step"]}
        raw = None if self.averaged is None else self.model
        checkpoint.save(
            run.checkpoints, state["step"], self.measured, self.optimizers, state, best, raw
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

    def look(self, examples: int) -> dict[str, Any]:
        """Measure on the way, and note whether it is the best so far."""
        metric, state = self.task.metric, self.state
        measured = evaluate(self.measured, self.task, examples)
        value, best = measured[metric.name], state["best"]
        state["looks_without_better"] += 1
        if best is None or not metric.better(best[metric.name], value):
            if best is None or value != best[metric.name]:
                state["looks_without_better"] = 0
            state["best"] = {"step": state["step"], metric.name: value}
        held_out = measured.pop("examples")
        return {
            **measured,
            "value": value,
            "held_out": held_out,
            "measured": f"held-out {metric.title} {metric.text(value)}",
        }

    def result(self, run: Run) -> dict[str, Any]:
        """Measure the last weights on all held-out data, and the best (by the looks on the way) if they are others."""
        state, model = self.state, self.measured
        last = evaluate(model, self.task)
        best = {"step": state["step"], **last}
        if state["best"]["step"] != state["step"]:
            path = run.checkpoints / f"step-{state['best']['step']:09d}"
            try:
                checkpoint.verify(path)
                checkpoint.load_model(path, model, self.experiment.hash)
                best = {"step": state["best"]["step"], **evaluate(model, self.task)}
            except UserError as error:
                run.notice(
                    f"{error}; the best on the way is given as it was measured then, on fewer examples"
                )
                best = state["best"]
        return {
            "hash": self.experiment.hash,
            "encoding": self.experiment.encoding,
            "seed": self.experiment.seed,
            "metric": self.task.metric.name,
            **last,
            "best": best,
            "ceiling": self.task.ceiling(),
            "steps": state["step"],
            "trained_examples": state["examples"],
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "seconds": state["seconds"],
            "cpu_seconds": state["cpu_seconds"],
        }


def autocast(precision: str) -> torch.autocast:
    """Matrix products in bfloat16 where the experiment says so; parameters, norms and the loss stay float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")


def deterministic(threads: int | None) -> None:
    """Make results depend on the seed and the number of threads alone."""
    if threads is not None:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextlib.contextmanager
def _note_kernels(run: Run, model: nn.Module, *, needed: bool) -> Iterator[None]:
    """Write down, at the first step, which kernel each attention chose."""
    if not needed:
        yield
        return
    with record(model) as tape:
        yield
    run.note_kernels(tape.kernels())


def _not_finite(step: int, loss: float, norm: float, checkpoints: Path) -> str:
    kept = checkpoint.newest(checkpoints)[0]
    return (
        f"step {step}: the loss is {loss} and the norm of its gradient {norm}, so training stopped before the update; "
        f"{f'{kept} is the last checkpoint' if kept else 'there is no checkpoint yet'}. "
        "A lower training.learning_rate or training.clip, a longer training.warm_up or --precision float32 may help"
    )
