"""Measure contenders side by side on a machine that others use too.

One call of each after the other, A B C C B A A B C ..., so that a busy neighbour or a slower clock hits all alike; CPU
seconds, not wall time, in one thread; and the ratio is taken within a round, then its median and quartiles over rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

Times = dict[str, list[float]]
"""Seconds per call of each contender, a number for each round."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """The median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return Spread(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f} {self.high:.3f}]"


def measure(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    seconds: float = 0.1,
    clock: Callable[[], float] = time.process_time,
) -> Times:
    """Seconds per call. Each turn repeats a contender for about `seconds`; two calls beforehand warm it up."""
    calls = {}
    for name, run in contenders.items():
        run()
        calls[name] = max(1, round(seconds / max(_timed(run, 1, clock), 1e-9)))
    times: Times = {name: [] for name in contenders}
    for number in range(rounds):
        gc.collect()
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            times[name].append(_timed(contenders[name], calls[name], clock))
    return times


def _timed(run: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(calls):
        run()
    return (clock() - begin) / calls


class Apart:
    """A contender in a process of its own, since some settings, such as those of memory, are those of a process.

    build: a function of a module, which makes the contender there from `args`. seconds: of CPU that its calls took.
    """

    def __init__(self, build: Callable[..., Callable[[], object]], *args: Any):
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        self._process = spawning.Process(target=_serve, args=(theirs, build, args), daemon=True)
        self._process.start()
        theirs.close()
        self.seconds = 0.0

    def __call__(self) -> None:
        self._pipe.send(None)
        self.seconds += self._pipe.recv()

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, build: Callable[..., Callable[[], object]], args: tuple[Any, ...]) -> None:
    run = build(*args)
    while True:
        try:
            pipe.recv()
        except EOFError:
            return
        pipe.send(_timed(run, 1, time.process_time))


def measure_apart(contenders: Mapping[str, Apart], rounds: int) -> Times:
    """As `measure`, by the CPU seconds of their processes, which end with it; in longer turns, since each begins with
    what the processor's caches hold of another."""
    try:
        return measure(contenders, rounds, seconds=1.0, clock=lambda: sum(one.seconds for one in contenders.values()))
    finally:
        for one in contenders.values():
            one.close()


def ratio(times: Times, name: str, over: str) -> Spread:
    """Time of `name` divided by time of `over`, round by round."""
    return Spread.of([mine / theirs for mine, theirs in zip(times[name], times[over], strict=True)])


def milliseconds(times: Times, name: str) -> float:
    return round(1000 * statistics.median(times[name]), 3)


def arguments(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each contender (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


class Table:
    """Rows that are shown as they come, or together as JSON at the end."""

    def __init__(self, as_json: bool):
        self.rows: list[Row] = []
        self._as_json = as_json
        self._out = sys.stderr if as_json else sys.stdout

    def add(self, **row: Any) -> None:
        if not self.rows or self.rows[-1].keys() != row.keys():
            print("\n" + "  ".join(f"{name:>{_wide(name, value)}}" for name, value in row.items()), file=self._out)
        shown = (f"{value!s:>{_wide(name, value)}}" for name, value in row.items())
        print("  ".join(shown), file=self._out, flush=True)
        self.rows.append(row)

    def close(self) -> None:
        if self._as_json:
            print(json.dumps({"rows": self.rows}, default=vars))


def compare_encodings(
    contenders: Mapping[str, Callable[[], object]],
    base: str,
    targets: Mapping[str, float],
    rounds: int,
    table: Table,
    **case: str,
) -> None:
    """A row for each encoding, whose name is the contender's: its time, over that of `base`, and what we aim at."""
    times = measure(contenders, rounds)
    for name in contenders:
        cost = {"ms": milliseconds(times, name), f"over_{base}": ratio(times, name, base)}
        table.add(**case, encoding=name, **cost, target=targets.get(name, ""))


def _wide(name: str, value: Any) -> int:
    return max(len(name), 21 if isinstance(value, str | Spread) else 9)
