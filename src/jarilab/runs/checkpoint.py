"""Checkpoints: a folder of safetensors and JSON files, written atomically.

A checkpoint is written under another name, synced to the disk and renamed. Its manifest holds the SHA-256 of each file,
which is checked before a file is read. Nothing is unpickled.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from jarilab.core.errors import UserError
from jarilab.core.storage.files import (
    check_format,
    fsync,
    read_json,
    sha256,
    write_json,
    write_weights,
)
from jarilab.runs.weights import check_training, fitting, read_tensors

Cut = Callable[[Tensor, Tensor], Tensor]
"""A function of a whole tensor and a tensor like it, which gives the rows that this process holds."""

FORMAT = "jari checkpoint 1"
KEEP_NEWEST = 2
"""Checkpoints that are kept besides the best one."""
TENSORS = ("model.safetensors", "optimizer.safetensors")
RANDOM = "random"
"""Prefix of the names of random states."""


class DamagedError(UserError):
    """A checkpoint that does not match its manifest."""


def whole(tensor: Tensor, like: Tensor) -> Tensor:
    """The whole tensor: the `Cut` of a process that shares no tensor with others."""
    return tensor


def save(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: set[int],
) -> Path:
    """Write the checkpoint of `step`, and remove older ones except the newest two and the steps in `keep`.

    weights: of the model that is used. training: other tensors that resuming needs, see `training_tensors`. Raises
    UserError for weights that are not finite, and if the disk is full.
    """
    not_finite = [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]
    if not_finite:
        raise UserError(
            f"step {step}: {not_finite[0]} holds values that are not finite, so no checkpoint of it was written; "
            "earlier ones are untouched. A lower training.lr may help"
        )
    target = folder / f"step-{step:09d}"
    partial = folder / f".step-{step:09d}.{os.getpid()}.partial"
    try:
        with _written(folder, step):
            partial.mkdir()
            for name, tensors in zip(TENSORS, (weights, training), strict=True):
                write_weights(tensors, partial / name)
            write_json(partial / "state.json", {"format": FORMAT, "step": step, **state})
            names = (*TENSORS, "state.json")
            write_json(partial / "manifest.json", {name: sha256(partial / name) for name in names})
            for name in names:
                fsync(partial / name)
            # The folder's own entries, too: after a power cut the renamed folder could otherwise be empty.
            fsync(partial)
            if target.exists():  # `rename` does not replace a folder with files
                _remove(target)
            partial.rename(target)
            fsync(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    # Newer checkpoints were damaged and skipped: they must not replace undamaged ones.
    for old in [path for path in _folders(folder) if step_of(path) <= step][KEEP_NEWEST:]:
        if step_of(old) not in keep:
            _remove(old)
    return target


@contextmanager
def _written(folder: Path, step: int) -> Iterator[None]:
    """Create the folder of checkpoints, and raise UserError if the block fails to write."""
    try:
        # Without its parents: a run that was removed must not come back in part.
        folder.mkdir(exist_ok=True)
        yield
    except (OSError, SafetensorError, UserError) as error:
        raise UserError(
            f"the checkpoint of step {step} could not be written to {folder}: {error}; earlier checkpoints are "
            "untouched. Free disk space and repeat the command to resume from the last one"
        ) from None


def _remove(path: Path) -> None:
    """Remove a checkpoint, renamed first: a kill meanwhile must not leave one that looks damaged."""
    renamed = path.with_name(f".{path.name}.{os.getpid()}.removed.partial")
    path.rename(renamed)
    shutil.rmtree(renamed, ignore_errors=True)


def training_tensors(
    optimizers: Mapping[str, torch.optim.Optimizer], raw: nn.Module | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of optimizers as tensors `NAME/NUMBER/FIELD`, and their parameter groups by name.

    raw: the trained model if its average is saved; its weights are added as `raw/NAME`.
    """
    tensors: dict[str, Tensor] = {}
    if raw is not None:
        tensors |= {f"raw/{name}": tensor for name, tensor in raw.state_dict().items()}
    groups: dict[str, Any] = {}
    for name, optimizer in optimizers.items():
        record = optimizer.state_dict()
        # The schedule sets the learning rate. Saved, it would differ before and after the first step of a process.
        groups[name] = record["param_groups"]
        for group in groups[name]:
            group.pop("lr")
        for number, values in record["state"].items():
            for key, value in values.items():
                tensors[f"{name}/{number}/{key}"] = torch.as_tensor(value)
    return tensors, groups


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest undamaged checkpoint, or None, and a sentence about each newer one that is damaged.

    Raises UserError if all checkpoints are damaged.
    """
    problems: list[str] = []
    for path in _folders(folder):
        try:
            verify(path)
        except DamagedError as error:
            problems.append(str(error))
        else:
            return path, problems
    if problems:
        raise UserError(
            f"no undamaged checkpoint is left: {'; '.join(problems)}; put back a copy, or remove {folder} to start anew"
        )
    return None, []


def best(folder: Path, newest: Path) -> Path:
    """The best checkpoint up to `newest`, by the task's metric. Raises UserError if it is not recorded or damaged."""
    state = read_json(newest / "state.json")
    best = state.get("best") if isinstance(state, dict) else None
    if not isinstance(best, dict) or not isinstance(best.get("step"), int):
        raise UserError(f"{newest} does not say which checkpoint was the best; use the newest one")
    path = folder / f"step-{best['step']:09d}"
    verify(path)
    return path


def verify(path: Path) -> None:
    """Check the files of a checkpoint against its manifest. Raises DamagedError that names the file."""
    names = (*TENSORS, "state.json")
    try:
        manifest = read_json(path / "manifest.json")
    except UserError as error:
        raise DamagedError(f"checkpoint {path} is damaged: {error}") from None
    if not isinstance(manifest, dict) or set(manifest) != set(names):
        raise DamagedError(
            f"checkpoint {path} is damaged: manifest.json does not list {', '.join(names)}"
        )
    for name in names:
        file = path / name
        if file.is_symlink() or not file.is_file():
            raise DamagedError(
                f"checkpoint {path} is damaged: {name} is missing or not a plain file"
            )
        if sha256(file) != manifest[name]:
            raise DamagedError(f"checkpoint {path} is damaged: {name} does not match its checksum")


def load_model(path: Path, model: nn.Module, run: str, cut: Cut = whole) -> None:
    """Load a model from a verified checkpoint.

    run: hash of the run. Raises UserError for a checkpoint of another run, and for a tensor that does not fit.
    """
    check_owner(path, run)
    fill(model, path / "model.safetensors", cut)


def check_owner(path: Path, run: str) -> None:
    """Raises UserError if a checkpoint belongs to another run. run: hash of this one."""
    state = read_json(path / "state.json")
    owner = state.get("run") if isinstance(state, dict) else None
    if owner != run:
        raise UserError(
            f"{path}: expected a checkpoint of the run {run}, got one of {owner}; put it back where it was"
        )


def fill(model: nn.Module, path: Path, cut: Cut = whole) -> None:
    """Load the weights in a file. Raises UserError that names the first tensor that does not fit."""
    tensors, state = fitting(path, model), model.state_dict()
    model.load_state_dict({name: cut(tensors[name], tensor) for name, tensor in state.items()})


def load_training(
    path: Path,
    optimizers: Mapping[str, torch.optim.Optimizer],
    raw: nn.Module | None = None,
    cut: Cut = whole,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Load the optimizers in place, and the weights of `raw` if an average is saved.

    Returns the other fields of state.json, and the random states by name. Raises UserError for what does not fit.
    """
    state = read_json(path / "state.json")
    check_format(path / "state.json", FORMAT, state)
    if state.get("step") != step_of(path):
        raise UserError(f"{path}: state.json has step {state.get('step')!r}; put back a copy")
    check_training(path / "optimizer.safetensors", optimizers, raw)
    tensors = read_tensors(path / "optimizer.safetensors")
    for name, optimizer in optimizers.items():
        values: dict[int, dict[str, Tensor]] = {}
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for key, tensor in tensors.items():
            owner, _, rest = key.partition("/")
            if owner == name:
                number, _, field = rest.partition("/")
                rows = cut(tensor, parameters[int(number)])
                # A copy: the tensor is mapped from a file that will be removed.
                values.setdefault(int(number), {})[field] = rows.clone()
        # Learning rates and weight decays are those of the experiment, whatever the file says.
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": values, "param_groups": groups})
    if raw is not None:
        weights = {n: cut(tensors[f"raw/{n}"], like) for n, like in raw.state_dict().items()}
        raw.load_state_dict(weights)
    fields = {name: value for name, value in state.items() if name not in ("format", "groups")}
    random = {name: tensor for name, tensor in tensors.items() if name.startswith(RANDOM)}
    return fields, random


def _folders(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    return sorted(
        (p for p in folder.glob("step-*") if p.is_dir() and step_of(p) >= 0),
        key=step_of,
        reverse=True,
    )


def step_of(path: Path) -> int:
    """The step in a checkpoint's name; -1 if there is none."""
    number = path.name.removeprefix("step-")
    return int(number) if number.isascii() and number.isdecimal() else -1
