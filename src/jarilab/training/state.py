"""The state of a training: model, optimizers and progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from annotated_types import Ge, Lt
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from jarilab.runs.experiment import Experiment
from jarilab.runs.origins import Origin
from jarilab.tasks.base import Task
from jarilab.training.batching import sample_batch
from jarilab.training.determinism import compile_model
from jarilab.training.distributed.parallel import (
    full_weights,
    layers_of,
    moving_average,
    replicate,
    shard,
    without_gradient_sync,
)
from jarilab.training.distributed.world import World
from jarilab.training.execution import Execution
from jarilab.training.optimization import build_optimizers, freeze

Count = Annotated[int, Ge(0), Lt(2**63)]


@dataclass
class Progress:
    """How far a training is.

    step: steps taken. examples: examples trained on, counted each time. seconds, cpu_seconds: of all steps, without
    evaluations. losses: of each step since the last row of the curve. rows: rows of the curve. best: step and metric of
    the best evaluation. evaluations_without_better: evaluations since the last improvement. due: values of the next row
    while its evaluation is due, after a signal interrupted it.
    """

    step: Count = 0
    examples: Count = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    best: dict[str, Any] | None = None
    evaluations_without_better: Count = 0
    due: dict[str, float] | None = None
    rows: Count | None = None


class TrainingState:
    """A model in training, its optimizers and its progress.

    model: the trained model, on its device. wrapped: the same model as a step calls it, in DDP and torch.compile if
    these are used. averaged: its moving average, if one is asked for.
    """

    def __init__(
        self,
        experiment: Experiment,
        task: Task,
        execution: Execution,
        world: World | None = None,
        origin: Origin | None = None,
    ):
        options = experiment.options
        self.experiment = experiment
        self.task = task
        self.execution = execution
        self.world = world or World(device=execution.device)
        model = experiment.resolved.initial_model(task)
        if origin is not None:
            origin.load_into(model, experiment, task)
        self._frozen_norms = freeze(model, options)
        self.model = model.to(execution.device)
        self.averaged: AveragedModel | None = None
        if options.average:
            self.averaged = moving_average(self.model, options.average)
        if execution.recompute:
            _recompute_layers(self.model, compiled=execution.compile)
        if execution.shard:
            shard(self.model)
            if self.averaged is not None:
                shard(self.averaged.module)
        self.optimizers = build_optimizers(self.model, options)
        self.progress = Progress()
        self.wrapped = self._wrap()

    def new_model(self) -> nn.Module:
        """Another model of the same kind, not initialised, on the CPU."""
        return self.experiment.resolved.build_model(self.task)

    def _wrap(self) -> nn.Module:
        wrapped = self.model
        if self.world.is_distributed and not self.execution.shard:
            has_unused = self._has_unused_parameters()
            with self.world.collective():
                wrapped = replicate(wrapped, has_unused)
        return compile_model(wrapped) if self.execution.compile else wrapped

    def _has_unused_parameters(self) -> bool:
        """Whether some parameters get no gradient in a step, such as those of distances that never occur."""
        batch = sample_batch(self.task, self.execution.device)
        # On copies of the buffers: a forward changes running statistics.
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        scores = functional_call(self.model, buffers, batch.inputs)
        self.task.loss(scores, batch).backward()
        has_unused = any(p.grad is None and p.requires_grad for p in self.model.parameters())
        self.model.zero_grad()
        return has_unused

    def train(self) -> None:
        """Set the model to training mode, except for frozen batch norms."""
        self.model.train()
        for norm in self._frozen_norms:
            norm.eval()

    def gradient_sync(self, *, enabled: bool) -> AbstractContextManager[Any]:
        """A context in which gradients are summed over processes only if enabled, as in the last pass of a step."""
        if enabled or not self.world.is_distributed:
            return nullcontext()
        if self.execution.shard:
            return without_gradient_sync(self.model)
        return self.wrapped.no_sync()  # type: ignore[operator]

    @property
    def evaluated(self) -> nn.Module:
        """The model to evaluate: the average if there is one, and whole if the model is sharded."""
        if self.execution.shard:
            # Decoding calls other methods than forward, which FSDP does not gather parameters for.
            model = self.new_model().to(self.execution.device)
            model.load_state_dict(full_weights(self.saved))
            return model
        return self.saved

    @property
    def saved(self) -> nn.Module:
        """The model that checkpoints save, perhaps sharded."""
        return self.model if self.averaged is None else self.averaged.module

    @property
    def raw(self) -> nn.Module | None:
        """The trained model if the saved one is its average; None otherwise."""
        return None if self.averaged is None else self.model

    def weights(self) -> dict[str, Tensor]:
        """The saved weights, whole and on the CPU."""
        return full_weights(self.saved)

    def update(self, lr: float) -> None:
        """Take one optimizer step at this learning rate."""
        # Set here and not by a scheduler, whose state a checkpoint would have to save.
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad()
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)


def _recompute_layers(model: nn.Module, *, compiled: bool) -> None:
    """Keep only each layer's input, and compute the layer again in the backward pass (activation checkpointing).

    Takes less memory and about a third more time. Random draws are the same both times.
    """
    for layer in layers_of(model):
        recomputed = partial(checkpoint, layer.forward, use_reentrant=False)
        # A compiled layer changes its buffers once, and takes no contexts of this kind.
        if not compiled:
            recomputed.keywords["context_fn"] = partial(_recompute_contexts, layer)
        layer.forward = recomputed  # type: ignore[method-assign]


def _recompute_contexts(layer: nn.Module) -> tuple[AbstractContextManager[None], ...]:
    """Contexts of a layer's first and second forward."""
    return nullcontext(), _on_copies_of_buffers(layer)


@contextmanager
def _on_copies_of_buffers(layer: nn.Module) -> Iterator[None]:
    """Let a layer change copies of its buffers in the block, such as running statistics."""
    owners = [(module, dict(module._buffers)) for module in layer.modules()]
    for module, buffers in owners:
        copies = {name: None if old is None else old.clone() for name, old in buffers.items()}
        module._buffers.update(copies)
    try:
        yield
    finally:
        for module, buffers in owners:
            module._buffers.update(buffers)
