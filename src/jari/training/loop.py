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

from jari.decoding import greedy
from jari.errors import UserError
from jari.init import initialise
from jari.inspect.capture import record
from jari.positions import Tokens
from jari.tasks.base import Task
from jari.text import END, FIRST, PADDING
from jari.training import checkpoint
from jari.training.experiment import Experiment
from jari.training.optim import build_optimizers
from jari.training.order import DataOrder
from jari.training.run import Interrupted, Run, StopSignals

Report = Callable[[dict[str, Any]], None]
"""Told after every step how far training is: step, steps, examples, loss, and exact_match where it was measured."""

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
    order = DataOrder(task.training_size, options.batch, experiment.seed)
    torch.manual_seed(experiment.seed)  # from here on only dropout draws from it

    with Run.open(out, experiment, task.fingerprint()) as run, StopSignals() as stop:
        if run.result is not None:
            return run.result
        # losses: since the last row of the curve.
        state: dict[str, Any] = {"step": 0, "seconds": 0.0, "cpu_seconds": 0.0, "best": None, "losses": []}
        checkpoint.remove_leftovers(run.checkpoints)
        begun, problems = checkpoint.newest(run.checkpoints)
        for problem in problems:
            run.notice(problem)
        if begun is not None:
            checkpoint.load_model(begun, model, experiment.hash)
            state = checkpoint.load_training(begun, optimizers)
        run.cut_metrics(state["step"])

        looks = {round(options.steps * k / options.evaluations) for k in range(1, options.evaluations + 1)}
        every = max(1, options.steps // CURVE_POINTS)
        losses: list[float] = state["losses"]
        model.train()
        for step in range(state["step"], options.steps):
            wall, cpu = time.perf_counter(), time.process_time()
            batch = task.training_batch(order.at(step))
            for optimizer in optimizers.values():
                for group in optimizer.param_groups:
                    group["lr"] = options.rate(step)
            with autocast(experiment.precision), _note_kernels(run, model, needed=step == state["step"]):
                scores = model(*batch.inputs)
            loss = task.loss(scores, batch)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]) or not math.isfinite(norm.item()):
                raise UserError(_not_finite(step + 1, losses[-1], norm.item(), run.checkpoints))
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            state["seconds"] += time.perf_counter() - wall
            state["cpu_seconds"] += time.process_time() - cpu

            done = step + 1
            row = {"step": done, "steps": options.steps, "examples": done * options.batch, "loss": losses[-1]}
            look = done in looks or done == options.steps
            if look or done % every == 0:
                row |= {"loss": math.fsum(losses) / len(losses), "learning_rate": options.rate(step)}
                row |= {"gradient_norm": norm.item()} | {key: state[key] for key in ("seconds", "cpu_seconds")}
                losses.clear()
            if look:
                measured = evaluate(model, task, options.evaluation_examples)
                row |= measured | {"examples": row["examples"], "held_out": measured["examples"]}
                if state["best"] is None or row["exact_match"] >= state["best"]["exact_match"]:
                    state["best"] = {"step": done, "exact_match": row["exact_match"]}
            if "gradient_norm" in row:
                run.log(row)
            stopping = stop.signal  # asked once: a signal from here on is for the next step, which will be saved too
            if look or stopping:
                kept = set() if state["best"] is None else {state["best"]["step"]}
                record_of_step = state | {"step": done, "run": experiment.hash}
                checkpoint.save(run.checkpoints, done, model, optimizers, record_of_step, kept)
            if report is not None:
                report(row)
            if stopping:
                raise Interrupted(stopping)

        result = _final(experiment, task, model, run, state)
        run.finish(result)
        return result


def _final(experiment: Experiment, task: Task, model: nn.Module, run: Run, state: dict[str, Any]) -> dict[str, Any]:
    """Measure the last checkpoint on all held-out data, and the best one (by the looks on the way) if it is another."""
    options = experiment.options
    last = evaluate(model, task)
    best = {"step": options.steps, **last}
    if state["best"]["step"] != options.steps:
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
        **last,
        "best": best,
        "ceiling": task.ceiling(),
        "steps": options.steps,
        "trained_examples": options.steps * options.batch,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": state["seconds"],
        "cpu_seconds": state["cpu_seconds"],
    }


def evaluate(model: nn.Module, task: Task, examples: int | None = None) -> dict[str, float]:
    """The task's metrics for answers that the model writes freely, in float32; all held-out data unless told."""
    training = model.training
    model.eval()
    try:
        return task.evaluate(lambda sources: answer(model, task, sources).ids, examples)
    finally:
        model.train(training)


def answer(model: Any, task: Task, sources: Tokens) -> Any:
    """What the model writes for a batch of sources."""
    return greedy(model, sources, first=FIRST, end=END, padding=PADDING, longest=task.longest["target"])


def autocast(precision: str, device: str = "cpu") -> torch.autocast:
    """Matrix products in bfloat16 where the experiment says so; parameters, norms and the loss stay float32."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16")


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
