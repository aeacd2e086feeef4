"""Measure contenders side by side on a machine that others use too.

One call of each after the other, A B C C B A A B C ..., so that a busy neighbour or a slower clock hits all alike; CPU
seconds, not wall time, in one thread; and the ratio is taken within a round, then its median and quartiles over rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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
    return _in_turns(list(contenders), lambda name, calls: _timed(contenders[name], calls, clock), rounds, seconds)


def _in_turns(names: list[str], timed: Callable[[str, int], float], rounds: int, seconds: float) -> Times:
    calls = {}
    for name in names:
        timed(name, 1)
        calls[name] = max(1, round(seconds / max(timed(name, 1), 1e-9)))
    times: Times = {name: [] for name in names}
    for number in range(rounds):
        gc.collect()
        for name in names[:: -1 if number % 2 else 1]:
            times[name].append(timed(name, calls[name]))
    return times


def _timed(run: Callable[[], object], calls: int, clock: Callable[[], float] = time.process_time) -> float:
    begin = clock()
    for _ in range(calls):
        run()
    return (clock() - begin) / calls


def measure_apart(contenders: Mapping[str, Callable[[], Callable[[], object]]], starts: int, rounds: int) -> Times:
    """As `measure`, each contender in a process of its own, since some settings, such as those of memory, are those of
    a process; and in new processes for each of `starts`, since no two have the same pages. In turns of a second, as
    each begins with the caches full of what another left there.

    contenders: functions of modules, or `functools.partial` of them, that make the contender in its process.
    """
    times: Times = {name: [] for name in contenders}
    for _ in range(starts):
        with contextlib.ExitStack() as stack:
            apart = {name: stack.enter_context(_process(make)) for name, make in contenders.items()}
            found = _in_turns(
                list(apart), lambda name, calls, apart=apart: apart[name].submit(_again, calls).result(), rounds, 1.0
            )
        for name, some in found.items():
            times[name] += some
    return times


def _process(make: Callable[[], Callable[[], object]]) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_prepare, initargs=(make,))


def _prepare(make: Callable[[], Callable[[], object]]) -> None:
    _here.append(make())


def _again(calls: int) -> float:
    return _timed(_here[0], calls)


_here: list[Callable[[], object]] = []
"""The contender of this process, where it has one of its own."""


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
    """Rows in Markdown, shown as they come, or together as JSON at the end."""

    def __init__(self, as_json: bool):
        self.rows: list[Row] = []
        self._as_json = as_json
        self._out = sys.stderr if as_json else sys.stdout

    def add(self, **row: Any) -> None:
        if not self.rows or self.rows[-1].keys() != row.keys():
            print("\n" + _line(f"{name:>{_wide(name, value)}}" for name, value in row.items()), file=self._out)
            print(_line(f"{'-' * (_wide(name, value) - 1)}:" for name, value in row.items()), file=self._out)
        print(_line(f"{value!s:>{_wide(name, value)}}" for name, value in row.items()), file=self._out, flush=True)
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


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _wide(name: str, value: Any) -> int:
    return max(len(name), 21 if isinstance(value, str | Spread) else 9)
