"""Weights in safetensors files, checked against a model by names, shapes and dtypes before they are loaded."""

from __future__ import annotations

import re
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
from jarilab.nn.init import SkipInitialValues

DTYPES = {
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
"""The dtypes that runs have, by their names in safetensors."""
OPTIMIZER_STATE = {"adamw": ("exp_avg", "exp_avg_sq", "step"), "muon": ("momentum_buffer",)}
"""The tensors that each optimizer keeps of a parameter; `step` is a number, the others have the parameter's shape."""

Kind = tuple[tuple[int, ...], Any]
"""The shape and dtype of a tensor."""


@dataclass(frozen=True)
class Header:
    """The header of a safetensors file: shape and dtype of each tensor, and the metadata."""

    kinds: dict[str, Kind]
    metadata: dict[str, str]


def header(path: Path) -> Header:
    """The header of a safetensors file. Raises UserError for any other file."""
    # Only a plain file: reading a pipe or a device could block.
    with open_checked(path):
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                slices = {name: file.get_slice(name) for name in list(file.keys())}
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path} is damaged or no safetensors file: {error}") from None
    kinds: dict[str, Kind] = {}
    for name, tensor in slices.items():
        dtype = tensor.get_dtype()
        kinds[name] = tuple(tensor.get_shape()), DTYPES.get(dtype, dtype)
    return Header(kinds, metadata)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file. Raises UserError for any other file."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged or no safetensors file: {error}") from None


def check_built(path: Path, build: Callable[[], nn.Module]) -> None:
    """Raises UserError that names the first tensor in a file that does not fit the model of `build`."""
    # Without memory for weights: a changed record may ask for a model of any size.
    with torch.device("meta"), SkipInitialValues():
        model = build()
    _compare(path, model)


def fitting(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model in a file. Raises UserError for the first that does not fit or is not finite."""
    _compare(path, model)
    tensors = read_tensors(path)
    for name in sorted(tensors):
        if not bool(tensors[name].isfinite().all()):
            raise UserError(f"{path}: {name} holds values that are not finite; put back a copy")
    return tensors


def _compare(path: Path, model: nn.Module) -> None:
    in_file, in_model = header(path).kinds, kinds_of(model)
    for name in sorted(in_model.keys() | in_file.keys()):
        if name not in in_file or name not in in_model:
            raise UserError(
                f"{path}: {name} is {'missing' if name in in_model else 'unknown to the model'}"
            )
        if in_model[name] != in_file[name]:
            got, expected = " ".join(map(str, in_file[name])), " ".join(map(str, in_model[name]))
            raise UserError(f"{path}: {name} is {got}, the model has {expected}")


def kinds_of(model: nn.Module) -> dict[str, Kind]:
    """Shape and dtype of each weight of a model."""
    return {name: _kind(tensor) for name, tensor in model.state_dict().items()}


def parts_named(model: nn.Module, patterns: str, option: str) -> set[str]:
    """The parameters and buffers of a model that patterns name, separated by commas.

    A pattern is one or more whole words of a dotted name: `encoder`, `layers.0`, and `embedding` for
    `source_embedding.weight`, too. `*` is any text within a word. Raises UserError for one that names nothing.
    """
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    names += [name for name, _ in model.named_buffers()]
    chosen: set[str] = set()
    for pattern in patterns.split(",") if patterns else ():
        words = re.escape(pattern.strip()).replace(r"\*", "[^.]*")
        found = {name for name in names if words and re.search(rf"(?:^|[._]){words}(?:\.|$)", name)}
        if not found:
            parts = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
            raise UserError(
                f"training.{option}: expected a part of the model, got {pattern!r}; it has {parts}, and inside them "
                f"parts such as {names[-1]}"
            )
        chosen |= found
    return chosen


def _kind(tensor: Tensor) -> Kind:
    return tuple(tensor.shape), tensor.dtype


def check_training(
    path: Path, optimizers: Mapping[str, torch.optim.Optimizer], raw: nn.Module | None
) -> None:
    """Raises UserError that names the first tensor of a training's state that does not fit.

    optimizers: of the training, by name. raw: the trained weights if their average is saved.
    """
    in_file = header(path).kinds
    # Accelerators and other ranks have more random states, of any size.
    random = {name: kind for name, kind in in_file.items() if name.startswith("random")}
    expected = {name: (kind[0], torch.uint8) for name, kind in random.items()}
    expected |= {"random": _kind(torch.get_rng_state())}
    if raw is not None:
        expected |= {f"raw/{name}": kind for name, kind in kinds_of(raw).items()}
    for name, optimizer in optimizers.items():
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for number, parameter in enumerate(parameters):
            kinds = _state_kinds(name, number, parameter)
            # A parameter that never had a gradient has no state.
            if kinds.keys() & in_file.keys():
                expected |= kinds
    for name in sorted(expected.keys() | in_file.keys()):
        if in_file.get(name) != expected.get(name):
            got = in_file.get(name, "missing")
            wanted = expected.get(name, "unknown to the training")
            raise UserError(f"{path}: {name} is {got}, expected {wanted}; put back a copy")


def _state_kinds(optimizer: str, number: int, parameter: Tensor) -> dict[str, Kind]:
    """Shape and dtype of each tensor that an optimizer keeps of one parameter."""
    kinds = {name: _kind(parameter) for name in OPTIMIZER_STATE[optimizer]}
    if "step" in kinds:
        kinds["step"] = (), torch.float32
    return {f"{optimizer}/{number}/{name}": kind for name, kind in kinds.items()}
