"""The processes that `torchrun` starts to train one model, and what they send each other.

Only numbers and text are sent; nothing is pickled. A UserError of one rank is raised on all of them with the rank's
number. If a rank does not answer, the error says when its last heartbeat came.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from jarilab.core.devices import CPU
from jarilab.core.errors import UserError

TIMEOUT = 60.0
"""Seconds to wait for a rank; the environment variable JARILAB_RANK_TIMEOUT overrides it."""
LATE = 2.0
"""Seconds within which all ranks notice that one is missing."""
BACKENDS = ("gloo", "Gloo", "NCCL", "ProcessGroup", "Connection", "store", "Broken pipe")
"""Words of which one is in a backend's error when a process is missing."""
MAX_TEXT = 4096
"""Bytes of a text that is sent."""
_closed_groups: list[Any] = []
"""Process groups that were destroyed."""
# Each is referenced for ever: if the last model of a group released it, that would wait for a thread of the group, and
# the thread for Python's lock.


class World:
    """The processes of a training. rank: number of this process; rank 0 writes files. size: number of processes."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device = CPU):
        self.rank, self.size = rank, size
        # Tensors are sent from here: NCCL sends from GPUs only.
        self.device = device
        self._store: Any = None
        self._owns_group = False
        self._last_beat = 0.0

    @property
    def is_writer(self) -> bool:
        """Whether this process writes files and prints messages."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one process."""
        return self.size > 1

    def all_sum(self, numbers: Tensor) -> None:
        """Replace each number by its sum over all ranks."""
        if self.is_distributed:
            with self.collective():
                distributed.all_reduce(numbers)

    def all_max(self, numbers: Sequence[float]) -> list[float]:
        """The maximum of each number over all ranks, of which there must be several."""
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        with self.collective():
            distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return tensor.tolist()

    def record(self) -> dict[str, Any]:
        """The fields of run.json that decide the bits of a result: the number of ranks, if there are several."""
        return {"ranks": self.size} if self.is_distributed else {}

    def all_gather_text(self, text: str) -> list[str]:
        """The texts of all ranks, in order, each cut to MAX_TEXT bytes."""
        if not self.is_distributed:
            return [text]
        # As tensors: `all_gather_object` pickles.
        encoded = text.encode()[:MAX_TEXT]
        message = torch.zeros(MAX_TEXT + 8, dtype=torch.uint8)
        message[:8] = torch.tensor([len(encoded)]).view(torch.uint8)
        content = torch.frombuffer(bytearray(encoded or b" "), dtype=torch.uint8)
        message[8 : 8 + len(encoded)] = content[: len(encoded)]
        message = message.to(self.device)
        messages = [torch.empty_like(message) for _ in range(self.size)]
        with self.collective():
            distributed.all_gather(messages, message)
        texts = []
        for message in map(Tensor.cpu, messages):
            length = int(message[:8].view(torch.int64))
            texts.append(bytes(message[8 : 8 + length].tolist()).decode(errors="replace"))
        return texts

    def check_equal(self, values: dict[str, Any]) -> None:
        """Raises UserError with the rank's number if a rank has another value than rank 0."""
        for name, value in values.items():
            first, *others = self.all_gather_text(f"{value}")
            for rank, other in enumerate(others, 1):
                if other != first:
                    raise UserError(
                        f"the ranks do not agree on {name}: rank 0 has {first}, rank {rank} has {other}; start all of "
                        "them with the same command, code and data"
                    )

    @contextmanager
    def shared_errors(self) -> Iterator[None]:
        """Raise a UserError of any rank inside the block on all ranks, with the rank's number."""
        message = ""
        try:
            yield
        except UserError as error:
            if not self.is_distributed:
                raise
            message = str(error) or "an error"
        for rank, text in enumerate(self.all_gather_text(message)):
            if text:
                raise UserError(text if rank == 0 else f"rank {rank}: {text}")

    def heartbeat(self, step: int) -> None:
        """Record for the other ranks, about once a second, that this one is alive at this step."""
        now = time.time()
        if self._store is not None and now - self._last_beat > 1.0:
            self._last_beat = now
            self._store.set(f"jari/heartbeat/{self.rank}", f"{now} {step}")

    @contextmanager
    def collective(self) -> Iterator[None]:
        """A block of operations that all ranks take part in. Raises UserError if a rank is missing."""
        try:
            yield
        # Errors of torch.distributed are RuntimeErrors.
        except RuntimeError as error:
            if not self.is_distributed or not any(word in str(error) for word in BACKENDS):
                raise
            reason = str(error).splitlines()[0][:200]
            missing, reports = self._missing_ranks()
            lost = UserError(
                f"rank {self.rank} waits in vain for the others: {missing}; the last checkpoint is whole, and the same "
                f"command goes on from it ({reason})"
            )
            lost.print_on_this_rank = reports
            raise lost from None

    def _missing_ranks(self) -> tuple[str, bool]:
        """The ranks that do not wait, with their last heartbeats; and whether this rank is the first that waits."""
        try:
            self._store.set(f"jari/waits/{self.rank}", "")
            # The other ranks time out at about the same time, and record that they wait.
            time.sleep(LATE)
            others = [rank for rank in range(self.size) if rank != self.rank]
            missing = [rank for rank in others if not self._has_key("waits", rank)]
            heartbeats = ", ".join(self._last_heartbeat(rank) for rank in missing)
            is_first = all(rank in missing for rank in range(self.rank))
            return heartbeats or "all of them wait", is_first
        # The store ends with the process that holds it.
        except (AttributeError, RuntimeError):
            return "which of them is missing is not known", True

    def _last_heartbeat(self, rank: int) -> str:
        if not self._has_key("heartbeat", rank):
            return f"rank {rank} sent no heartbeat"
        moment, step = self._store.get(f"jari/heartbeat/{rank}").decode().split()
        seconds = time.time() - float(moment)
        return f"rank {rank} sent its last heartbeat {seconds:.0f} s ago, at step {step}"

    def _has_key(self, key: str, rank: int) -> bool:
        return self._store.check([f"jari/{key}/{rank}"])

    def close(self) -> None:
        """Destroy the process group if this training made it."""
        if self._owns_group:
            _closed_groups.append(distributed.group.WORLD)
            distributed.destroy_process_group()


def join_world(device: torch.device) -> tuple[World, torch.device]:
    """The world that `torchrun` started this process in, and this process's device.

    Raises UserError if there are more processes than GPUs, or if the others do not answer.
    """
    if "WORLD_SIZE" not in os.environ or int(os.environ["WORLD_SIZE"]) == 1:
        return World(device=device), device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    backend = "gloo"
    if device.type == "cuda":
        if device.index is None or torch.cuda.device_count() > 1:
            device = torch.device("cuda", local)
        if local >= torch.cuda.device_count():
            raise UserError(
                f"expected a GPU for each process, got {torch.cuda.device_count()} GPUs and more processes; start as "
                "many with --nproc-per-node, or use --device cpu"
            )
        torch.cuda.set_device(device)
        backend = "nccl"
    timeout = timedelta(seconds=float(os.environ.get("JARILAB_RANK_TIMEOUT", TIMEOUT)))
    # A program may train several models in one group, one after the other.
    owns_group = not distributed.is_initialized()
    try:
        if owns_group:
            init_process_group(backend, timeout)
    except (RuntimeError, ValueError) as error:
        unreached = UserError(
            f"expected to reach the other processes, got: {str(error).splitlines()[0]}; start them by torchrun"
        )
        unreached.print_on_this_rank = True
        raise unreached from None
    world = World(distributed.get_rank(), distributed.get_world_size(), device)
    world._owns_group = owns_group
    world._store = distributed.distributed_c10d._get_default_store()
    return world, device


def init_process_group(backend: str, timeout: timedelta) -> None:
    """`torch.distributed.init_process_group` with a prefix in torchrun's store for each restart."""
    store, rank, size = _meet(timeout)
    # The store outlives the processes: without a prefix, restarted ones read the addresses of those before.
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefixed = PrefixStore(f"start-{restart}", store)
    distributed.init_process_group(
        backend, store=prefixed, rank=rank, world_size=size, timeout=timeout
    )


def _meet(timeout: timedelta) -> tuple[Any, int, int]:
    """torchrun's store, the number of this process and that of all. Raises RuntimeError if it takes too long."""
    results: list[tuple[Any, int, int] | Exception] = []

    def connect() -> None:
        try:
            results.append(next(iter(rendezvous("env://", timeout=timeout))))
        except Exception as error:
            results.append(error)

    # A store that accepts the connection and never answers, as that of a stopped torchrun, blocks PyTorch for ever.
    # Python does not wait for a daemon when it exits.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout.total_seconds() + LATE)
    if not results:
        raise RuntimeError(f"no answer within {timeout.total_seconds():g} seconds")
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]
