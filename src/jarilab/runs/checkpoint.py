"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all.

A checkpoint is written into a folder with another name, synchronised to the disk, and renamed; its manifest, written
last, holds the SHA-256 of every file. Whoever reads one checks those first. Nothing is ever unpickled.
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
from jarilab.runs.parts import write_joined
from jarilab.runs.weights import check_training, fitting, read_tensors

Cut = Callable[[Tensor, Tensor], Tensor]
"""Of a whole tensor, what this process has of it: cut as the second one is."""

FORMAT = "jari checkpoint 1"
KEPT = 2
TENSORS = ("model.safetensors", "optimizer.safetensors")
RANDOM = "random"
"""What the names of random states begin with."""


class DamagedError(UserError):
    """A checkpoint that is not what its manifest says."""


def whole(tensor: Tensor, like: Tensor) -> Tensor:
    """What a process has that shares no tensor with others."""
    return tensor


def save(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: set[int],
    shards: int = 1,
) -> Path:
    """Write the checkpoint of `step` and remove older ones, all but the newest two and those in `keep`.

    weights: of the model, to use. training: what else going on takes, as `training_tensors` has it. shards: where it is
    more than 1, these are the first rows of the tensors, and `write_shard` wrote the others.
    """
    _check_finite(step, weights)
    target = folder / f"step-{step:09d}"
    partial = folder / f".step-{step:09d}.{os.getpid()}.partial"
    others = [_part(folder, step, number) for number in range(1, shards)]
    try:
        with _written(folder, step):
            partial.mkdir()
            for name, tensors in zip(TENSORS, (weights, training), strict=True):
                write_joined(tensors, [other / name for other in others], partial / name)
            write_json(partial / "state.json", {"format": FORMAT, "step": step, **state})
            names = (*TENSORS, "state.json")
            write_json(partial / "manifest.json", {name: sha256(partial / name) for name in names})
            for name in names:
                fsync(partial / name)
            fsync(partial)
            if target.exists():
                _remove(target)
            partial.rename(target)
            fsync(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    # What is newer than this step was damaged and passed over: it must not push out what is whole.
    for old in [path for path in _folders(folder) if step_of(path) <= step][KEPT:]:
        if step_of(old) not in keep:
            _remove(old)
    return target


def write_shard(
    folder: Path,
    step: int,
    number: int,
    weights: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
) -> None:
    """Write the rows that process `number` has of a checkpoint's tensors, for `save` to join; then `remove_shard`."""
    _check_finite(step, weights)
    part = _part(folder, step, number)
    with _written(folder, step):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        for name, tensors in zip(TENSORS, (weights, training), strict=True):
            write_weights(tensors, part / name)
            fsync(part / name)
        fsync(part)


def remove_shard(folder: Path, step: int, number: int) -> None:
    """Remove what `write_shard` wrote, if it did."""
    shutil.rmtree(_part(folder, step, number), ignore_errors=True)


def _part(folder: Path, step: int, number: int) -> Path:
    return folder / f".step-{step:09d}.part-{number}.partial"


def _check_finite(step: int, weights: Mapping[str, Tensor]) -> None:
    broken = [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]
    if broken:
        raise UserError(
            f"step {step}: {broken[0]} holds values that are no finite numbers, so no checkpoint of it was written; "
            "earlier ones are untouched. A lower training.lr may help"
        )


@contextmanager
def _written(folder: Path, step: int) -> Iterator[None]:
    """The folder to write into. Raises UserError where the block cannot."""
    try:
        # Not those above: a run that was removed does not come back as a part.
        folder.mkdir(exist_ok=True)
        yield
    except (OSError, SafetensorError, UserError) as error:
        raise UserError(
            f"the checkpoint of step {step} could not be written to {folder}: {error}; earlier checkpoints are "
            "untouched. Make room and give the same command again to go on from the last one"
        ) from None


def _remove(path: Path) -> None:
    """Under another name first, so that a kill meanwhile leaves no checkpoint that looks damaged."""
    going = path.with_name(f".{path.name}.{os.getpid()}.removed.partial")
    path.rename(going)
    shutil.rmtree(going, ignore_errors=True)


def training_tensors(
    optimizers: Mapping[str, torch.optim.Optimizer], raw: nn.Module | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What optimizers hold, as tensors and as groups of parameters by name; and the weights to train on, where others
    are evaluated. Random states come beside it."""
    tensors: dict[str, Tensor] = {}
    if raw is not None:
        tensors |= {f"raw/{name}": tensor for name, tensor in raw.state_dict().items()}
    groups: dict[str, Any] = {}
    for name, optimizer in optimizers.items():
        record = optimizer.state_dict()
        # The rate is the schedule's: what is noted of it would tell whether a step was taken since the last start.
        groups[name] = record["param_groups"]
        for group in groups[name]:
            group.pop("lr")
        for number, values in record["state"].items():
            for key, value in values.items():
                tensors[f"{name}/{number}/{key}"] = torch.as_tensor(value)
    return tensors, groups


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and a line about each newer one that is not. Raises UserError if there are
    checkpoints and none is whole."""
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
            f"no whole checkpoint is left: {'; '.join(problems)}; put back a copy, or remove {folder} to begin again"
        )
    return None, []


def best(folder: Path, newest: Path) -> Path:
    """The best checkpoint on the way to `newest`, by the task's metric. Raises UserError where it is not whole."""
    state = read_json(newest / "state.json")
    held = state.get("best") if isinstance(state, dict) else None
    if not isinstance(held, dict) or not isinstance(held.get("step"), int):
        raise UserError(f"{newest} does not say which checkpoint was the best; use the newest one")
    path = folder / f"step-{held['step']:09d}"
    verify(path)
    return path


def verify(path: Path) -> None:
    """Compare the files of a checkpoint with its manifest. Raises DamagedError that names the file."""
    names = (*TENSORS, "state.json")
    try:
        manifest = read_json(path / "manifest.json")
    except UserError as error:
        raise DamagedError(f"checkpoint {path} is damaged: {error}") from None
    if not isinstance(manifest, dict) or set(manifest) != set(names):
        raise DamagedError(
            f"checkpoint {path} is damaged or not of jari: manifest.json does not list {', '.join(names)}"
        )
    for name in names:
        file = path / name
        if file.is_symlink() or not file.is_file():
            raise DamagedError(f"checkpoint {path} is damaged: {name} is missing or no plain file")
        if sha256(file) != manifest[name]:
            raise DamagedError(
                f"checkpoint {path} is damaged: {name} is not what it was when it was written"
            )


def load_model(path: Path, model: nn.Module, run: str, cut: Cut = whole) -> None:
    """Fill the model from a verified checkpoint of the run with this hash. Raises UserError for another run's, and
    naming the first tensor that does not fit."""
    check_owner(path, run)
    fill(model, path / "model.safetensors", cut)


def check_owner(path: Path, run: str) -> None:
    """Raises UserError for a checkpoint of another run than the one with this hash."""
    state = read_json(path / "state.json")
    owner = state.get("run") if isinstance(state, dict) else None
    if owner != run:
        raise UserError(
            f"{path} was written by the run {owner}, not by {run}, in whose folder it lies; put it back"
        )


def fill(model: nn.Module, path: Path, cut: Cut = whole) -> None:
    """Give the model the weights in this file. Raises UserError that names the first tensor that does not fit."""
    tensors = fitting(path, model)
    own = model.state_dict()
    model.load_state_dict({name: cut(tensors[name], tensor) for name, tensor in own.items()})


def load_training(
    path: Path,
    optimizers: Mapping[str, torch.optim.Optimizer],
    raw: nn.Module | None = None,
    cut: Cut = whole,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Fill the optimizers and, where averages are kept, the weights to train on; give the rest of what was saved, and
    the random states by name."""
    state = read_json(path / "state.json")
    check_format(path / "state.json", FORMAT, state)
    if state.get("step") != step_of(path):
        raise UserError(f"{path}: state.json is of step {state.get('step')!r}; put back a copy")
    check_training(path / "optimizer.safetensors", optimizers, raw)
    tensors = read_tensors(path / "optimizer.safetensors")
    for name, optimizer in optimizers.items():
        values: dict[int, dict[str, Tensor]] = {}
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        for key, tensor in tensors.items():
            owner, _, rest = key.partition("/")
            if owner == name:
                number, _, what = rest.partition("/")
                own = cut(tensor, parameters[int(number)])
                # A copy: it is a map of the file, and would go with it.
                values.setdefault(int(number), {})[what] = own.clone()
        # Rates and decays are those of the experiment, whatever a file says.
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": values, "param_groups": groups})
    if raw is not None:
        held = raw.state_dict()
        raw.load_state_dict({name: cut(tensors[f"raw/{name}"], own) for name, own in held.items()})
    rest = {name: value for name, value in state.items() if name not in ("format", "groups")}
    random = {name: tensor for name, tensor in tensors.items() if name.startswith(RANDOM)}
    return rest, random


def _folders(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    return sorted(
        (p for p in folder.glob("step-*") if p.is_dir() and step_of(p) >= 0),
        key=step_of,
        reverse=True,
    )


def step_of(path: Path) -> int:
    """The step of a checkpoint, by its name; -1 where that is none."""
    number = path.name.removeprefix("step-")
    return int(number) if number.isascii() and number.isdecimal() else -1
