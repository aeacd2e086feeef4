"""What is tried before anything is written."""

from __future__ import annotations

import torch
from torch import nn

from jarilab.core.devices import checked_autocast, device_of, to_device
from jarilab.core.errors import UserError
from jarilab.nn.init import generator_for
from jarilab.runs.experiment import Experiment
from jarilab.runs.options import Training
from jarilab.tasks.base import Task
from jarilab.training.batching import Batches, batches_of


def check_trainable(experiment: Experiment, task: Task) -> None:
    """Raises UserError where the model of an experiment cannot be built or cannot read what the task gives."""
    model = experiment.resolved.build_model(task)
    options, lengths = experiment.options, task.training_lengths
    batches = batches_of(options, task.training_size, lengths, experiment.seed)
    check_forward(model, task, batches, experiment)


@torch.no_grad()
def check_forward(model: nn.Module, task: Task, batches: Batches, experiment: Experiment) -> None:
    """One forward of two examples: an encoding of rows and columns, for one, cannot read a text, and not every
    processor computes every layer in bfloat16."""
    device = device_of(model)
    batch = task.training_batch(batches.at(0)[:2], generator_for(0, "check"))
    training, precision = model.training, experiment.precision
    model.eval()
    try:
        with checked_autocast(model, precision, device):
            model(*to_device(batch.inputs, device))
    except UserError as error:
        raise UserError(f"with the encoding {experiment.encoding}: {error}") from None
    model.train(training)


def check_parts(options: Training, ranks: int, accumulate: int) -> None:
    """Raises UserError where a batch is too small to be cut into as many parts."""
    parts = ranks * accumulate
    if options.tokens is None and options.batch_size < parts:
        what = " x ".join(
            text
            for text in (
                f"{ranks} processes" if ranks > 1 else "",
                f"{accumulate} passes" if accumulate > 1 else "",
            )
            if text
        )
        raise UserError(
            f"a batch of {options.batch_size} examples cannot be cut into {what}; use training.batch_size={parts} or "
            "more, or fewer of these"
        )
