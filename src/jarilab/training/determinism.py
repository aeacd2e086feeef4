"""Threads, deterministic kernels and the state of random generators, on which results depend besides the seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, distributed, nn

from jarilab.core.devices import device_module
from jarilab.nn.init import generator_for
from jarilab.training.distributed.world import World

CPU_STATE, DEVICE_STATE = "random", "random_of_device"
"""Names of random states in a checkpoint."""


def deterministic(threads: int | None) -> None:
    """Make results depend on the seed and the number of threads alone; on a GPU, for one type of GPU."""
    if threads is not None:
        torch.set_num_threads(threads)
    # Read at the first call of cuBLAS: without it deterministic algorithms refuse its products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # As `use_deterministic_algorithms(True)`, without its import of the compiler, which takes half a second.
    torch.set_deterministic_debug_mode("error")
    # Otherwise every `torch.empty` is filled with NaN, which takes time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def compile_model(model: nn.Module) -> nn.Module:
    """The model in torch.compile. Makes PyTorch's algorithms deterministic for the whole process."""
    torch.use_deterministic_algorithms(True)
    return torch.compile(model)  # type: ignore[return-value]


def seed_all(seed: int, world: World) -> None:
    """Seed PyTorch's generators; each rank draws its own numbers."""
    if world.rank:
        generator = generator_for(seed, f"rank/{world.rank}")
        seed = int(torch.randint(2**62, (), generator=generator))
    torch.manual_seed(seed)


def random_states(world: World) -> dict[str, Tensor]:
    """The states of the generators of all ranks, by name; names of rank 0 have no suffix."""
    states = {CPU_STATE: torch.get_rng_state()}
    if world.device.type != "cpu":
        states[DEVICE_STATE] = device_module(world.device).get_rng_state(world.device).cpu()
    return {
        _name(name, rank): gathered
        for name, state in states.items()
        for rank, gathered in enumerate(_gather(state, world))
    }


def _gather(state: Tensor, world: World) -> list[Tensor]:
    if not world.is_distributed:
        return [state]
    state = state.to(world.device)
    states = [torch.empty_like(state) for _ in range(world.size)]
    distributed.all_gather(states, state)
    return [gathered.cpu() for gathered in states]


def _name(name: str, rank: int) -> str:
    return f"{name}.{rank}" if rank else name


def restore_random_states(
    states: Mapping[str, Tensor], world: World, seed: int, step: int
) -> str | None:
    """Set the generators to saved states. If this rank has none, seed them by seed and step, and give the reason."""
    setters: dict[str, Callable[[Tensor], None]] = {
        _name(CPU_STATE, world.rank): torch.set_rng_state
    }
    if world.device.type != "cpu":
        module = device_module(world.device)
        name = _name(DEVICE_STATE, world.rank)
        setters[name] = lambda state: module.set_rng_state(state, world.device)
    if not setters.keys() <= states.keys():
        generator = generator_for(seed, f"rank/{world.rank}/{step}")
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        return "the random state of dropout was not saved for this device and rank"
    for name, set_state in setters.items():
        set_state(states[name])
    return None
