"""Weights in safetensors files, held against a model by the names, shapes and types in their header before anything of
their size is allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from jarilab.core.errors import UserError
from jarilab.core.storage.files import open_checked

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""What safetensors calls the types of tensors that jari writes."""
OF_OPTIMIZERS = {"adamw": ("exp_avg", "exp_avg_sq", "step"), "muon": ("momentum_buffer",)}
"""What each optimizer keeps of a parameter; of its shape, but for the number of steps."""

Kind = tuple[tuple[int, ...], Any]
"""The shape and the type of a tensor."""


@dataclass(frozen=True)
class Header:
    """What a file says it holds."""

    kinds: dict[str, Kind]
    metadata: dict[str, str]


def header(path: Path) -> Header:
    """The header of a safetensors file. Raises UserError for a file that is none."""
    with open_checked(path):  # a plain one: nothing is waited for
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                slices = {name: file.get_slice(name) for name in list(file.keys())}
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path} is damaged or no safetensors file: {error}") from None
    kinds: dict[str, Kind] = {}
    for name, one in slices.items():
        held = one.get_dtype()
        kinds[name] = tuple(one.get_shape()), TYPES.get(held, held)
    return Header(kinds, metadata)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file. Raises UserError for a file that is none."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged or no safetensors file: {error}") from None


def check_built(path: Path, build: Callable[[], nn.Module]) -> None:
    """Raises UserError that names the first tensor of a file that a model would not have. The model is built without
    memory for its weights: it may be declared a thousand times as large as what was saved."""
    with torch.device("meta"):
        model = build()
    _compare(path, model)


def fitting(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """The weights in a file, all of which a model has. Raises UserError that names the first that does not fit, or is
    not finite."""
    _compare(path, model)
    tensors = read_tensors(path)
    for name in sorted(tensors):
        if not bool(tensors[name].isfinite().all()):
            raise UserError(f"{path}: {name} holds values that are no finite numbers")
    return tensors


def _compare(path: Path, model: nn.Module) -> None:
    held = header(path).kinds
    own = kinds_of(model)
    for name in sorted(own.keys() | held.keys()):
        if name not in held or name not in own:
            raise UserError(
                f"{path}: {name} is {'missing' if name in own else 'unknown to the model'}"
            )
        if own[name] != held[name]:
            there, here = " ".join(map(str, held[name])), " ".join(map(str, own[name]))
            raise UserError(f"{path}: {name} is {there}, the model has {here}")


def kinds_of(model: nn.Module) -> dict[str, Kind]:
    """Of all weights of a model."""
    return {name: _kind(tensor) for name, tensor in model.state_dict().items()}


def _kind(tensor: Tensor) -> Kind:
    return tuple(tensor.shape), tensor.dtype


def check_training(
    path: Path, optimizers: Mapping[str, torch.optim.Optimizer], raw: nn.Module | None
) -> None:
    """Raises UserError that names the first tensor of a training's state that its optimizers and weights do not have.
    A parameter that never had a gradient has none of an optimizer's."""
    held = header(path).kinds
    # Of an accelerator and of other processes there are more of them, of sizes of their own.
    random = {name: kind for name, kind in held.items() if name.startswith("random")}
    expected = {name: (kind[0], torch.uint8) for name, kind in random.items()}
    expected |= {"random": _kind(torch.get_rng_state())}
    if raw is not None:
        expected |= {f"raw/{name}": kind for name, kind in kinds_of(raw).items()}
    for name, optimizer in optimizers.items():
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        for number, parameter in enumerate(parameters):
            begun = any(f"{name}/{number}/{what}" in held for what in OF_OPTIMIZERS[name])
            if begun:
                expected |= _of_parameter(name, number, parameter)
    for name in sorted(expected.keys() | held.keys()):
        if held.get(name) != expected.get(name):
            there, here = held.get(name, "missing"), expected.get(name, "unknown to the training")
            raise UserError(f"{path}: {name} is {there}, expected {here}; put back a copy")


def _of_parameter(optimizer: str, number: int, parameter: Tensor) -> dict[str, Kind]:
    """What an optimizer keeps of one parameter."""
    kinds: dict[str, Kind] = {}
    for what in OF_OPTIMIZERS[optimizer]:
        shape, type_of = _kind(parameter)
        kinds[f"{optimizer}/{number}/{what}"] = (
            ((), torch.float32) if what == "step" else (shape, type_of)
        )
    return kinds
