"""Where and how a training is computed; no part of the experiment, so a run may continue on another machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from jarilab.core.devices import CPU, device_label

Report = Callable[[dict[str, Any]], None]
"""Callback after each step, with its step, steps, examples and loss, and `measured` after an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """
    device: the device of the model.
    accumulate: passes a step, each over a part of the batch (gradient accumulation). Activations take so many times
        less memory.
    recompute: keep only each layer's input, and compute the layer again for its gradient (activation checkpointing).
    compile: compile the model with torch.compile.
    checkpoint_minutes: minutes between checkpoints, besides those at evaluations.
    shard: shard parameters, gradients and the optimizers' state over all processes (FSDP2).
    tensorboard: write TensorBoard's files. tensorboard_heads: heads whose maps are shown, as
        `decoder.1.cross:2,encoder.0:0`; by default the first heads of each site.
    eval_lengths: other lengths of held-out data at which the finished model is measured, in ascending order.
    """

    device: torch.device = CPU
    accumulate: int = 1
    recompute: bool = False
    compile: bool = False
    checkpoint_minutes: float | None = None
    shard: bool = False
    tensorboard: bool = False
    tensorboard_heads: str | None = None
    eval_lengths: tuple[int, ...] = ()

    def record(self) -> dict[str, Any]:
        """The fields of run.json that decide the bits of a result, without those that have their default."""
        device = device_label(self.device)
        values = {
            "device": None if device == "cpu" else device,
            "accumulate": self.accumulate if self.accumulate > 1 else None,
            "compile": self.compile or None,
            "shard": self.shard or None,
        }
        return {name: value for name, value in values.items() if value is not None}
