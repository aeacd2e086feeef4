"""The options of training, `--set training.NAME=VALUE`, and the precision of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt

from jarilab.core.devices import CPU, device_label, has_bfloat16
from jarilab.core.errors import UserError, unknown

REPLACED = {"examples": "epochs", "batch_size": "tokens"}
"""Options, and the option that replaces each where it is set."""

Precision = Literal["auto", "float32", "bfloat16"]
MIN_BFLOAT16_WIDTH = 64
"""Model dimension from which a training step is faster in bfloat16 than in float32."""
# On a CPU with AVX-512 BF16, PyTorch 2.13; `benchmarks/precision.py` measures it.


def deciding(training: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that others replace."""
    replaced = [old for old, new in REPLACED.items() if training.get(new) is not None]
    return {name: value for name, value in training.items() if name not in replaced}


@dataclass(frozen=True, kw_only=True)
class Training:
    """
    examples: training budget in examples; an example counts each time it is seen.
    epochs: training budget in passes over the data, instead of examples.
    batch_size: examples per step.
    tokens: tokens per step, padding included, instead of a batch size; examples of similar length share a batch.
    optimizer: muon (Muon for matrices, AdamW for the rest) or adamw (AdamW for all).
    muon_steps: Newton-Schulz iterations of an update of Muon; 3 take less time and are as good in most short trainings.
    lr: the highest learning rate.
    warmup: share of the steps in which the learning rate rises linearly from 0; then it falls linearly to 0.
    weight_decay: weight decay of matrices.
    clip: largest norm of the gradient; larger gradients are scaled down.
    label_smoothing: share of a target's probability that is spread over the vocabulary.
    average: decay of an exponential moving average of the weights, which is then evaluated and saved; 0 for none.
    evaluations: number of evaluations during training, evenly spread; a checkpoint is written at each.
    evaluation_examples: held-out examples of each evaluation during training; the result is always measured on all
        held-out data.
    patience: stop after this many evaluations without improvement (default: never stop early).
    positions: position IDs of tokens, in training and afterwards: sequential, offset, randomized, abacus or coupling,
        with options as in randomized:longest=2048, or a policy of your own as mine.py:Mine.
    init: start from the weights of this run, or of a Hugging Face folder, instead of random ones.
    init_checkpoint: the checkpoint of a run to start from: the last, or the best by its metric.
    freeze: parts whose weights are not trained, by name, such as encoder,embedding,layers.0.
    fresh: parts that start from random values in spite of `init`, such as generator for other classes.
    """

    examples: Annotated[int, Ge(1), Le(10**15)] = 1_000_000
    epochs: Annotated[float, Gt(0), Le(1e9)] | None = None
    batch_size: Annotated[int, Ge(1), Le(1_000_000)] = 512
    tokens: Annotated[int, Ge(1), Le(10_000_000)] | None = None
    optimizer: Literal["muon", "adamw"] = "muon"
    muon_steps: Annotated[int, Ge(1), Le(20)] = 5
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
    init: str | None = None
    init_checkpoint: Literal["last", "best"] = "last"
    freeze: str = ""
    fresh: str = ""

    def budget(self, size: int) -> int:
        """The number of examples to train on, for a data set of this size."""
        if self.epochs is None:
            return self.examples
        examples = round(self.epochs * size)
        return max(1, examples)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step 0, 1, ...: linear warmup, then linear decay to 0 after the last step."""
        fraction = (step + 1) / steps
        if fraction < self.warmup:
            return self.lr * fraction / self.warmup
        remaining_steps = steps - step
        decay_steps = steps * (1 - self.warmup) + 1
        return self.lr * remaining_steps / decay_steps


def choose_precision(d_model: int, device: torch.device = CPU) -> Literal["float32", "bfloat16"]:
    """bfloat16 if the device supports it and a model of this dimension is faster in it; else float32."""
    is_wide = d_model >= MIN_BFLOAT16_WIDTH
    return "bfloat16" if is_wide and has_bfloat16(device) else "float32"


def checked_precision(
    precision: Precision, d_model: int, device: torch.device
) -> Literal["float32", "bfloat16"]:
    """The precision to train in; `auto` is the faster one. Raises UserError if it is unknown or the device lacks it."""
    if precision == "auto":
        return choose_precision(d_model, device)
    if precision not in ("float32", "bfloat16"):
        raise unknown("precision", precision, ("auto", "float32", "bfloat16"))
    # Every CPU has bfloat16, though slowly without its own instructions.
    if precision == "bfloat16" and device != CPU and not has_bfloat16(device):
        raise UserError(f"expected a device with bfloat16, got {device_label(device)}; use float32")
    return precision
