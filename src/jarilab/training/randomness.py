"""What dropout draws from, in each process: kept in checkpoints, so that going on draws what would have been drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, distributed

from jarilab.core.devices import device_module
from jarilab.nn.init import generator_for
from jarilab.training.distributed.world import World

HOST, BESIDE = "random", "random_of_device"


def seed_all(seed: int, world: World) -> None:
    """Seed torch's generators; each rank draws its own."""
    if world.rank:
        seed = int(torch.randint(2**62, (), generator=generator_for(seed, f"rank/{world.rank}")))
    torch.manual_seed(seed)


def random_states(world: World) -> dict[str, Tensor]:
    """The states of the generators of all ranks; those of rank 0 have the plain names."""
    own = {HOST: torch.get_rng_state()}
    if world.device.type != "cpu":
        own[BESIDE] = device_module(world.device).get_rng_state(world.device).cpu()
    states = dict(own)
    for name, state in own.items():
        for rank, theirs in enumerate(_of_all(state, world)):
            states[_name(name, rank)] = theirs
    return states


def _of_all(state: Tensor, world: World) -> list[Tensor]:
    if not world.several:
        return [state]
    held = state.to(world.device)
    states = [torch.empty_like(held) for _ in range(world.size)]
    distributed.all_gather(states, held)
    return [one.cpu() for one in states]


def _name(name: str, rank: int) -> str:
    return f"{name}.{rank}" if rank else name


def restore(states: Mapping[str, Tensor], world: World, seed: int, step: int) -> str | None:
    """Draw on from these states; what of it cannot be, or None. Who has no state begins anew, from seed and step."""
    needed: dict[str, Callable[[Tensor], None]] = {_name(HOST, world.rank): torch.set_rng_state}
    if world.device.type != "cpu":
        module = device_module(world.device)
        needed[_name(BESIDE, world.rank)] = lambda state: module.set_rng_state(state, world.device)
    if not needed.keys() <= states.keys():
        generator = generator_for(seed, f"rank/{world.rank}/{step}")
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        return "what dropout draws was not kept for this device and rank"
    for name, put_back in needed.items():
        put_back(states[name])
    return None
