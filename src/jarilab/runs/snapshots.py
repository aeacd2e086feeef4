"""The weights alone at some steps of a training, small and never removed: to look at how a model came about.

    snapshots/step-000000200.safetensors

They change nothing of the training and are no checkpoints: nothing goes on from them. Step 0 needs no file, since
initial values follow from the seed.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import nn

from jarilab.errors import UserError
from jarilab.nn.init import initialise
from jarilab.runs import checkpoint
from jarilab.runs.experiment import Experiment
from jarilab.storage.files import replacing, synchronise, write_weights
from jarilab.tasks.base import Task

FOLDER = "snapshots"


def planned(steps: int, count: int) -> set[int]:
    """`count` steps of a training of so many, evenly spread up to the last one."""
    return {round(steps * k / count) for k in range(1, count + 1)} - {0}


def save(folder: Path, step: int, model: nn.Module, run: str) -> None:
    """Write the weights after `step`, whole or not at all. Raises UserError on a full disk."""
    path = _path(folder, step)
    try:
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as partial:
            write_weights(model.state_dict(), partial, {"run": run})
            synchronise(partial)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be written: {error}; make room, or train without --snapshots"
        ) from None


def steps_of(folder: Path, run: str) -> list[int]:
    """The steps whose weights are there. Raises UserError for those of another run."""
    found = []
    for path in sorted((folder / FOLDER).glob("step-*.safetensors")):
        number = path.stem.removeprefix("step-")
        if number.isascii() and number.isdecimal():
            owner = _owner(path)
            if owner != run:
                raise UserError(
                    f"{path} was written by the run {owner}, not by {run}, in whose folder it lies; remove it"
                )
            found.append(int(number))
    return found


def load(folder: Path, experiment: Experiment, task: Task, step: int) -> nn.Module:
    """The model as it was after `step`; before the first one its weights are those of the seed."""
    model = experiment.model_instance(task)
    if step == 0:
        initialise(model, experiment.seed)
    else:
        checkpoint.fill(model, _path(folder, step))
    return model


def _path(folder: Path, step: int) -> Path:
    return folder / FOLDER / f"step-{step:09d}.safetensors"


def _owner(path: Path) -> str | None:
    try:
        with safe_open(path, "pt") as file:
            return (file.metadata() or {}).get("run")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged or no safetensors file: {error}; remove it") from None
