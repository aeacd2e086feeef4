"""One model on several processes, by PyTorch's own engines: a copy on each (DDP), or a part on each (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from jarilab.errors import UserError
from jarilab.training.layers import layers_of


def replicated(model: nn.Module, unused: bool) -> nn.Module:
    """The model with a copy on each rank, whose gradients are the mean over all. unused: some parameters get none."""
    return DistributedDataParallel(model, find_unused_parameters=unused)


def shard(model: nn.Module, average: float) -> None:
    """Cut the model into parts, one for each rank, layer by layer: each layer comes together when it is needed. Raises
    UserError where that cannot be."""
    from torch.distributed.fsdp import fully_shard

    if not torch.distributed.is_initialized():
        raise UserError(
            "--shard cuts a model into parts for several processes, and there is one; start them by "
            "`torchrun --nproc-per-node 2 -m jarilab train ...`, or omit --shard"
        )
    if average:
        raise UserError(
            "a moving average (training.average) is kept of whole weights, and --shard cuts them into parts; omit one"
        )
    for layer in layers_of(model):
        fully_shard(layer)
    fully_shard(model)


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
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights of a model that is cut into parts, on the processor."""
    return {name: full(tensor).cpu() for name, tensor in model.state_dict().items()}


def put_into_shards(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a model that is cut into parts these weights."""
    own = model.state_dict()
    parts: dict[str, Any] = {name: _like(weights[name], tensor) for name, tensor in own.items()}
    model.load_state_dict(parts)


def shard_again(optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Cut what optimizers hold of each parameter as the parameter is cut."""
    for optimizer in optimizers.values():
        for parameter, values in optimizer.state.items():
            for name, value in values.items():
                if value.shape == parameter.shape:
                    values[name] = _like(value, parameter)


def _like(whole: Tensor, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return whole
    there = whole.to(tensor.device)
    return distribute_tensor(there, tensor.device_mesh, tensor.placements)
