"""Where numbers are computed: the processor, or an accelerator beside it.

Tasks build batches on the CPU; `to_device` moves them. A model is on the device of its parameters.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from jarilab.core.errors import UserError

CPU = torch.device("cpu")

T = TypeVar("T")


def parse_device(name: str) -> torch.device:
    """The device that a person named: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`, an accelerator where there is one.

    Raises UserError where there is none of that name.
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
        there = "no accelerator" if accelerator is None else f"{accelerator.type} and no other"
        raise UserError(
            f"{name} was asked for, and PyTorch {torch.__version__} finds {there} here; use --device cpu or auto, or "
            "install the build of PyTorch that is made for it"
        )
    count = torch.accelerator.device_count()
    if device.index is not None and device.index >= count:
        known = ", ".join(f"{device.type}:{number}" for number in range(count))
        raise UserError(f"{name} was asked for, and there is {known}; name one of these")
    return device


def device_of(model: Any) -> torch.device:
    """Where a model computes; one without parameters on the processor."""
    first = next(model.parameters(), None)
    return CPU if first is None else first.device


def to_device(value: T, device: torch.device) -> T:
    """The same on a device: tensors, and what tuples, lists, dictionaries and dataclasses hold of them.

    What is held twice stays one thing: positions that queries and keys share are still shared. What is there already is
    not copied.
    """
    return _put(value, device, {})


def _put(value: Any, device: torch.device, done: dict[int, Any]) -> Any:
    if id(value) in done:
        return done[id(value)]
    moved = value
    if isinstance(value, Tensor):
        moved = _tensor(value, device)
    elif isinstance(value, tuple):
        parts = [_put(part, device, done) for part in value]
        moved = type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    elif isinstance(value, list):
        moved = [_put(part, device, done) for part in value]
    elif isinstance(value, dict):
        moved = {name: _put(part, device, done) for name, part in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        moved = _dataclass(value, device, done)
    done[id(value)] = moved
    return moved


def _tensor(value: Tensor, device: torch.device) -> Tensor:
    if value.device == device or (device.index is None and value.device.type == device.type):
        return value
    if device.type == "cuda":
        # From pinned memory the copy runs beside the step that is under way.
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def _dataclass(value: Any, device: torch.device, done: dict[int, Any]) -> Any:
    changed = {}
    for own in fields(value):
        held = getattr(value, own.name)
        moved = _put(held, device, done)
        if moved is not held:
            changed[own.name] = moved
    return replace(value, **changed) if changed else value


def autocast(precision: str, device: torch.device = CPU) -> torch.autocast:
    """Matrix products in bfloat16 where `precision` says so; parameters, norms and the loss stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


@contextmanager
def checked_autocast(model: Any, precision: str, device: torch.device) -> Iterator[None]:
    """`autocast`. Raises UserError where the device cannot compute some layer of the model so."""
    try:
        with autocast(precision, device):
            yield
    except RuntimeError as error:
        if precision == "float32":
            raise
        where = "this processor" if device == CPU else str(device)
        raise UserError(
            f"{where} cannot compute {type(model).__name__} in {precision}: {error}; use --precision float32"
        ) from None


def device_module(device: torch.device) -> Any:
    """PyTorch's module of functions for a device: `torch.cuda`."""
    return torch.get_device_module(device)


def device_label(device: torch.device) -> str:
    """The device as a record names it: a GPU by its maker's name."""
    if device.type != "cuda":
        return str(device)
    return f"{device.type} {torch.cuda.get_device_name(device)}"


def cpu_info() -> dict[str, str]:
    """The one that this process runs on, as records name it."""
    capabilities = torch.cpu.get_capabilities()
    return {
        "cpu": str(capabilities.get("cpu_name", platform.processor())),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def has_bfloat16(device: torch.device) -> bool:
    """Whether it multiplies matrices of bfloat16 faster than of float32."""
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return capabilities.get("avx512_bf16", False) or capabilities.get("amx_bf16", False)
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return False
