"""Devices: the CPU and accelerators.

Tasks build batches on the CPU; `to_device` moves them. A model is on the device of its parameters.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from jarilab.core.errors import UserError

CPU = torch.device("cpu")

T = TypeVar("T")


def parse_device(name: str) -> torch.device:
    """The device of a name: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`, an accelerator if there is one.

    Raises UserError for an unknown or missing device.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return CPU if accelerator is None else accelerator
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(
            f"expected a device such as auto, cpu, cuda, cuda:1 or mps, got {name!r}"
        ) from None
    if device.type == "cpu":
        if device.index:
            raise UserError(f"there is one processor, cpu; got {name}")
        return CPU
    if accelerator is None or accelerator.type != device.type:
        available = "no accelerator" if accelerator is None else f"{accelerator.type} and no other"
        raise UserError(
            f"{name} was requested, and PyTorch {torch.__version__} finds {available}; use --device cpu or auto, or "
            "install the build of PyTorch that is made for it"
        )
    count = torch.accelerator.device_count()
    if device.index is not None and device.index >= count:
        known = ", ".join(f"{device.type}:{number}" for number in range(count))
        raise UserError(f"{name} was asked for, and there is {known}; name one of these")
    return device


def device_of(model: Any) -> torch.device:
    """The device of a model; the CPU if it has no parameters."""
    first = next(model.parameters(), None)
    return CPU if first is None else first.device


@contextmanager
def evaluating(model: Any) -> Iterator[torch.device]:
    """Evaluation mode, on the device of the model; modes and the random state are afterwards as before.

    Raises UserError for what is no model.
    """
    if not isinstance(model, torch.nn.Module):
        raise UserError(f"expected a torch.nn.Module, got {type(model).__name__}; pass a model")
    device = device_of(model)
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            model.eval()
            yield device
    finally:
        for module, mode in modes:
            module.training = mode


def to_device(value: T, device: torch.device) -> T:
    """Move tensors, also inside tuples, lists, dictionaries and dataclasses.

    Objects that occur twice stay shared. Tensors on the device are not copied.
    """
    # Shared objects must stay shared: `Positions.known_bounds` compares tensors by identity.
    return _move(value, device, {})


def _move(value: Any, device: torch.device, done: dict[int, Any]) -> Any:
    if id(value) in done:
        return done[id(value)]
    moved = value
    if isinstance(value, Tensor):
        moved = _move_tensor(value, device)
    elif isinstance(value, tuple):
        parts = [_move(part, device, done) for part in value]
        moved = type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    elif isinstance(value, list):
        moved = [_move(part, device, done) for part in value]
    elif isinstance(value, dict):
        moved = {name: _move(part, device, done) for name, part in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        moved = _move_dataclass(value, device, done)
    done[id(value)] = moved
    return moved


def _move_tensor(value: Tensor, device: torch.device) -> Tensor:
    if value.device == device or (device.index is None and value.device.type == device.type):
        return value
    if device.type == "cuda":
        # From pinned memory the copy overlaps with the running step.
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def _move_dataclass(value: Any, device: torch.device, done: dict[int, Any]) -> Any:
    changed = {}
    for field in fields(value):
        old = getattr(value, field.name)
        new = _move(old, device, done)
        if new is not old:
            changed[field.name] = new
    return replace(value, **changed) if changed else value


def constant(
    values: Sequence[float], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """A tensor of these numbers, which nobody may change. It is copied to an accelerator once."""
    # A copy waits for the device, and cannot be captured in a CUDA graph.
    if device.type in ("cpu", "meta") or torch.compiler.is_compiling():
        return torch.tensor(values, device=device, dtype=dtype)
    # Of a dtype, since 1 and 1.0 are the same key.
    return _constant(tuple(values), device, dtype or torch.tensor(values).dtype)


# Without a limit, since a CUDA graph reads a tensor where it was when the graph was captured.
@cache
def _constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # gradients may flow through what is computed from it
        return torch.tensor(values, device=device, dtype=dtype)


def autocast(precision: str, device: torch.device = CPU) -> torch.autocast:
    """Autocast to bfloat16 if `precision` is bfloat16; parameters, norms and the loss stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


@contextmanager
def checked_autocast(model: Any, precision: str, device: torch.device) -> Iterator[None]:
    """`autocast` that raises UserError if the device does not support a layer in this precision."""
    try:
        with autocast(precision, device):
            yield
    except RuntimeError as error:
        if precision == "float32":
            raise
        where = "this processor" if device == CPU else str(device)
        reason = str(error).partition(". ")[0]  # oneDNN's next sentence is about its variables
        raise UserError(
            f"{where} cannot compute {type(model).__name__} in {precision}: {reason}; use --precision float32"
        ) from None


def device_module(device: torch.device) -> Any:
    """The PyTorch module of a device, such as `torch.cuda`."""
    return torch.get_device_module(device)


def device_label(device: torch.device) -> str:
    """The device as recorded, with the model name of a GPU."""
    if device.type != "cuda":
        return str(device)
    return f"{device.type} {torch.cuda.get_device_name(device)}"


def cpu_info() -> dict[str, str]:
    """The CPU as recorded: its name and instruction set."""
    capabilities = torch.cpu.get_capabilities()
    return {
        "cpu": str(capabilities.get("cpu_name", platform.processor())),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device has fast bfloat16 matrix products."""
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return capabilities.get("avx512_bf16", False) or capabilities.get("amx_bf16", False)
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return False
