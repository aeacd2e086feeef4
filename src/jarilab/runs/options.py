"""How long and how to train: the options `--set training.NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

REPLACED = {"examples": "epochs", "batch_size": "tokens"}
"""Options, and what takes the place of each where it is set."""


def deciding(training: Mapping[str, Any]) -> dict[str, Any]:
    """Without the options that others take the place of."""
    replaced = [old for old, new in REPLACED.items() if training.get(new) is not None]
    return {name: value for name, value in training.items() if name not in replaced}


@dataclass(frozen=True, kw_only=True)
class Training:
    """
    examples: how many examples to train on, counted as often as they are seen; the budget.
    epochs: the budget as passes over the data instead.
    batch_size: examples per step.
    tokens: tokens per step instead, padding counted, of as many examples of like length as fit.
    optimizer: muon (matrices by Muon, the rest by AdamW) or adamw (all).
    lr: the highest learning rate.
    warmup: the share of the budget in which the learning rate rises linearly from 0; then it falls linearly to 0.
    weight_decay: of matrices.
    clip: the largest norm of the gradient.
    label_smoothing: the share of a target's probability that is spread over the vocabulary.
    average: the decay of an exponential moving average of the weights, which is then what is measured and kept; 0 for
        none.
    evaluations: how often to look at held-out data on the way, evenly spread.
    evaluation_examples: at how much of it. The last evaluation is always on all of it. A checkpoint is written at each.
    patience: stop after so many looks without a better one.
    positions: where tokens are told to be, in training and ever after: sequential, offset, randomized, abacus or
        coupling, with options as in randomized:longest=2048, or one's own, mine.py:Mine.
    """

    examples: Annotated[int, Ge(1), Le(10**15)] = 1_000_000
    epochs: Annotated[float, Gt(0), Le(1e9)] | None = None
    batch_size: Annotated[int, Ge(1), Le(1_000_000)] = 512
    tokens: Annotated[int, Ge(1), Le(10_000_000)] | None = None
    optimizer: Literal["muon", "adamw"] = "muon"
    lr: Annotated[float, Gt(0)] = 0.015
    warmup: Annotated[float, Ge(0), Le(1)] = 0.05
    weight_decay: Annotated[float, Ge(0), Le(1e6)] = 0.0
    clip: Annotated[float, Gt(0)] = 1.0
    label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0
    average: Annotated[float, Ge(0), Lt(1)] = 0.0
    evaluations: Annotated[int, Ge(1), Le(1_000_000)] = 20
    evaluation_examples: Annotated[int, Ge(1)] = 2000
    patience: Annotated[int, Ge(1)] | None = None
    positions: str = "sequential"

    def budget(self, size: int) -> int:
        """How many examples to train on, of data of this size."""
        if self.epochs is None:
            return self.examples
        examples = round(self.epochs * size)
        return max(1, examples)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step 0, 1, ... of `steps`: linear warm-up, then linear decay that ends at 0 after the
        last step."""
        done = (step + 1) / steps
        if done < self.warmup:
            return self.lr * done / self.warmup
        left = steps - step
        falling = steps * (1 - self.warmup) + 1
        return self.lr * left / falling
