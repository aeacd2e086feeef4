"""The processes that train one model together, as `torchrun` starts them; most often there is one alone.

What all must know is told as numbers and text: nothing is pickled between them. An error of one is raised on all, and
names the rank that had it; one that is silent is named by what was heard of it last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from jarilab.core.devices import CPU
from jarilab.core.errors import UserError

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds that the others wait for a rank; the environment's JARILAB_RANK_TIMEOUT takes its place."""
LATE = 2.0
"""Seconds between two ranks that notice the same."""
BACKENDS = ("gloo", "Gloo", "NCCL", "ProcessGroup", "Connection", "store", "Broken pipe")
"""One of these words is in what a backend says when a process is not there."""
LONGEST_TEXT = 4096
"""Bytes of a text that all are told."""
_parted: list[Any] = []
"""Groups of processes that have ended, so that none goes with the last model of it: that would wait for a thread of the
group, and the thread for Python, for ever."""


class World:
    """rank: of this process, 0 for the one that writes. size: how many there are."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device = CPU):
        self.rank, self.size = rank, size
        # Where the numbers that all add up must be: NCCL knows the GPU alone.
        self.device = device
        self._store: Any = None
        self._is_ours = False
        self._heard = 0.0

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files and says things."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.size > 1

    def add_up(self, numbers: Tensor) -> None:
        """Put the sum over all in the place of each number."""
        if self.several:
            self._together(lambda: distributed.all_reduce(numbers))

    def most(self, numbers: Sequence[float]) -> list[float]:
        """Of each number, the largest that any rank has."""
        held = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        self._together(lambda: distributed.all_reduce(held, distributed.ReduceOp.MAX))
        return held.tolist()

    def record(self) -> dict[str, Any]:
        """What of it decides bits, as run.json keeps it."""
        return {"ranks": self.size} if self.several else {}

    def texts(self, text: str) -> list[str]:
        """The text of each rank."""
        if not self.several:
            return [text]
        raw = text.encode()[:LONGEST_TEXT]
        own = torch.zeros(LONGEST_TEXT + 8, dtype=torch.uint8)
        own[:8] = torch.tensor([len(raw)]).view(torch.uint8)
        own[8 : 8 + len(raw)] = torch.frombuffer(bytearray(raw or b" "), dtype=torch.uint8)[
            : len(raw)
        ]
        own = own.to(self.device)
        all_of_them = [torch.empty_like(own) for _ in range(self.size)]
        self._together(lambda: distributed.all_gather(all_of_them, own))
        return [_text(one.cpu()) for one in all_of_them]

    def agree(self, what: dict[str, Any]) -> None:
        """Raises UserError, naming the rank, where a rank says something else than the first one."""
        for name, value in what.items():
            first, *others = self.texts(f"{value}")
            for rank, other in enumerate(others, 1):
                if other != first:
                    raise UserError(
                        f"the ranks do not agree on {name}: rank 0 has {first}, rank {rank} has {other}; start all of "
                        "them with the same command, code and data"
                    )

    @contextmanager
    def one_error_for_all(self) -> Iterator[None]:
        """A UserError inside the block is raised on every rank, named after the one that had it."""
        problem = ""
        try:
            yield
        except UserError as error:
            if not self.several:
                raise
            problem = str(error) or "an error"
        for rank, text in enumerate(self.texts(problem)):
            if text:
                raise UserError(text if rank == 0 else f"rank {rank}: {text}")

    def beat(self, step: int) -> None:
        """Be heard of, about once a second."""
        now = time.time()
        if self._store is not None and now - self._heard > 1.0:
            self._heard = now
            self._store.set(f"jari/heard/{self.rank}", f"{now} {step}")

    def _together(self, act: Callable[[], T]) -> T:
        """What all do at once. Raises UserError where not all do it in time."""
        with self.together():
            return act()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside the block all do the same. Raises UserError where a process is waited for in vain."""
        try:
            yield
        except RuntimeError as error:  # those of torch.distributed are such too
            if not self.several or not any(word in str(error) for word in BACKENDS):
                raise
            reason = str(error).splitlines()[0][:200]
            missed, speaks = self._missed()
            lost = UserError(
                f"rank {self.rank} waits in vain for the others: {missed}; the last checkpoint is whole, and the same "
                f"command goes on from it ({reason})"
            )
            lost.print_on_this_rank = speaks
            raise lost from None

    def _missed(self) -> tuple[str, bool]:
        """Who does not wait as this rank does, and when it was last heard of; and whether this rank is the first that
        waits."""
        try:
            self._store.set(f"jari/waits/{self.rank}", "")
            time.sleep(LATE)  # the others notice at about the same time
            others = [rank for rank in range(self.size) if rank != self.rank]
            silent = [rank for rank in others if not self._is_told("waits", rank)]
            missed = ", ".join(self._last_heard(rank) for rank in silent) or "all of them wait"
            return missed, all(rank in silent for rank in range(self.rank))
        except (AttributeError, RuntimeError):  # the store is gone, with the process that had it
            return "nobody knows which of them is gone", True

    def _last_heard(self, rank: int) -> str:
        if not self._is_told("heard", rank):
            return f"rank {rank} was never heard of"
        moment, step = self._store.get(f"jari/heard/{rank}").decode().split()
        return (
            f"rank {rank} was last heard of {time.time() - float(moment):.0f} s ago, at step {step}"
        )

    def _is_told(self, what: str, rank: int) -> bool:
        return self._store.check([f"jari/{what}/{rank}"])

    def end(self) -> None:
        """Part from the others, where this training brought them together."""
        if self._is_ours:
            _parted.append(distributed.group.WORLD)
            distributed.destroy_process_group()


def _text(raw: Tensor) -> str:
    length = int(raw[:8].view(torch.int64))
    return bytes(raw[8 : 8 + length].tolist()).decode(errors="replace")


def joined(device: torch.device) -> tuple[World, torch.device]:
    """The world that `torchrun` started this process in, and this process's own device. Raises UserError where the
    others do not come."""
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        return World(device=device), device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    backend = "gloo"
    if device.type == "cuda":
        if device.index is None or torch.cuda.device_count() > 1:
            device = torch.device("cuda", local)
        if local >= torch.cuda.device_count():
            raise UserError(
                f"there are {torch.cuda.device_count()} GPUs here and more processes; start as many with "
                "--nproc-per-node, or use --device cpu"
            )
        torch.cuda.set_device(device)
        backend = "nccl"
    waits = timedelta(seconds=float(os.environ.get("JARILAB_RANK_TIMEOUT", TIMEOUT)))
    ours = (
        not distributed.is_initialized()
    )  # a program may train several models, one after the other
    try:
        if ours:
            bring_together(backend, waits)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"the processes did not find each other: {str(error).splitlines()[0]}; start them by torchrun"
        ) from None
    world = World(distributed.get_rank(), distributed.get_world_size(), device)
    world._is_ours = ours
    world._store = distributed.distributed_c10d._get_default_store()
    return world, device


def bring_together(backend: str, waits: timedelta) -> None:
    """As `init_process_group` does, with a place of its own in torchrun's store, which outlives the processes: those
    that are started again would else find the addresses of those before."""
    store, rank, size = next(iter(rendezvous("env://", timeout=waits)))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    place = PrefixStore(f"start-{start}", store)
    distributed.init_process_group(backend, store=place, rank=rank, world_size=size, timeout=waits)
