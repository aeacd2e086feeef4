"""How long and how to train: the options `--set training.NAME=VALUE`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le


@dataclass(frozen=True, kw_only=True)
class Training:
    """
    examples: how many examples to train on, counted as often as they are seen; the budget.
    batch: examples per step. optimizer: muon (matrices by Muon, the rest by AdamW) or adamw (all).
    learning_rate: its highest value. warm_up: the share of steps in which it rises linearly from 0; afterwards it
    falls linearly to 0. weight_decay: of matrices. clip: the largest norm of the gradient.
    evaluations: how often to look at held-out data on the way, evenly spread; evaluation_examples: at how much of it.
    The last evaluation is always on all of it. A checkpoint is written at each.
    """

    examples: Annotated[int, Ge(1)] = 1_000_000
    batch: Annotated[int, Ge(1), Le(1_000_000)] = 512
    optimizer: Literal["muon", "adamw"] = "muon"
    learning_rate: Annotated[float, Gt(0)] = 0.015
    warm_up: Annotated[float, Ge(0), Le(1)] = 0.05
    weight_decay: Annotated[float, Ge(0)] = 0.0
    clip: Annotated[float, Gt(0)] = 1.0
    evaluations: Annotated[int, Ge(1)] = 20
    evaluation_examples: Annotated[int, Ge(1)] = 2000

    @property
    def steps(self) -> int:
        """The number of steps, at least one."""
        return -(-self.examples // self.batch)

    def rate(self, step: int) -> float:
        """The learning rate of step 0, 1, ...: linear warm-up, then linear decay that ends at 0 after the last step."""
        done = (step + 1) / self.steps
        if done < self.warm_up:
            return self.learning_rate * done / self.warm_up
        return self.learning_rate * (self.steps - step) / (self.steps * (1 - self.warm_up) + 1)
