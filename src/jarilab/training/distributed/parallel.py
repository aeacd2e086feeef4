"""One model on several processes, by PyTorch's own engines: a copy on each (DDP), or a part on each (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from jarilab.core.errors import UserError
from jarilab.training.layers import layers_of


def in_parts(tensor: Tensor) -> TypeGuard[Any]:
    """Whether a tensor is a `DTensor`, of which each process holds some rows. Its module takes half a second to import,
    which a training on one process need not wait for."""
    return hasattr(tensor, "placements")


def replicated(model: nn.Module, unused: bool) -> nn.Module:
    """The model with a copy on each rank, whose gradients are the mean over all. unused: some parameters get none."""
    return DistributedDataParallel(model, find_unused_parameters=unused)


def shard(model: nn.Module) -> None:
    """Cut the model into parts, one for each rank, layer by layer: each layer comes together when it is needed. Raises
    UserError where that cannot be."""
    from torch.distributed.fsdp import fully_shard

    if not torch.distributed.is_initialized():
        raise UserError(
            "--shard cuts a model into parts for several processes, and there is one; start them by "
            "`torchrun --nproc-per-node 2 -m jarilab train ...`, or omit --shard"
        )
    for layer in layers_of(model):
        fully_shard(layer)
    fully_shard(model)


def moving_average(model: nn.Module, decay: float) -> AveragedModel:
    """A copy of a model that follows it as a moving average; both may be cut into parts then, as `shard` does. Buffers
    follow too: running statistics of a norm are of the weights beside them."""
    follow = get_ema_multi_avg_fn(decay)

    def follow_rows(averaged: Any, current: Any, count: Any) -> None:
        follow([local(one) for one in averaged], [local(one) for one in current], count)

    return AveragedModel(model, multi_avg_fn=follow_rows, use_buffers=True)


@contextmanager
def unsynchronised(model: Any) -> Iterator[None]:
    """Inside the block a model that is cut into parts keeps its gradients whole on each rank."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def full(tensor: Tensor) -> Tensor:
    """A tensor that may be cut into parts, as a whole. All ranks ask at once."""
    return tensor.full_tensor() if in_parts(tensor) else tensor


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights of a model that may be cut into parts, on the processor."""
    return {name: full(tensor).cpu() for name, tensor in model.state_dict().items()}


def own_rows(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """What a process saves, on the processor: its rows of what is cut. What every process has, the first one saves."""
    return {
        name: local(tensor).cpu()
        for name, tensor in tensors.items()
        if rank == 0 or in_parts(tensor)
    }


def cut_like(whole: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor cut as another one is, if that one is cut and as large. Nothing is sent: every process has the
    whole, as a map of a file, and reads its own rows of it."""
    if not in_parts(tensor) or whole.shape != tensor.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = tensor.device_mesh, tensor.placements
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


def local(tensor: Tensor) -> Tensor:
    """What this process has of a tensor."""
    return tensor.to_local() if in_parts(tensor) else tensor
