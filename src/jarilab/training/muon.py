"""Muon with the matrices of one shape at a time: the same numbers in fewer operations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from jarilab.training.distributed.parallel import in_parts
from jarilab.training.uncompiled import Uncompiled

SMALLEST, LARGEST = 32, 128
"""The shorter sides of matrices that are stacked. Beyond, many products are as fast as one of many matrices, on a CPU;
below, the last bits of the two may differ."""


@final
class StackedMuon(Uncompiled, torch.optim.Muon):
    """`torch.optim.Muon` (Jordan et al. 2024), bit for bit and with the same state, over stacks of matrices of one
    shape, or of it transposed, where those are small: at width 64 most of its time is the start of operations. Others,
    and those that several processes hold in parts, go to PyTorch's."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        stacks: list[tuple[dict[str, Any], list[Tensor]]] = []
        for group in self.param_groups:
            alone, of_shape = _by_shape(group["params"])
            stacks += [(group, stacked) for stacked in of_shape]
            group["params"], group["all"] = alone, group["params"]
        try:
            loss = super().step(closure)
        finally:
            for group in self.param_groups:
                group["params"] = group.pop("all")
        for group, parameters in stacks:
            self._step_together(group, parameters)
        return loss

    def _step_together(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """A step of matrices of one shape, or of it transposed, each operation of `torch.optim.Muon` once for all of
        them."""
        gradients = [_gradient(parameter) for parameter in parameters]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(
                    gradient, memory_format=torch.preserve_format
                )
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        momentum, rate = group["momentum"], float(group["lr"])
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)  # type: ignore[attr-defined]
        updates = buffers
        if group["nesterov"]:
            updates = torch._foreach_lerp(gradients, buffers, momentum)  # type: ignore[attr-defined]
        turned = _orthogonal(updates, group["ns_coefficients"], group["ns_steps"], group["eps"])
        torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])  # type: ignore[attr-defined]
        for shape in {parameter.shape for parameter in parameters}:
            adjusted = _adjusted(rate, group["adjust_lr_fn"], shape)
            some = [number for number, each in enumerate(parameters) if each.shape == shape]
            torch._foreach_add_(  # type: ignore[attr-defined]
                [parameters[number] for number in some],
                [turned[number] for number in some],
                alpha=-adjusted,
            )


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _by_shape(parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Those that go alone, and those together that are of one shape, or of it transposed."""
    found: dict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
    alone = []
    for parameter in parameters:
        small = SMALLEST <= min(parameter.shape) <= LARGEST and parameter.device.type == "cpu"
        if parameter.grad is None or in_parts(parameter) or not small:
            alone.append(parameter)
        else:
            found[min(parameter.shape), max(parameter.shape), parameter.dtype].append(parameter)
    return alone, list(found.values())


def _orthogonal(
    updates: Sequence[Tensor], coefficients: tuple[float, float, float], steps: int, eps: float
) -> list[Tensor]:
    """Newton-Schulz iteration in bfloat16 of N matrices, of as many rows as columns or fewer, or transposed."""
    a, b, c = coefficients
    halved = [update.bfloat16() for update in updates]
    # Each norm by itself: summed in another order its last bit would differ.
    norms = torch.stack([each.norm().clamp(min=eps) for each in halved])
    tall = [each.shape[0] > each.shape[1] for each in halved]
    together = torch.stack(
        [each.mT if is_tall else each for each, is_tall in zip(halved, tall, strict=True)]
    )
    together = together / norms[:, None, None]
    for _ in range(steps):
        gram = together @ together.mT
        update = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        together = torch.baddbmm(together, update, together, beta=a)
    return [each.mT if is_tall else each for each, is_tall in zip(together, tall, strict=True)]


def _adjusted(rate: float, how: str | None, shape: torch.Size) -> float:
    """As `torch.optim.Muon` adjusts a learning rate to the shape of a matrix."""
    rows, columns = shape
    if how == "match_rms_adamw":
        return rate * 0.2 * math.sqrt(max(rows, columns))
    return rate * math.sqrt(max(1, rows / columns))
