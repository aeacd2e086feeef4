"""An accelerator of pretence, `lab`: its tensors hold their numbers on the processor and refuse what a GPU refuses.

Every operation on it runs the processor's kernel on what is within, so results are equal bit for bit; an operation that
mixes it with a tensor of the processor raises, as on a real device; and every wait of the host for a number is counted.
It is made of PyTorch's own hooks for devices that are written in Python, and stays for the rest of the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "lab"
FACTORIES = {
    "arange": ("default", "start", "start_step"),
    "linspace": ("default",),
    "eye": ("default", "m"),
    "randperm": ("default", "generator"),
    "tril_indices": ("default",),
    "triu_indices": ("default",),
}
COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from")
waits: list[str] = []
"""The operations since `counting` began that made the host wait for a number."""


class LabTensor(torch.Tensor):
    """held: its numbers, on the processor."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        return _run(operation, *arguments, **(keywords or {}))

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self.held.new_tensor(data, dtype=dtype).to(self.device)

    def tolist(self) -> Any:
        waits.append("tolist")
        return self.held.tolist()


class LabModule:
    """What `torch.cuda` is to a GPU."""

    generator = torch.Generator()

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    manual_seed = manual_seed_all

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        self.generator.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float32]

    def synchronize(self, device: Any = None) -> None:
        pass


module = LabModule()


def _wrapped(held: torch.Tensor) -> LabTensor:
    form = {"dtype": held.dtype, "device": torch.device(NAME, 0), "strides": held.stride()}
    offset = held.storage_offset()
    tensor = torch.Tensor._make_wrapper_subclass(LabTensor, held.shape, storage_offset=offset, **form)
    tensor.held = held.detach()
    return tensor


def _run(operation: Any, *arguments: Any, **keywords: Any) -> Any:
    name = operation._schema.name
    flat, spec = pytree.tree_flatten((arguments, keywords))
    wrappers: dict[int, LabTensor] = {}

    def within(one: Any) -> Any:
        if isinstance(one, LabTensor):
            wrappers[id(one.held)] = one
            return one.held
        if isinstance(one, torch.device):
            return torch.device("cpu")
        if isinstance(one, torch.Tensor) and one.dim() and name not in COPIES:
            raise RuntimeError(f"{name}: expected all tensors on the same device, found {NAME} and {one.device}")
        return one

    flat_within = [within(one) for one in flat]
    inner, inner_keywords = pytree.tree_unflatten(flat_within, spec)
    draws = any(argument.name == "generator" for argument in operation._schema.arguments)
    if draws and inner_keywords.get("generator") is None:
        inner_keywords["generator"] = module.generator
    if name == "aten::_local_scalar_dense":
        waits.append(name)
    if name == "aten::_copy_from":  # from, to
        if not isinstance(arguments[1], LabTensor):
            waits.append(name)
        inner[1].copy_(inner[0])
        return arguments[1]
    found = operation(*inner, **inner_keywords)
    if torch.device("cpu") in (one for one in flat if isinstance(one, torch.device)):
        waits.append(name)
        return found.clone()

    def outside(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        return wrappers.get(id(one)) if id(one) in wrappers else _wrapped(one)

    return pytree.tree_map(outside, found)


def _made_on_the_processor(make: Any) -> Any:
    """PyTorch itself cannot make a tensor of numbers of Python on a device of pretence."""

    def tensor(*arguments: Any, device: Any = None, **keywords: Any) -> torch.Tensor:
        made = make(*arguments, **keywords)
        return made if device is None else made.to(device)

    return tensor


_library: list[Any] = []


def install() -> torch.device:
    """Make the device known to PyTorch; gives it."""
    if not _library:
        _setup_privateuseone_for_python_backend(NAME, module)
        library = torch.library.Library("_", "IMPL")
        library.fallback(_run, "PrivateUse1")
        # PyTorch makes these by changing the size of an empty tensor, which a wrapper cannot do.
        factories = torch.library.Library("aten", "IMPL")
        for name, overloads in FACTORIES.items():
            packet = getattr(torch.ops.aten, name)
            for overload in overloads:
                operation = getattr(packet, overload)
                factories.impl(operation, partial(_run, operation), "PrivateUse1")
        _library.extend((library, factories))
        torch.tensor = _made_on_the_processor(torch.tensor)
        torch.as_tensor = _made_on_the_processor(torch.as_tensor)
    return torch.device(NAME, 0)


@contextmanager
def counting() -> Iterator[list[str]]:
    """The waits of the host inside the block."""
    waits.clear()
    yield waits
