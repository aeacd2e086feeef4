"""How far long work is: a bar with rate and time left on a terminal, plain lines where there is none."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PLAIN_EVERY = 10.0  # seconds between plain lines


class TrainingProgress:
    """Shows one line for each training at hand, on standard error."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self._console,
            refresh_per_second=4,
        )
        self._tasks: dict[str, Any] = {}
        self._began: dict[str, tuple[float, float]] = {}
        self._said: dict[str, float] = {}
        self._measured: dict[str, str] = {}

    def __enter__(self) -> TrainingProgress:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def update(self, name: str, row: dict[str, Any]) -> None:
        """Show the newest row of the curve of the training called `name`."""
        now = time.monotonic()
        first_time, first_examples = self._began.setdefault(name, (now, row["examples"]))
        rate = (row["examples"] - first_examples) / (now - first_time) if now > first_time else 0.0
        if "measured" in row:
            self._measured[name] = row["measured"]
        parts = [
            f"step {row['step']}/{row['steps']}",
            f"loss {row['loss']:.4f}",
            self._measured.get(name, ""),
        ]
        parts.append(f"{rate:,.0f} examples/s" if rate else "")
        note = "  ".join(part for part in parts if part)
        if self._console.is_terminal:
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=row["steps"], note=note)
            self._bars.update(self._tasks[name], completed=row["step"], note=note)
        elif "measured" in row or now - self._said.get(name, first_time) >= PLAIN_EVERY:
            self._said[name] = now
            left = (
                (row["steps"] - row["step"]) * (row["examples"] / row["step"]) / rate
                if rate
                else float("nan")
            )
            remaining = f"  {left:,.0f} s left" if rate else ""
            print(f"{name}: {note}{remaining}", file=sys.stderr, flush=True)
