"""Snapshots: the weights at some steps of a training, never removed, to inspect how a model develops.

    snapshots/step-000000200.safetensors

They are not checkpoints: training cannot resume from them.
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
"""The metadata entry with a snapshot's run, step and checksum."""


def evenly_spread(steps: int, count: int, after: int = 0) -> set[int]:
    """Up to `count` of the steps after + 1, ..., `steps`, evenly spread, the last one among them."""
    return {after + round((steps - after) * k / count) for k in range(1, count + 1)} - {after}


def write_snapshot(folder: Path, step: int, weights: Mapping[str, Tensor], run: str) -> None:
    """Write the weights after `step` atomically. run: hash of the run. Raises UserError on a full disk."""
    path = _path(folder, step)
    try:
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as partial:
            # In one entry: safetensors writes several in any order.
            record = {"run": run, "step": step, SEAL: digest_of(weights, run, step)}
            write_weights(weights, partial, {SEALED: json.dumps(record)})
            fsync(partial)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be written: {error}; free disk space, or train without --snapshots"
        ) from None


def steps_of(folder: Path, run: str) -> list[int]:
    """The steps that have a snapshot. run: hash of the run. Raises UserError for a snapshot of another run."""
    steps = []
    for path in sorted((folder / FOLDER).glob("step-*.safetensors")):
        number = path.stem.removeprefix("step-")
        if number.isascii() and number.isdecimal():
            owner = _read_record(path).get("run")
            if owner != run:
                raise UserError(
                    f"{path}: expected a snapshot of the run {run}, got one of {owner}; remove it"
                )
            steps.append(int(number))
    return steps


def load(folder: Path, experiment: Experiment, task: Task, step: int) -> nn.Module:
    """The model after `step`; for step 0 with its initial values. Raises UserError for a damaged snapshot."""
    path, model = _path(folder, step), experiment.resolved.build_model(task)
    if (
        step == 0 and experiment.options.init is None
    ):  # has no file, since the seed gives its values
        return experiment.resolved.initial_model(task)
    tensors = weights.fitting(path, model)
    check(path, experiment.hash, tensors)
    model.load_state_dict(tensors)
    return model


def check(path: Path, run: str | None, tensors: Mapping[str, Tensor]) -> None:
    """Raises UserError if the weights of a snapshot do not match its checksum. run: hash of its run; None for any."""
    record = _read_record(path)
    step, owner = checkpoint.step_of(path.with_suffix("")), str(record.get("run"))
    expected = {"run": owner, "step": step, SEAL: digest_of(tensors, owner, step)}
    if owner != (run or owner) or record != expected:
        raise UserError(f"{path} is damaged: it does not match its checksum; remove it")


def digest_of(tensors: Mapping[str, Tensor], run: str, step: int) -> str:
    """The SHA-256 of weights, the hash of their run and their step."""
    checksum = hashlib.sha256(json.dumps([run, step]).encode())
    for name in sorted(tensors):  # a read file may have another order than the model
        tensor = tensors[name].detach().cpu().contiguous()
        kind = [name, str(tensor.dtype), list(tensor.shape)]
        checksum.update(json.dumps(kind).encode())
        checksum.update(tensor.flatten().view(torch.uint8).numpy().data)
    return checksum.hexdigest()


def _path(folder: Path, step: int) -> Path:
    return folder / FOLDER / f"step-{step:09d}.safetensors"


def _read_record(path: Path) -> dict[str, Any]:
    """The run, step and checksum in a snapshot's metadata. Raises UserError if it has none."""
    metadata = weights.header(path).metadata
    try:
        record = json.loads(metadata.get(SEALED, ""))
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise UserError(f"{path} is damaged: its metadata has no record of its run; remove it")
    return record
