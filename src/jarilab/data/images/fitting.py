"""Training, freezing and loading of small helper models, such as the image tokenizer."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor

MAX_WEIGHT_BYTES = 256 * 2**20

Progress = Callable[[int, int], None]
"""Callback after each step, with the step from 1 and the number of steps."""


def fit(
    model: nn.Module,
    loss_of: Callable[[int], Float[Tensor, ""]],
    optimizer: torch.optim.Optimizer,
    steps: int,
    *,
    clip: float = math.inf,
    progress: Progress | None = None,
) -> None:
    """Train a model with a one-cycle learning rate, then freeze it.

    The rate rises over a tenth of the steps. loss_of: the loss of each step, from 0. clip: the largest gradient norm.
    Raises UserError if the loss is not finite.
    """
    # torch divides by 0 if the rise ends with the first step.
    rise = 0.1 if steps > 10 else 0.0
    schedule = OneCycleLR(optimizer, optimizer.defaults["lr"], steps, pct_start=rise)
    model.train()
    for step in range(steps):
        loss = loss_of(step)
        if not math.isfinite(loss.item()):
            raise UserError(
                f"step {step + 1} of {steps}: the loss of the {type(model).__name__} is {loss.item()}; "
                "a lower learning rate may help"
            )
        optimizer.zero_grad()
        loss.backward()
        if clip < math.inf:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, steps)
    model.eval().requires_grad_(False)


def note(text: str) -> None:
    """Print one line on standard error, before slow work."""
    print(f"jarilab: {text}", file=sys.stderr)


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Show a progress bar with rate and time left on standard error, if it is a terminal."""
    # The command escapes what is written to standard error, but not to its stream for bars.
    console = Console(file=getattr(sys.stderr, "drawing", None), stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task(title, total=1, rate="")

        def show(step: int, steps: int) -> None:
            speed = bars.tasks[bar].speed
            rate = f"{speed:,.1f} steps/s" if speed else ""
            bars.update(bar, completed=step, total=steps, rate=rate)

        yield show


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the header of a safetensors file. Raises UserError for any other."""
    try:
        if path.stat().st_size > MAX_WEIGHT_BYTES:
            raise UserError(
                f"{path} is larger than {MAX_WEIGHT_BYTES >> 20} MB, which no tokenizer of images is"
            )
        data = path.read_bytes()
        tensors = load(data)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be read: {error}; the run cannot answer without it: put back a copy"
        ) from None
    # `load` omits the metadata. A safetensors file starts with the length of its JSON header.
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return tensors, header.get("__metadata__", {})


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load weights into a model and freeze it. Raises UserError if they do not fit."""
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise foreign_weights(path, error) from None
    model.eval().requires_grad_(False)


def foreign_weights(path: Path, error: Exception) -> UserError:
    """Return the error for weights that do not belong to the run."""
    reason = " ".join(str(error).split())[:200]
    return UserError(
        f"{path} holds other weights than expected: {reason}; put back the file of the run"
    )
