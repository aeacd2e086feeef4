"""Whole training steps, as `jarilab.training.loop` takes them, to be timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from jarilab.core.devices import autocast
from jarilab.nn.init import generator_for, initialise
from jarilab.runs.experiment import Experiment
from jarilab.runs.training_options import Training
from jarilab.tasks.arithmetic import Arithmetic
from jarilab.tasks.base import Batch
from jarilab.training.batching import FixedSizeBatches
from jarilab.training.optimization import build_optimizers

Step = Callable[[], float]
"""Takes one step and gives the loss."""


def batches_of(task: Arithmetic, count: int = 8, size: int = 512) -> list[Batch]:
    """The first training batches at seed 1."""
    order = FixedSizeBatches(task.training_size, size, count * size, 1)
    return [task.training_batch(order.at(step), generator_for(1, f"batch/{step}")) for step in range(count)]


def arithmetic_step(
    task: Arithmetic, batches: Iterator[Batch], experiment: Experiment, rates: Iterator[float] | None = None
) -> tuple[nn.Module, Step]:
    """The model of an experiment, and its step on the next of the batches."""
    model = experiment.resolved.build_model(task)
    initialise(model, experiment.seed)

    def loss() -> Tensor:
        batch = next(batches)
        with autocast(experiment.precision):
            scores = model(*batch.inputs)
        return task.loss(scores, batch)

    optimizers = build_optimizers(model, experiment.options).values()
    return model, training_step(model, loss, optimizers, experiment.options.clip, rates)


def encoder_step(model: nn.Module, x_BLD: Tensor, keep_BL: Tensor, precision: str) -> Step:
    """A step that makes an encoder's output smaller: a loss that costs nothing."""

    def loss() -> Tensor:
        with autocast(precision):
            return model(x_BLD, keep=keep_BL).float().square().mean()

    options = Training(lr=1e-4)
    return training_step(model, loss, build_optimizers(model, options).values(), options.clip)


def training_step(
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    optimizers: Iterable[torch.optim.Optimizer],
    clip: float,
    rates: Iterator[float] | None = None,
) -> Step:
    """Forward, backward, clipping, optimizers; at the learning rates given, if any."""
    optimizers = list(optimizers)
    groups: list[dict[str, Any]] = [group for optimizer in optimizers for group in optimizer.param_groups]

    def step() -> float:
        if rates is not None:
            rate = next(rates)
            for group in groups:
                group["lr"] = rate
        loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return step


def not_deterministic(run: Callable[[], Any]) -> Callable[[], Any]:
    """jari runs with deterministic algorithms; the peers need not pay for them."""

    def as_the_peer_is() -> Any:
        torch.use_deterministic_algorithms(False)
        try:
            return run()
        finally:
            torch.use_deterministic_algorithms(True)

    return as_the_peer_is
