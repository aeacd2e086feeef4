"""One model on several processes, by PyTorch: replicated on each (DDP) or sharded over all (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from jarilab.core.errors import UserError
from jarilab.encodings.base import Encoding


def is_sharded(tensor: Tensor) -> TypeGuard[Any]:
    """Whether a tensor is a `DTensor`, of which each process holds some rows."""
    # By an attribute: the module of the class takes half a second to import.
    return hasattr(tensor, "placements")


def replicate(model: nn.Module, has_unused: bool) -> nn.Module:
    """The model as DDP wraps it: gradients are means over ranks. has_unused: some parameters get no gradient."""
    return DistributedDataParallel(model, find_unused_parameters=has_unused)


def shard(model: nn.Module) -> None:
    """Shard a model over all ranks, layer by layer. Raises UserError if there is one process or no layer."""
    from torch.distributed.fsdp import fully_shard

    if not torch.distributed.is_initialized():
        raise UserError(
            "--shard expects several processes, got one; start them by "
            "`torchrun --nproc-per-node 2 -m jarilab train ...`, or omit --shard"
        )
    for layer in layers_of(model):
        fully_shard(layer)
    fully_shard(model)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The outermost modules with a forward in the model's `ModuleList`s. Raises UserError if there is none."""
    layers = list(_layers(model, in_list=False))
    if not layers:
        raise UserError(
            f"--shard and --recompute expect a model with a torch.nn.ModuleList of layers, got {type(model).__name__} "
            "without one; omit them"
        )
    return layers


def _layers(module: nn.Module, *, in_list: bool) -> Iterator[nn.Module]:
    """`layers_of` a part of a model. in_list: whether a ModuleList holds it, directly or in modules without forward."""
    for child in module.children():
        # Its hooks are called, and no forward.
        if isinstance(child, Encoding):
            continue
        has_forward = type(child).forward is not nn.Module.forward
        if in_list and has_forward:
            yield child
        else:
            is_list = isinstance(child, nn.ModuleList)
            yield from _layers(child, in_list=is_list or (in_list and not has_forward))


def moving_average(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of a model's parameters and buffers. Both may be sharded afterwards."""
    update = get_ema_multi_avg_fn(decay)

    def update_rows(averaged: Any, current: Any, count: Any) -> None:
        update([local(tensor) for tensor in averaged], [local(tensor) for tensor in current], count)

    return AveragedModel(model, multi_avg_fn=update_rows, use_buffers=True)


@contextmanager
def without_gradient_sync(model: Any) -> Iterator[None]:
    """Keep a sharded model's gradients whole on each rank inside the block."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded. All ranks must call it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    """The whole state of a model that may be sharded, on the CPU. All ranks must call it."""
    return gathered(model.state_dict())


def gathered(tensors: Mapping[str, Tensor], *, keep: bool = True) -> dict[str, Tensor]:
    """Tensors that may be sharded, whole and on the CPU. All ranks must call it; it is empty where `keep` is False."""
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        complete = full(tensor)
        if keep:
            whole[name] = complete.cpu()
    return whole


def cut_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, sharded as `like` is if both have one shape."""
    if not is_sharded(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements
    # src_data_rank=None: nothing is sent, since each process reads its own rows of the file.
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def local(tensor: Tensor) -> Tensor:
    """The rows of a tensor that this process holds."""
    return tensor.to_local() if is_sharded(tensor) else tensor
