"""The steps of a training: read a batch, compute its gradient, update the weights."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from jarilab.core.devices import autocast, to_device
from jarilab.core.errors import UserError, is_out_of_memory
from jarilab.inspect.record.capture import record
from jarilab.inspect.record.sites import attentions_of
from jarilab.nn.init import generator_for
from jarilab.runs import checkpoint
from jarilab.runs.folder import Run
from jarilab.tasks.base import Batch
from jarilab.training.batching import Batches
from jarilab.training.distributed.batch_rows import even_parts, rows_of
from jarilab.training.distributed.parallel import full
from jarilab.training.state import TrainingState

SYNC_EVERY = 20
"""Steps between two reads of losses from an accelerator or from other processes, which wait for them."""


class Steps:
    """Takes the steps of a training.

    loss, norm: the loss and the gradient norm of the last step that was synced. lr: the learning rate of the last step.
    """

    def __init__(self, state: TrainingState, batches: Batches):
        self.state, self.batches = state, batches
        self.task, self.world = state.task, state.world
        self.tokens_per_example = state.task.tokens_per_example
        self.experiment, self.execution = state.experiment, state.execution
        is_cpu = self.execution.device.type == "cpu"
        self.sync_every = 1 if is_cpu and not self.world.is_distributed else SYNC_EVERY
        self.pending: list[tuple[Tensor, Tensor]] = []
        """Loss and gradient norm of each step that is not synced yet."""
        self.loss = self.norm = self.lr = 0.0

    def take(self, run: Run, step: int, *, first: bool, sync: bool) -> dict[str, Any]:
        """Take one step; returns its row for the curve. Raises UserError if memory runs out or the loss is not finite.

        first: whether it is the first step of this process. sync: read its loss before the weights are updated.
        """
        options, state, progress = self.experiment.options, self.state, self.state.progress
        wall, cpu = time.perf_counter(), time.process_time()

        # Of the step, so that a resumed run draws the same numbers.
        generator = generator_for(self.experiment.seed, f"batch/{step}")
        batch = self.task.training_batch(self.batches.at(step), generator)
        loss = self._backward(run, batch, first=first)
        norm = nn.utils.clip_grad_norm_(state.model.parameters(), options.clip)
        self.pending.append((loss, full(norm)))
        if sync or (step + 1) % self.sync_every == 0:
            self.sync_losses(run, step + 1)
        restart = self.experiment.restart
        self.lr = options.rate(step - restart, self.batches.steps - restart)
        state.update(self.lr)

        progress.step = step + 1
        progress.examples += len(batch.labels)
        progress.seconds += time.perf_counter() - wall
        progress.cpu_seconds += time.process_time() - cpu
        self.world.heartbeat(progress.step)
        return self.row()

    def _backward(self, run: Run, batch: Batch, *, first: bool) -> Tensor:
        """Compute the gradient of this process's rows of a batch; returns their share of the loss."""
        state, world, passes = self.state, self.world, self.execution.accumulate
        smoothing = self.experiment.options.label_smoothing
        precision, device = self.experiment.precision, self.execution.device
        parts = even_parts(len(batch.labels), world.size * passes)
        rank_parts = parts[world.rank * passes : (world.rank + 1) * passes]
        total = torch.zeros((), device=device)
        for number, rows in enumerate(rank_parts, 1):
            part = batch if len(parts) == 1 else self._select(batch, rows)
            on_device = to_device(part, device)
            notes = first and number == 1
            sync = state.gradient_sync(enabled=number == passes)
            with sync, world.collective(), self._memory_errors():
                with autocast(precision, device), self._note_kernels(run, enabled=notes):
                    scores = state.wrapped(*on_device.inputs)
                if len(parts) == 1:
                    loss = self.task.loss(scores, on_device, smoothing)
                else:
                    terms = self.task.loss_terms(scores, on_device, smoothing)
                    weights = self._term_weights(batch, part, rows, scores)
                    weighted = [term * weight for term, weight in zip(terms, weights, strict=True)]
                    loss = torch.stack(weighted).sum()
                # DDP and FSDP take the mean of gradients over processes.
                (loss * world.size if world.is_distributed else loss).backward()
            total = total + loss.detach()
        return total

    @contextlib.contextmanager
    def _memory_errors(self) -> Iterator[None]:
        """Raises UserError if the block runs out of memory."""
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            passes = 2 * self.execution.accumulate
            raise UserError(
                f"a step does not fit into the memory of {self.execution.device}: use --accumulate {passes}, which "
                f"computes it in {passes} passes, --recompute, or a smaller batch ({str(error).splitlines()[0]})"
            ) from None

    def _select(self, batch: Batch, rows: slice) -> Batch:
        """These rows of a batch; the first row for an empty slice, with weight 0."""
        # Every process must compute something, for the collective operations.
        return rows_of(batch, rows if rows.start < rows.stop else slice(0, 1))

    def _term_weights(self, batch: Batch, part: Batch, rows: slice, scores: Any) -> list[float]:
        """The weight of a part of a batch in each of the means that the loss sums."""
        totals = self.task.loss_counts(batch, scores)
        counts = self.task.loss_counts(part, scores)
        if rows.start == rows.stop:
            return [0.0 for _ in totals]
        return [count / (total or 1) for count, total in zip(counts, totals, strict=True)]

    def sync_losses(self, run: Run, step: int) -> None:
        """Read the losses of pending steps, of which `step` is the last. Raises UserError if one is not finite."""
        if not self.pending:
            return
        progress = self.state.progress
        losses = torch.stack([loss for loss, _ in self.pending])
        if self.world.is_distributed:
            # Only here: not every accelerator has float64.
            losses = losses.double()
            self.world.all_sum(losses)
        norms = torch.stack([norm for _, norm in self.pending]).tolist()
        first = step - len(self.pending) + 1
        self.pending.clear()
        for number, (loss, norm) in enumerate(zip(losses.tolist(), norms, strict=True), first):
            _check_finite(number, step, loss, norm, run.checkpoints)
            progress.losses.append(loss)
        self.loss, self.norm = progress.losses[-1], norms[-1]

    def row(self) -> dict[str, Any]:
        """Counts of steps, examples and tokens so far, and the last synced loss."""
        progress, tokens = self.state.progress, self.tokens_per_example
        counts = {"step": progress.step, "steps": self.batches.steps, "examples": progress.examples}
        if tokens is not None:
            counts["tokens"] = round(progress.examples * tokens)
        return {**counts, "loss": self.loss}

    def curve_row(self) -> dict[str, Any]:
        """The other values of a row of the curve; its loss is the mean since the last row."""
        progress = self.state.progress
        mean = math.fsum(progress.losses) / len(progress.losses)
        progress.losses.clear()
        times = {"seconds": progress.seconds, "cpu_seconds": progress.cpu_seconds}
        return {"loss": mean, "gradient_norm": self.norm, "lr": self.lr, **times}

    @contextlib.contextmanager
    def _note_kernels(self, run: Run, *, enabled: bool) -> Iterator[None]:
        """Write to the record of the run which kernel each attention chose."""
        model = self.state.model
        # Calls of a compiled model cannot be recorded.
        if not enabled or self.execution.compile or not attentions_of(model):
            yield
            return
        with record(model) as tape:
            yield
        run.note_kernels(tape.kernels())


def _check_finite(step: int, now: int, loss: float, norm: float, checkpoints: Path) -> None:
    """Raises UserError for a loss or a gradient norm that is not finite. now: the current step."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    path = checkpoint.newest(checkpoints)[0]
    last = f"{path} is the last checkpoint" if path else "there is no checkpoint yet"
    when = "before the update" if step == now else f"at step {now}, when losses were read"
    raise UserError(
        f"step {step}: the loss is {loss} and the norm of its gradient {norm}, so training stopped {when}; {last}. "
        "A lower training.lr or training.clip, a longer training.warmup or --precision float32 may help"
    )
