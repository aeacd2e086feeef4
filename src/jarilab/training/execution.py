"""Where and how a training is computed. Nothing here names a run: another machine goes on with it, and says what of it
is not exact from there on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from jarilab.core.devices import CPU, device_label


@dataclass(frozen=True, kw_only=True)
class Execution:
    """
    device: where the model is.
    accumulate: passes that make up a step, each over a part of its batch: what is kept for the gradient takes so many
        times less memory.
    recompute: keep only what goes into each layer, and compute the layer again for its gradient.
    compile: let torch.compile fuse the model's operations.
    checkpoint_minutes: write a checkpoint as often as that, too.
    shard: cut parameters, gradients and the optimizers' state over all processes (FSDP2).
    tensorboard: show TensorBoard how it goes. tensorboard_heads: whose maps are shown, `decoder.1.cross:2,encoder.0:0`;
        the first ones of each site where none are named.
    """

    device: torch.device = CPU
    accumulate: int = 1
    recompute: bool = False
    compile: bool = False
    checkpoint_minutes: float | None = None
    shard: bool = False
    tensorboard: bool = False
    tensorboard_heads: str | None = None

    def record(self) -> dict[str, Any]:
        """What of it decides bits, as run.json keeps it; what is as usual is left out."""
        device = device_label(self.device)
        decides = {
            "device": None if device == "cpu" else device,
            "accumulate": self.accumulate if self.accumulate > 1 else None,
            "compile": self.compile or None,
            "shard": self.shard or None,
        }
        return {name: value for name, value in decides.items() if value is not None}
