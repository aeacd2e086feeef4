"""Checks that run before a run folder is created."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from jarilab.core.devices import CPU, checked_autocast
from jarilab.core.errors import UserError
from jarilab.runs.experiment import Experiment
from jarilab.runs.training_options import Training
from jarilab.tasks.base import Task
from jarilab.tasks.predictors.base import predictor_for, untrained_positions
from jarilab.training.batching import batches_of, sample_batch


def check_trainable(experiment: Experiment, task: Task, longer: Sequence[Task] = ()) -> None:
    """Raises UserError if an experiment has no batches, or its model cannot be built or compute the task's inputs.

    longer: the task at the other lengths to measure.
    """
    batches_of(experiment.options, task.training_size, task.training_lengths, experiment.seed)
    model = experiment.resolved.build_model(task)
    check_forward(model, task, experiment, CPU)
    check_lengths(model, task, longer, experiment)


def check_lengths(
    model: nn.Module, task: Task, longer: Sequence[Task], experiment: Experiment
) -> None:
    """Raises UserError if the model cannot answer two held-out examples at one of these lengths."""
    try:
        for at_length in longer:
            untrained_positions(model, task, at_length)
            predictor_for(model, at_length).evaluate(2)
    except UserError as error:
        raise UserError(
            f"with the encoding {experiment.encoding}, at the lengths to measure: {error}"
        ) from None


@torch.no_grad()
def check_forward(
    model: nn.Module, task: Task, experiment: Experiment, device: torch.device
) -> None:
    """Raises UserError if a forward of two examples fails, as where an encoding of images gets text."""
    batch = sample_batch(task, device)
    was_training = model.training
    model.eval()
    try:
        with checked_autocast(model, experiment.precision, device):
            model(*batch.inputs)
    except UserError as error:
        raise UserError(f"with the encoding {experiment.encoding}: {error}") from None
    model.train(was_training)


def check_batch_size(options: Training, ranks: int, accumulate: int) -> None:
    """Raises UserError if a batch has fewer examples than ranks times passes."""
    parts = ranks * accumulate
    if options.tokens is None and options.batch_size < parts:
        factors = [f"{ranks} processes"] * (ranks > 1) + [f"{accumulate} passes"] * (accumulate > 1)
        raise UserError(
            f"a batch of {options.batch_size} examples cannot be cut into {' x '.join(factors)}; use "
            f"training.batch_size={parts} or more, or fewer of these"
        )


def check_continued(experiment: Experiment, steps: int) -> None:
    """Raises UserError if a finished run would not go on to more steps than it has."""
    if steps <= experiment.restart:
        raise UserError(
            f"this run is finished after {experiment.restart:,} steps: expected a larger budget, got one of "
            f"{steps:,} steps; raise --examples or --epochs, or choose another --out"
        )
