"""How far long work is: a bar with rate and time left on a terminal, plain lines where there is none."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PLAIN_EVERY = 10.0
"""Seconds between plain lines."""
MOMENT = 1.0
"""Seconds of silence that nobody minds."""
UNITS = ("tokens", "examples")
"""What a rate is told in: the first of these that a row counts."""
ALL = "all trials"


class Working:
    """Says what is being done, where it takes longer than a moment: a line that turns on a terminal and goes away, a
    plain line where there is none."""

    def __init__(self, what: str):
        self._what = what
        self._console = Console(stderr=True)
        self._turning: Progress | None = None
        self._lock = threading.Lock()
        delay = MOMENT if self._console.is_terminal else PLAIN_EVERY
        self._timer = threading.Timer(delay, self._say)
        self._timer.daemon = True

    def __enter__(self) -> Working:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """It is done; may be said twice."""
        with self._lock:
            self._timer.cancel()
            if self._turning is not None:
                self._turning.stop()
            self._turning, self._what = None, ""

    def _say(self) -> None:
        with self._lock:
            if not self._what:  # ended while the timer went off
                return
            if not self._console.is_terminal:
                print(f"jarilab: {self._what} ...", file=sys.stderr, flush=True)
                return
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description} ...", markup=False),
                TimeElapsedColumn(),
            )
            self._turning = Progress(*columns, console=self._console, transient=True)
            self._turning.add_task(self._what, total=None)
            self._turning.start()


def working(what: str) -> Working:
    """Inside the block, `what` is being done."""
    return Working(what)


class TrainingProgress:
    """Shows one line for each training at hand, on standard error.

    waiting: the names of all that will be trained, where they are several; those that wait are shown too, and how many
    are done.
    """

    def __init__(self, waiting: Sequence[str] = ()) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self._console,
            refresh_per_second=4,
        )
        self._names = list(waiting)
        self._done: set[str] = set()
        self._tasks: dict[str, Any] = {}
        self._began: dict[str, tuple[float, float]] = {}
        self._said: dict[str, float] = {}
        self._measured: dict[str, str] = {}

    def __enter__(self) -> TrainingProgress:
        if self._console.is_terminal and self._names:
            self._add(ALL, len(self._names), "")
            for name in self._names:
                self._add(name, None, "waiting", start=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def update(self, name: str, row: dict[str, Any]) -> None:
        """Show the newest row of the curve of the training called `name`."""
        now = time.monotonic()
        unit = next(unit for unit in UNITS if unit in row)
        first_time, first_count = self._began.setdefault(name, (now, row[unit]))
        rate = (row[unit] - first_count) / (now - first_time) if now > first_time else 0.0
        if "measured" in row:
            self._measured[name] = row["measured"]
        note = self._note(name, row, f"{rate:,.0f} {unit}/s" if rate else "")
        if row["step"] == row["steps"]:
            self._done.add(name)
        if self._console.is_terminal:
            self._draw(name, row, note)
        elif "measured" in row or now - self._said.get(name, first_time) >= PLAIN_EVERY:
            self._said[name] = now
            left = (row["steps"] - row["step"]) * (row[unit] / row["step"])
            remaining = f"  {left / rate:,.0f} s left" if rate else ""
            print(f"{name}: {note}{remaining}{self._total()}", file=sys.stderr, flush=True)

    def _note(self, name: str, row: dict[str, Any], rate: str) -> str:
        step = f"step {row['step']}/{row['steps']}"
        parts = [step, f"loss {row['loss']:.4f}", self._measured.get(name, ""), rate]
        return "  ".join(part for part in parts if part)

    def _draw(self, name: str, row: dict[str, Any], note: str) -> None:
        if name not in self._tasks:
            self._add(name, row["steps"], note)
        task = self._tasks[name]
        self._bars.start_task(task)
        self._bars.update(task, completed=row["step"], total=row["steps"], note=note)
        if self._names:
            self._bars.update(self._tasks[ALL], completed=len(self._done), note=self._summary())

    def _add(self, name: str, total: int | None, note: str, *, start: bool = True) -> None:
        """A bar; the first one shows them all."""
        self._tasks[name] = self._bars.add_task(name, total=total, note=note, start=start)
        self._bars.start()

    def _total(self) -> str:
        """What a plain line says of all trials."""
        return f"  ({self._summary()})" if self._names else ""

    def _summary(self) -> str:
        waiting = sum(name not in self._began for name in self._names)
        return f"{len(self._done)} of {len(self._names)} trained, {waiting} waiting"
