"""Progress of long work on standard error: bars on a terminal, plain lines elsewhere."""

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

from jarilab.core.errors import printable

PLAIN_EVERY = 10.0
"""Seconds between plain lines."""
SHOWN_AFTER = 1.0
"""Seconds of work after which a terminal shows it."""
UNITS = ("tokens", "examples")
"""Units of a rate; the first one that a row counts is used."""
ALL = "all trials"


def drawing_console() -> Console:
    """Standard error for progress bars. The command escapes what all others write there."""
    return Console(file=getattr(sys.stderr, "drawing", None), stderr=True)


class Working:
    """Shows a description of work that takes long: a spinner on a terminal, a plain line elsewhere."""

    def __init__(self, description: str):
        self._description = printable(description)
        self._console = drawing_console()
        self._spinner: Progress | None = None
        self._lock = threading.Lock()
        delay = SHOWN_AFTER if self._console.is_terminal else PLAIN_EVERY
        self._timer = threading.Timer(delay, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Working:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop showing it; may be called twice."""
        with self._lock:
            self._timer.cancel()
            if self._spinner is not None:
                self._spinner.stop()
            self._spinner, self._description = None, ""

    def _show(self) -> None:
        with self._lock:
            # It may have ended while the timer fired.
            if not self._description:
                return
            if not self._console.is_terminal:
                print(f"jarilab: {self._description} ...", file=sys.stderr, flush=True)
                return
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description} ...", markup=False),
                TimeElapsedColumn(),
            )
            self._spinner = Progress(*columns, console=self._console, transient=True)
            self._spinner.add_task(self._description, total=None)
            self._spinner.start()


def working(description: str) -> Working:
    """A block of work with this description, such as `preparing the data`."""
    return Working(description)


class TrainingProgress:
    """Shows one line for each running training.

    waiting: names of all trainings, if there are several; waiting ones and the number of finished ones are shown, too.
    """

    def __init__(self, waiting: Sequence[str] = ()) -> None:
        self._console = drawing_console()
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
        self._starts: dict[str, tuple[float, float]] = {}
        self._printed: dict[str, float] = {}
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
        """Show the last row of the curve of the training with this name."""
        now = time.monotonic()
        unit = next(unit for unit in UNITS if unit in row)
        first_time, first_count = self._starts.setdefault(name, (now, row[unit]))
        rate = (row[unit] - first_count) / (now - first_time) if now > first_time else 0.0
        if "measured" in row:
            self._measured[name] = row["measured"]
        note = self._note(name, row, f"{rate:,.0f} {unit}/s" if rate else "")
        if row["step"] == row["steps"]:
            self._done.add(name)
        if self._console.is_terminal:
            self._draw(name, row, note)
        elif "measured" in row or now - self._printed.get(name, first_time) >= PLAIN_EVERY:
            self._printed[name] = now
            count_left = (row["steps"] - row["step"]) * (row[unit] / row["step"])
            time_left = f"  {count_left / rate:,.0f} s left" if rate else ""
            total = f"  ({self._summary()})" if self._names else ""
            print(f"{name}: {note}{time_left}{total}", file=sys.stderr, flush=True)

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
        """Add a bar; the first one counts all trainings."""
        self._tasks[name] = self._bars.add_task(
            printable(name), total=total, note=note, start=start
        )
        self._bars.start()

    def _summary(self) -> str:
        waiting = sum(name not in self._starts for name in self._names)
        return f"{len(self._done)} of {len(self._names)} trained, {waiting} waiting"


class CountProgress:
    """Shows how many of `total` are done, their rate and the time left, on standard error.

    done: those of an earlier run, which the rate leaves out. unit: what is counted.
    """

    def __init__(self, name: str, total: int, done: int = 0, unit: str = "examples") -> None:
        self._unit = unit
        self.total = total
        self._name, self._first = printable(name), done
        self._console = drawing_console()
        self._start = self._printed = time.monotonic()

    def __enter__(self) -> CountProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal and self._printed > self._start:
            print(file=self._console.file)

    def update(self, done: int) -> None:
        """Show that `done` examples are done, at most every few seconds."""
        now = time.monotonic()
        every = 0.25 if self._console.is_terminal else PLAIN_EVERY
        if now - self._printed < every and (done < self.total or self._printed == self._start):
            return
        self._printed = now
        rate = (done - self._first) / max(now - self._start, 1e-9)
        left = f"{(self.total - done) / rate:,.0f} s left" if rate else ""
        text = f"{self._name}: {done:,} of {self.total:,} {self._unit}  {rate:,.1f} {self._unit}/s  {left}"
        if self._console.is_terminal:
            print(f"\r{text}\x1b[K", end="", file=self._console.file, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)
