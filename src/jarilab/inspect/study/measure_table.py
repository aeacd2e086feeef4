"""Measures of every head and example as float32 numbers in a file, with their means and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jarilab.inspect.measure.heads import measure
from jarilab.inspect.measure.measures import Measure
from jarilab.inspect.study.example import HeadMaps
from jarilab.inspect.study.head import Head
from jarilab.inspect.study.tables import plain

RESAMPLES = 2000
"""Bootstrap samples of examples."""
COLUMNS_AT_ONCE = 512
CELLS_AT_ONCE = 2**20
"""Numbers of a part of the examples, and of a part of the bootstrap samples."""
EXAMPLES_IN_MEMORY = 64
"""Examples that are collected before they are written to the file."""
LEVEL = 0.95


class MeasureTable:
    """Values and chances, `(N, H, M, 2)`: examples, heads, measures, and value or chance.

    path: the file of the numbers; None keeps them in memory. They are NaN where a map does not determine a measure.
    """

    def __init__(
        self, heads: Sequence[Head], measures: Mapping[str, Measure], path: Path | None = None
    ):
        self.heads, self.measures, self.path = list(heads), dict(measures), path
        self.examples = 0
        self._rows: tuple[int, int, list[dict[str, Any]]] | None = None
        # All examples, or those that are not in the file yet.
        self._memory: list[np.ndarray] = []

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one example."""
        return len(self.heads), len(self.measures), 2

    def measure(self, maps: Sequence[HeadMaps], values: np.ndarray) -> None:
        """Write the measures of some heads of an example into its `values`, `(H, M, 2)`."""
        for each in maps:
            scored = measure(each.map, self.measures)
            for column, name in enumerate(self.measures):
                values[each.rows, column, 0] = scored[name].value.numpy()
                values[each.rows, column, 1] = scored[name].chance.numpy()

    def blank(self) -> np.ndarray:
        """Values of an example that was not measured yet."""
        return np.full(self.shape, np.nan, np.float32)

    def append(self, values: np.ndarray) -> None:
        """Add the values of one example."""
        self.examples += 1
        self._memory.append(values)
        if len(self._memory) >= EXAMPLES_IN_MEMORY:
            self.flush()

    def flush(self) -> None:
        """Write the examples in memory to the file."""
        if self.path is None or not self._memory:
            return
        with self.path.open("ab") as file:
            file.write(np.stack(self._memory).astype("<f4").tobytes())
        self._memory.clear()

    def truncate(self, examples: int) -> None:
        """Drop all examples but the first ones. Raises ValueError if there are fewer."""
        self.examples = examples
        if self.path is None:
            del self._memory[examples:]
            return
        self._memory.clear()
        size = examples * int(np.prod(self.shape)) * 4
        with self.path.open("ab") as file:
            if file.tell() < size:
                raise ValueError(f"{self.path.name} is shorter than {size} bytes")
            file.truncate(size)

    def values(self) -> np.ndarray:
        """All numbers, `(N, H, M, 2)`, mapped from the file."""
        shape = (self.examples, *self.shape)
        if self.path is None or not self.examples:
            return np.stack(self._memory) if self._memory else np.empty(shape, np.float32)
        self.flush()
        return np.memmap(self.path, "<f4", "r", shape=shape)

    def rows(self, seed: int = 0) -> list[dict[str, Any]]:
        """A row a head: mean, interval, chance and number of examples of each measure."""
        if self._rows is None or self._rows[:2] != (self.examples, seed):
            columns = int(np.prod(self.shape))
            mean, low, high = np.full((3, columns), np.nan)
            count = np.zeros(columns, np.int64)
            for first in range(0, columns, COLUMNS_AT_ONCE):
                part = slice(first, first + COLUMNS_AT_ONCE)
                result = bootstrap(_Columns(self, part), seed)
                mean[part], low[part], high[part], count[part] = result
            table = [array.reshape(self.shape) for array in (mean, low, high, count)]
            rows = [self._row(number, head, table) for number, head in enumerate(self.heads)]
            self._rows = self.examples, seed, rows
        return [dict(row) for row in self._rows[2]]

    def _row(self, number: int, head: Head, table: list[np.ndarray]) -> dict[str, Any]:
        mean, low, high, count = (array[number] for array in table)
        row = head.columns
        for column, (name, each) in enumerate(self.measures.items()):
            least, most = each.range or (-np.inf, np.inf)
            row[name] = plain(mean[column, 0])
            row[f"{name}_low"] = plain(max(low[column, 0], least))
            row[f"{name}_high"] = plain(min(high[column, 0], most))
            row[f"{name}_chance"] = plain(mean[column, 1])
            row[f"{name}_count"] = int(count[column, 0])
        return row


class _Columns:
    """Some columns of a table, of which a part of the examples is read at a time.

    Pages of a mapped file count as memory until the map is closed, so each part opens the file again.
    """

    def __init__(self, table: MeasureTable, columns: slice):
        self.table, self.columns = table, columns
        self._values = table.values() if table.path is None else None

    def __len__(self) -> int:
        return self.table.examples

    def __getitem__(self, rows: slice) -> np.ndarray:
        values = self.table.values() if self._values is None else self._values
        return np.array(values[rows].reshape(-1, int(np.prod(self.table.shape)))[:, self.columns])


def bootstrap(
    values: np.ndarray | _Columns, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean, 95 % interval and count of each column of `(N, C)`; NaN entries are left out.

    Rows are resampled with replacement (Efron 1979), the same ones for all columns, and the percentile interval is
    made wider for few examples, see `widening`. An interval needs two values.
    """
    size = max(1, CELLS_AT_ONCE // values[:1].shape[1])
    parts = [slice(first, first + size) for first in range(0, len(values), size)]
    count, total = np.zeros((2, values[:1].shape[1]))
    for part in parts:
        defined = np.isfinite(values[part])
        count += defined.sum(0)
        total += np.where(defined, values[part], 0).sum(0, dtype=np.float64)
    count = count.astype(np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / count
        if len(values) < 2:
            return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan), count
        draws = []
        for weights in resampled(len(values), seed):
            sums, sizes = np.zeros((2, len(weights), len(mean)), np.float32)
            for part in parts:
                block = values[part]
                defined = np.isfinite(block)
                # Deviations, so that float32 resolves them.
                deviation = np.where(defined, block - mean, 0).astype(np.float32)
                sums += weights[:, part] @ deviation
                sizes += weights[:, part] @ defined.astype(np.float32)
            draws.append(sums / sizes)
        ends, enough = [(1 - LEVEL) / 2, (1 + LEVEL) / 2], count > 1
        low, high = np.full((2, len(mean)), np.nan)
        if enough.any():
            drawn = np.concatenate(draws)[:, enough]
            widths = widening(count[enough])
            low[enough], high[enough] = np.nanquantile(drawn, ends, axis=0) * widths
    return mean, mean + low, mean + high, count


def widening(count: np.ndarray | int) -> np.ndarray:
    """How many times as wide a percentile interval has to be for so many examples: 9.2 for 2, 1.6 for 5, 1.1 for 20.

    Resamples vary less than samples do, and their quantiles are those of a normal distribution, not of Student's
    (Hesterberg 2015, *What teachers should know about the bootstrap*).
    """
    from scipy.special import ndtri, stdtrit

    end = (1 + LEVEL) / 2
    return stdtrit(count - 1, end) / ndtri(end) * np.sqrt(count / (count - 1))


def interval_columns(name: str, values: np.ndarray, seed: int) -> dict[str, list[float | None]]:
    """Columns of a table: mean and interval of each column of `(N, C)`; None where all is NaN."""
    table = np.full((3, values.shape[1]), np.nan)
    measured = np.isfinite(values).any(0)
    if measured.any():
        table[:, measured] = bootstrap(values[:, measured], seed)[:3]
    names = (name, f"{name}_low", f"{name}_high")
    return {each: list(map(plain, column)) for each, column in zip(names, table, strict=True)}


def resampled(count: int, seed: int) -> Iterator[np.ndarray]:
    """How often each of `count` examples is drawn, for `RESAMPLES` samples, some at a time."""
    generator = np.random.default_rng(seed)
    size = min(RESAMPLES, max(1, CELLS_AT_ONCE // count))
    for first in range(0, RESAMPLES, size):
        weights = np.empty((min(size, RESAMPLES - first), count), np.float32)
        for row in range(len(weights)):
            weights[row] = np.bincount(generator.integers(0, count, count), minlength=count)
        yield weights
