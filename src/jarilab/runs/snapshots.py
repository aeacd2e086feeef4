"""The weights alone at some steps of a training, small and never removed: to look at how a model came about.

    snapshots/step-000000200.safetensors

They change nothing of the training and are no checkpoints: nothing goes on from them. Step 0 needs no file, since
initial values follow from the seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from jarilab.core.errors import UserError
from jarilab.core.storage.files import SEAL, atomic_write, fsync, write_weights
from jarilab.runs import checkpoint, weights
from jarilab.runs.experiment import Experiment
from jarilab.tasks.base import Task

FOLDER = "snapshots"
SEALED = "sealed"
"""The entry of the header that says what a snapshot is."""


def evenly_spread(steps: int, count: int) -> set[int]:
    """Up to `count` of the steps 1, 2, ..., `steps`, evenly spread, the last one among them."""
    return {round(steps * k / count) for k in range(1, count + 1)} - {0}


def write_snapshot(folder: Path, step: int, weights: Mapping[str, Tensor], run: str) -> None:
    """Write the weights after `step`, whole or not at all. Raises UserError on a full disk."""
    path = _path(folder, step)
    try:
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as partial:
            # One entry: of several, safetensors writes now this one first and now that.
            told = {"run": run, "step": step, SEAL: digest_of(weights, run, step)}
            write_weights(weights, partial, {SEALED: json.dumps(told)})
            fsync(partial)
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
            owner = _told(path).get("run")
            if owner != run:
                raise UserError(
                    f"{path} was written by the run {owner}, not by {run}, in whose folder it lies; remove it"
                )
            found.append(int(number))
    return found


def load(folder: Path, experiment: Experiment, task: Task, step: int) -> nn.Module:
    """The model as it was after `step`; before the first one its weights are those of the seed."""
    if step == 0:
        return experiment.resolved.initial_model(task)
    path, model = _path(folder, step), experiment.resolved.build_model(task)
    tensors = weights.fitting(path, model)
    check(path, experiment.hash, tensors)
    model.load_state_dict(tensors)
    return model


def check(path: Path, run: str | None, tensors: Mapping[str, Tensor]) -> None:
    """Compare the weights of a snapshot with their checksum. run: the hash of the run, where that is known. Raises
    UserError."""
    told = _told(path)
    step, owner = checkpoint.step_of(path.with_suffix("")), str(told.get("run"))
    expected = {"run": owner, "step": step, SEAL: digest_of(tensors, owner, step)}
    if owner != (run or owner) or told != expected:
        raise UserError(f"{path} is damaged: it is not what it was when it was written; remove it")


def digest_of(tensors: Mapping[str, Tensor], run: str, step: int) -> str:
    """Of weights, whose they are and when."""
    whole = hashlib.sha256(json.dumps([run, step]).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        what = [name, str(tensor.dtype), list(tensor.shape)]
        whole.update(json.dumps(what).encode())
        whole.update(tensor.flatten().view(torch.uint8).numpy().data)
    return whole.hexdigest()


def _path(folder: Path, step: int) -> Path:
    return folder / FOLDER / f"step-{step:09d}.safetensors"


def _told(path: Path) -> dict[str, Any]:
    """What a snapshot says of itself: its run, its step and its checksum."""
    metadata = weights.header(path).metadata
    try:
        record = json.loads(metadata.get(SEALED, ""))
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise UserError(f"{path} is damaged: its header is no JSON; remove it")
    return record
