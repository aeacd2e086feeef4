"""Optimizers: Muon for matrices, AdamW for the other parameters.

They compute what `torch.optim.Muon` and `torch.optim.AdamW` do, bit for bit and with the same state. One exception: on
a processor without bfloat16 products, Muon's iteration is in float32, which is far faster there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from inspect import unwrap
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from jarilab.core.devices import has_bfloat16
from jarilab.core.errors import UserError
from jarilab.encodings.base import Encoding
from jarilab.nn.norms import BatchNorm
from jarilab.nn.sublayers import Table, TokenEmbedding
from jarilab.nn.token_before import TokenBefore
from jarilab.runs.training_options import Training
from jarilab.runs.weights import parts_named
from jarilab.training.distributed.parallel import is_sharded

Optimizer = torch.optim.Optimizer
Named = tuple[str, nn.Parameter]

BETAS, EPSILON = (0.9, 0.98), 1e-9
"""Of AdamW: Vaswani et al. 2017, section 5.3."""
MIN_STACKED, MAX_STACKED = 32, 128
"""The shorter sides of matrices that are stacked."""
# Larger products are as fast one by one on a CPU. Of smaller ones the last bits of a stack may differ.


def freeze(model: nn.Module, options: Training) -> list[nn.Module]:
    """Keep the values of the parts that the options name.

    Returns their batch norms, which keep their running statistics only in evaluation mode. Raises UserError if the
    options name all of the model.
    """
    frozen = parts_named(model, options.freeze, "freeze")
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in frozen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(
            f"training.freeze: expected parts of the model, got all of it, {options.freeze}; leave "
            "something to train"
        )
    buffers = {name for name, _ in model.named_buffers()}
    owners = {name.rpartition(".")[0] for name in frozen & buffers}
    norms = BatchNorm | _NormBase
    return [m for name, m in model.named_modules() if name in owners and isinstance(m, norms)]


def build_optimizers(model: nn.Module, options: Training) -> dict[str, Optimizer]:
    """The optimizers by name: `adamw` alone, or `muon` for matrices and `adamw` for the other parameters."""
    matrices, rest = _matrices_and_rest(model)
    lr, decay = options.lr, options.weight_decay
    if options.optimizer == "adamw":
        groups = [
            {"params": matrices, "weight_decay": decay},
            {"params": rest, "weight_decay": 0.0},
        ]
        # PyTorch refuses an empty group, as of a model whose other parameters are frozen.
        groups = [group for group in groups if group["params"]]
        return {"adamw": AdamW(groups, lr=lr, betas=BETAS, eps=EPSILON, fused=True)}
    optimizers: dict[str, Optimizer] = {}
    if matrices:
        # match_rms_adamw scales updates like AdamW's, so that one learning rate serves both.
        optimizers["muon"] = StackedMuon(
            matrices,
            lr=lr,
            weight_decay=decay,
            ns_steps=options.muon_steps,
            adjust_lr_fn="match_rms_adamw",
        )
    if rest:
        optimizers["adamw"] = AdamW(
            rest, lr=lr, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=True
        )
    return optimizers


def _matrices_and_rest(model: nn.Module) -> tuple[list[Named], list[Named]]:
    """The trained parameters: matrices that map vectors to vectors, and all others."""
    # Muon orthogonalises updates, which suits matrices that map vectors to vectors. So it gets no tables of vectors
    # (embeddings, parameters of encodings, the generator) and no recurrent cells, whose weights hold a matrix a gate.
    names: dict[nn.Parameter, str] = {}
    tables: set[nn.Parameter] = set()
    for owner_name, owner in model.named_modules():
        is_table = (
            isinstance(owner, Table | TokenEmbedding | TokenBefore | Encoding | nn.RNNBase)
            or owner_name == "generator"
        )
        for name, parameter in owner.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            # Tied weights have several owners and are updated once.
            names.setdefault(parameter, f"{owner_name}.{name}" if owner_name else name)
            if is_table or parameter.ndim != 2:
                tables.add(parameter)
    named = [(name, parameter) for parameter, name in names.items()]
    matrices = [each for each in named if each[1] not in tables]
    return matrices, [each for each in named if each[1] in tables]


class Uncompiled(Optimizer):
    """An optimizer without the wrappers that PyTorch puts around its methods for compiled code."""

    # The first call of a wrapped method imports the compiler: 1.0 s of CPU time in every run (AMD EPYC).
    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class AdamW(Uncompiled, torch.optim.AdamW):
    """`torch.optim.AdamW` that cannot be differentiated."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        return unwrap(torch.optim.AdamW.step)(self, closure)


@final
class StackedMuon(Uncompiled, torch.optim.Muon):
    """`torch.optim.Muon` (Jordan et al. 2024) that updates small matrices of one shape as a stack.

    Where bfloat16 products are slow, it updates all matrices so, in float32.
    """

    # At width 64 most of its time is the start of operations. A training step of arithmetic (batch 512, one core of an
    # AMD EPYC) takes 115 ms with this class and 126 ms with PyTorch's in float32, 86 and 97 ms in bfloat16: 9 and 14 %
    # more. A step of the default language model, whose matrices are wider, takes the same time with both (0 and 1 %).

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        stacks: list[tuple[dict[str, Any], list[Tensor]]] = []
        for group in self.param_groups:
            single, stacked = _by_shape(group["params"])
            stacks += [(group, parameters) for parameters in stacked]
            group["params"], group["all"] = single, group["params"]
        try:
            loss = super().step(closure)
        finally:
            for group in self.param_groups:
                group["params"] = group.pop("all")
        for group, parameters in stacks:
            self._step_stack(group, parameters)
        return loss

    def _step_stack(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Update matrices of one shape, or its transpose, with each operation of `torch.optim.Muon` once for all."""
        gradients = [cast("Tensor", parameter.grad) for parameter in parameters]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(
                    gradient, memory_format=torch.preserve_format
                )
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        momentum, lr = group["momentum"], float(group["lr"])
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)  # type: ignore[attr-defined]
        updates = buffers
        if group["nesterov"]:
            updates = torch._foreach_lerp(gradients, buffers, momentum)  # type: ignore[attr-defined]
        updates = _orthogonalised(
            updates, group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])  # type: ignore[attr-defined]
        for shape in {parameter.shape for parameter in parameters}:
            indices = [i for i, parameter in enumerate(parameters) if parameter.shape == shape]
            torch._foreach_add_(  # type: ignore[attr-defined]
                [parameters[i] for i in indices],
                [updates[i] for i in indices],
                alpha=-_adjusted_lr(lr, group["adjust_lr_fn"], shape),
            )


def _by_shape(parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Parameters to update one by one, and lists of those of one shape or its transpose, to update as a stack."""
    stacks: dict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
    single = []
    for parameter in parameters:
        shorter, longer = min(parameter.shape), max(parameter.shape)
        is_small = MIN_STACKED <= shorter <= MAX_STACKED
        is_stacked = is_small or not has_bfloat16(parameter.device)
        on_cpu = parameter.device.type == "cpu"
        if parameter.grad is None or is_sharded(parameter) or not (on_cpu and is_stacked):
            single.append(parameter)
        else:
            stacks[shorter, longer, parameter.dtype].append(parameter)
    return single, list(stacks.values())


def _orthogonalised(
    updates: Sequence[Tensor], coefficients: tuple[float, float, float], steps: int, eps: float
) -> list[Tensor]:
    """Newton-Schulz iteration of a stack of matrices; tall ones are transposed in it."""
    a, b, c = coefficients
    dtype = torch.bfloat16 if has_bfloat16(updates[0].device) else torch.float32
    cast_updates = [update.to(dtype) for update in updates]
    # Norm by norm: a sum over the stack has another order, and another last bit.
    norms = torch.stack([each.norm().clamp(min=eps) for each in cast_updates])
    is_tall = [each.shape[0] > each.shape[1] for each in cast_updates]
    x_NRC = torch.stack(
        [each.mT if tall else each for each, tall in zip(cast_updates, is_tall, strict=True)]
    )
    x_NRC = x_NRC / norms[:, None, None]
    for _ in range(steps):
        gram_NRR = x_NRC @ x_NRC.mT
        update_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=b, alpha=c)
        x_NRC = torch.baddbmm(x_NRC, update_NRR, x_NRC, beta=a)
    return [each.mT if tall else each for each, tall in zip(x_NRC, is_tall, strict=True)]


def _adjusted_lr(lr: float, rule: str | None, shape: torch.Size) -> float:
    """The learning rate for a matrix of this shape, as `torch.optim.Muon` adjusts it."""
    rows, columns = shape
    if rule == "match_rms_adamw":
        return lr * 0.2 * math.sqrt(max(rows, columns))
    return lr * math.sqrt(max(1, rows / columns))
