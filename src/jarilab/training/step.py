"""The steps of a training: each takes up a batch, computes its gradient and changes the weights."""

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
from jarilab.core.errors import UserError
from jarilab.inspect.record.capture import record
from jarilab.inspect.record.sites import attentions_of
from jarilab.nn.init import generator_for
from jarilab.runs import checkpoint
from jarilab.runs.folder import Run
from jarilab.tasks.base import Batch
from jarilab.training.batching import Batches
from jarilab.training.distributed.parallel import full
from jarilab.training.distributed.rows import even_parts, rows_of
from jarilab.training.state import TrainingState

ASKED_EVERY = 20
"""Steps after which an accelerator, or the other processes, are asked how they went: to ask is to wait for them."""


NO_MEMORY = "not enough memory"
"""What PyTorch says of the processor's memory; for accelerators there is an error of its own."""


class Steps:
    """Takes the steps of a training, and knows what the last ones were like.

    loss, norm, rate: of the last step that was asked for: its loss, the norm of its gradient, its learning rate.
    """

    def __init__(self, state: TrainingState, batches: Batches):
        self.state, self.batches = state, batches
        self.task, self.world = state.task, state.world
        self.tokens_per_example = state.task.tokens_per_example
        self.experiment, self.execution = state.experiment, state.execution
        alone = self.execution.device.type == "cpu" and not self.world.several
        self.asks_every = 1 if alone else ASKED_EVERY
        # Of the steps since the last question: the loss of each and the norm of its gradient.
        self.unasked: list[tuple[Tensor, Tensor]] = []
        self.loss = self.norm = self.rate = 0.0

    def take(self, run: Run, step: int, *, first: bool, asks: bool) -> dict[str, Any]:
        """One step of training; gives what a row of the curve says of it. first: of this process. asks: whether to ask
        how it went, before anything is changed; else that is asked now and then."""
        options, state, progress = self.experiment.options, self.state, self.state.progress
        wall, cpu = time.perf_counter(), time.process_time()

        chance = generator_for(self.experiment.seed, f"batch/{step}")
        batch = self.task.training_batch(self.batches.at(step), chance)
        loss = self._backward(run, batch, first=first)
        norm = nn.utils.clip_grad_norm_(state.model.parameters(), options.clip)
        self.unasked.append((loss, full(norm)))
        if asks or (step + 1) % self.asks_every == 0:
            self.ask(run, step + 1)
        self.rate = options.rate(step, self.batches.steps)
        state.update(self.rate)

        progress.step = step + 1
        progress.examples += len(batch.labels)
        progress.seconds += time.perf_counter() - wall
        progress.cpu_seconds += time.process_time() - cpu
        self.world.beat(progress.step)
        return self.row()

    def _backward(self, run: Run, batch: Batch, *, first: bool) -> Tensor:
        """The gradient of a batch: each process computes its rows, in as many passes as are asked for. Gives this
        process's share of the loss."""
        state, world, passes = self.state, self.world, self.execution.accumulate
        smoothing = self.experiment.options.label_smoothing
        precision, device = self.experiment.precision, self.execution.device
        parts = even_parts(len(batch.labels), world.size * passes)
        own = parts[world.rank * passes : (world.rank + 1) * passes]
        total = torch.zeros((), device=device)
        for number, rows in enumerate(own, 1):
            piece = batch if len(parts) == 1 else self._piece(batch, rows)
            there = to_device(piece, device)
            needed = first and number == 1
            with state.without_exchange(number < passes), world.together(), self._room():
                with autocast(precision, device), self._note_kernels(run, needed=needed):
                    scores = state.called(*there.inputs)
                if len(parts) == 1:
                    loss = self.task.loss(scores, there, smoothing)
                else:
                    terms = self.task.loss_terms(scores, there, smoothing)
                    shares = self._shares(batch, piece, rows, scores)
                    shared = [term * share for term, share in zip(terms, shares, strict=True)]
                    loss = torch.stack(shared).sum()
                # The gradient of several processes is the mean over them.
                (loss * world.size if world.several else loss).backward()
            total = total + loss.detach()
        return total

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Raises UserError where memory does not hold what the block computes."""
        try:
            yield
        except (torch.OutOfMemoryError, RuntimeError) as error:
            is_known = isinstance(error, torch.OutOfMemoryError) or NO_MEMORY in str(error)
            if not is_known:
                raise
            passes = 2 * self.execution.accumulate
            raise UserError(
                f"a step does not fit into the memory of {self.execution.device}: use --accumulate {passes}, which "
                f"computes it in {passes} passes, --recompute, or a smaller batch ({str(error).splitlines()[0]})"
            ) from None

    def _piece(self, batch: Batch, rows: slice) -> Batch:
        """These rows of a batch. Where there are none it is the first row, of which nothing counts, so that all
        processes do the same."""
        return rows_of(batch, rows if rows.start < rows.stop else slice(0, 1))

    def _shares(self, batch: Batch, piece: Batch, rows: slice, scores: Any) -> list[float]:
        """What a piece counts in each of the means that the loss of its batch is made of."""
        wholes = self.task.loss_counts(batch, scores)
        counts = self.task.loss_counts(piece, scores)
        if rows.start == rows.stop:
            return [0.0 for _ in wholes]
        return [count / (whole or 1) for count, whole in zip(counts, wholes, strict=True)]

    def ask(self, run: Run, step: int) -> None:
        """Fetch how the steps went that were not asked for yet, up to this one. Raises UserError where training would
        go on from numbers that are none."""
        if not self.unasked:
            return
        progress = self.state.progress
        losses = torch.stack([loss for loss, _ in self.unasked])
        if self.world.several:
            losses = losses.double()  # which not every accelerator has
            self.world.add_up(losses)
        norms = torch.stack([norm for _, norm in self.unasked]).tolist()
        first = step - len(self.unasked) + 1
        self.unasked.clear()
        for number, (loss, norm) in enumerate(zip(losses.tolist(), norms, strict=True), first):
            _check_finite(number, step, loss, norm, run.checkpoints)
            progress.losses.append(loss)
        self.loss, self.norm = progress.losses[-1], norms[-1]

    def row(self) -> dict[str, Any]:
        """How far training is; the loss is the last one that was asked for."""
        progress, tokens = self.state.progress, self.tokens_per_example
        done = {"step": progress.step, "steps": self.batches.steps, "examples": progress.examples}
        if tokens is not None:
            done["tokens"] = round(progress.examples * tokens)
        return {**done, "loss": self.loss}

    def curve_row(self) -> dict[str, Any]:
        """What a point of the curve has beside; its loss is the mean since the last one."""
        progress = self.state.progress
        mean = math.fsum(progress.losses) / len(progress.losses)
        progress.losses.clear()
        times = {"seconds": progress.seconds, "cpu_seconds": progress.cpu_seconds}
        return {"loss": mean, "gradient_norm": self.norm, "lr": self.rate, **times}

    @contextlib.contextmanager
    def _note_kernels(self, run: Run, *, needed: bool) -> Iterator[None]:
        """Write down, at the first step, which kernel each attention chose. A model of one's own may have none of ours;
        of a compiled one nobody hears."""
        model = self.state.model
        if not needed or self.execution.compile or not attentions_of(model):
            yield
            return
        with record(model) as tape:
            yield
        run.note_kernels(tape.kernels())


def _check_finite(step: int, now: int, loss: float, norm: float, checkpoints: Path) -> None:
    """Raises UserError where training would go on from numbers that are none. now: the step that training is at."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    kept = checkpoint.newest(checkpoints)[0]
    last = f"{kept} is the last checkpoint" if kept else "there is no checkpoint yet"
    when = "before the update" if step == now else f"at step {now}, when it was asked for"
    raise UserError(
        f"step {step}: the loss is {loss} and the norm of its gradient {norm}, so training stopped {when}; {last}. "
        "A lower training.lr or training.clip, a longer training.warmup or --precision float32 may help"
    )
