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

from jari.errors import UserError
from jari.init import generator_for, initialise
from jari.inspect.capture import record
from jari.tasks.base import Task
from jari.training import checkpoint
from jari.training.answering import evaluate
from jari.training.experiment import Experiment
from jari.training.optim import build_optimizers
from jari.training.order import order_of
from jari.training.run import Interrupted, Run, StopSignals

Report = Callable[[dict[str, Any]], None]
"""Told after every step how far training is: step, steps, examples, loss, and `measured` where it was measured."""

CURVE_POINTS = 200


def train(
    experiment: Experiment, out: Path, *, threads: int | None = None, report: Report | None = None
) -> dict[str, Any]:
    """Train as `experiment` says, into the folder `out`, and give the result; go on if it was begun there before.

    threads: of torch, 1 to the number of cores; results are bit-identical for the same number only.
    Raises UserError if `out` holds another run, and `training.run.Interrupted` after a signal, when a checkpoint has
    been written.
    """
    deterministic(threads)
    options = experiment.options
    task = experiment.task_instance()
    model = experiment.model_instance(task)
    initialise(model, experiment.seed)
    optimizers = build_optimizers(model, options)
    averaged = _average_of(model, options.average)
    order = order_of(options, task.training_size, task.training_lengths, experiment.seed)
    torch.manual_seed(experiment.seed)  # from here on only dropout draws from it

    with Run.open(out, experiment, task.fingerprint(), task.kept()) as run, StopSignals() as stop:
        if run.result is not None:
            return run.result
        for notice in task.notices():
            run.notice(notice)
        state = _begun(run, experiment, model, optimizers, averaged)
        looks = {round(order.steps * k / options.evaluations) for k in range(1, options.evaluations + 1)} | {
            order.steps
        }
        every = max(1, order.steps // CURVE_POINTS)
        begun = state["step"]
        model.train()
        for step in range(begun, order.steps):
            if options.patience is not None and state["looks_without_better"] >= options.patience:
                run.notice(
                    f"no better {task.metric.title} in {options.patience} looks: stopped early, after step {step}"
                )
                break
            wall, cpu = time.perf_counter(), time.process_time()
            batch = task.training_batch(order.at(step), generator_for(experiment.seed, f"batch/{step}"))
            for optimizer in optimizers.values():
                for group in optimizer.param_groups:
                    group["lr"] = options.rate(step, order.steps)
            with autocast(experiment.precision), _note_kernels(run, model, needed=step == begun):
                scores = model(*batch.inputs)
            loss = task.loss(scores, batch, options.label_smoothing)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            state["losses"].append(loss.item())
            if not math.isfinite(state["losses"][-1]) or not math.isfinite(norm.item()):
                raise UserError(_not_finite(step + 1, state["losses"][-1], norm.item(), run.checkpoints))
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            if averaged is not None:
                averaged.update_parameters(model)
            state["examples"] += len(batch.labels)
            state["seconds"] += time.perf_counter() - wall
            state["cpu_seconds"] += time.process_time() - cpu

            state["step"] = done = step + 1
            row = {"step": done, "steps": order.steps, "examples": state["examples"], "loss": state["losses"][-1]}
            if done in looks or done % every == 0:
                row |= {"loss": math.fsum(state["losses"]) / len(state["losses"]), "gradient_norm": norm.item()}
                row |= {"learning_rate": options.rate(step, order.steps)}
                row |= {key: state[key] for key in ("seconds", "cpu_seconds")}
                state["losses"].clear()
            if done in looks:
                # The loss of training stands first: the metric may be a loss too.
                row = _look(task, _measured(model, averaged), options.evaluation_examples, state) | row
            if "gradient_norm" in row:
                run.log(row)
            stopping = stop.signal  # asked once: a signal from here on is for the next step, which will be saved too
            if done in looks or stopping:
                _save(run, experiment, model, optimizers, averaged, state)
            if report is not None:
                report(row)
            if stopping:
                raise Interrupted(stopping)

        result = _final(experiment, task, _measured(model, averaged), run, state)
        run.finish(result)
        return result


def _average_of(model: nn.Module, decay: float) -> AveragedModel | None:
    """A copy of the model that follows it as a moving average, or None where none is asked for."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)) if decay else None


def _final(experiment: Experiment, task: Task, model: nn.Module, run: Run, state: dict[str, Any]) -> dict[str, Any]:
    """Measure the last checkpoint on all held-out data, and the best one (by the looks on the way) if it is another."""
    last = evaluate(model, task)
    best = {"step": state["step"], **last}
    if state["best"]["step"] != state["step"]:
        path = run.checkpoints / f"step-{state['best']['step']:09d}"
        try:
            checkpoint.verify(path)
            checkpoint.load_model(path, model, experiment.hash)
            best = {"step": state["best"]["step"], **evaluate(model, task)}
        except UserError as error:
            run.notice(f"{error}; the best on the way is given as it was measured then, on fewer examples")
            best = state["best"]
    return {
        "hash": experiment.hash,
        "encoding": experiment.encoding,
        "seed": experiment.seed,
        "metric": task.metric.name,
        **last,
        "best": best,
        "ceiling": task.ceiling(),
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


def _begun(
    run: Run,
    experiment: Experiment,
    model: nn.Module,
    optimizers: dict[str, torch.optim.Optimizer],
    averaged: AveragedModel | None,
) -> dict[str, Any]:
    """Take up the newest whole checkpoint, if there is one, and give where training stands.

    losses: since the last row of the curve. looks_without_better: of the metric, for early stopping.
    """
    checkpoint.remove_leftovers(run.checkpoints)
    begun, problems = checkpoint.newest(run.checkpoints)
    for problem in problems:
        run.notice(problem)
    state: dict[str, Any] = {"step": 0, "examples": 0, "seconds": 0.0, "cpu_seconds": 0.0, "best": None}
    state |= {"losses": [], "looks_without_better": 0}
    if begun is not None:
        checkpoint.load_model(begun, _measured(model, averaged), experiment.hash)
        state = checkpoint.load_training(begun, optimizers, None if averaged is None else model)
        if averaged is not None:
            averaged.n_averaged.fill_(state["step"])
    run.cut_metrics(state["step"])
    return state


def _look(task: Task, model: nn.Module, examples: int, state: dict[str, Any]) -> dict[str, Any]:
    """Measure on the way, and note whether it is the best so far."""
    measured = evaluate(model, task, examples)
    value, name = measured[task.metric.name], task.metric.name
    state["looks_without_better"] += 1
    if state["best"] is None or not task.metric.better(state["best"][name], value):
        if state["best"] is None or value != state["best"][name]:
            state["looks_without_better"] = 0
        state["best"] = {"step": state["step"], name: value}
    held_out = measured.pop("examples")
    shown = f"held-out {task.metric.title} {task.metric.text(value)}"
    return {**measured, "value": value, "held_out": held_out, "measured": shown}


def _save(
    run: Run,
    experiment: Experiment,
    model: nn.Module,
    optimizers: dict[str, torch.optim.Optimizer],
    averaged: AveragedModel | None,
    state: dict[str, Any],
) -> None:
    kept = set() if state["best"] is None else {state["best"]["step"]}
    record_of_step = state | {"run": experiment.hash}
    raw = None if averaged is None else model
    measured = _measured(model, averaged)
    checkpoint.save(run.checkpoints, state["step"], measured, optimizers, record_of_step, kept, raw)


def _measured(model: nn.Module, averaged: AveragedModel | None) -> nn.Module:
    """The weights that are measured, kept and used: the average's, where there is one."""
    return model if averaged is None else averaged.module
