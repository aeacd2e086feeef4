"""Every encoding on every kind of task, once and small: which of them work where, and roughly how well.

    python experiments/every_encoding.py --out runs/every --text text.txt --translation train.de train.en

All encodings that `jarilab encodings` lists, at their default options, on copy, reverse and sort (lines of 1 to 10
digits, measured on up to 20), addition (from the ones up, 1 to 3 digits, measured on up to 6), text (windows of 64
characters, measured on 256), translation, and digits (scans of 8 x 8 pixels). A cell has the figure on lengths that
were trained on, and behind the stroke that on longer ones. An encoding that does not go with a task has a dash, and the
reason stands below the table; one that fails is named there too and stops nothing. Without --text or --translation
these columns are left out. Writes every_encoding.md and every_encoding.csv anew after each training, so that a table is
there as far as it goes; the same command goes on.

One seed can tell that an encoding runs, and what learns from what does not. It cannot rank: between seeds of one
encoding exact match moves by tens of points in budgets as small as these. To rank some, take --seeds 5 and a budget
that suffices, with `jarilab compare`.

Minutes: half an hour of one core for each seed (2 to 15 CPU-seconds a training).
Expected: no encoding fails. Text, on tinyshakespeare, one seed: 2.2 to 2.6 nats; at 4 times the length alibi, kerple,
dynamic_bias, sandwich and forgetting lose at most 0.01. Digits: 43 to 92 %, none 45 %. The others were not run to the
end.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images import at_least_one, markdown, told
from longer import TASKS

import jarilab
from jarilab.core.registry import split_specs
from jarilab.core.storage.files import write_text
from jarilab.encodings.base import registry
from jarilab.runs.experiment import Experiment
from jarilab.training.preflight import check_trainable

CONTEXT = 64
SMALL: dict[str, Any] = {
    "model.d_model": 32,
    "model.n_heads": 4,
    "training.batch_size": 64,
    "training.lr": 4e-3,
    "training.evaluations": 1,
}
LINES = {"task.symbols": 10, "task.lengths": "1..10", "task.test_lengths": "1..20", "training.examples": 25_000}
STACK = {"model.n_layers": 2, "model.dropout": 0.0, "training.epochs": None}
TEXT = {"task.context_length": CONTEXT, "training.examples": 5_000, "training.batch_size": 16}
SUMS = {"task.digits": 3, "task.test_digits": 6, "task.lines": 50_000, "training.examples": 25_000}
PAIRS = {"task.vocab_size": 1000, "task.metric": "perplexity", "training.epochs": None, "training.examples": 2_000}


@dataclass(frozen=True)
class Column:
    """A task: what to train, and the names of its figures, on trained lengths and, where there are such, on longer
    ones. share: they are shares, shown in percent."""

    title: str
    task: str
    settings: Mapping[str, Any]
    figures: tuple[str, ...]
    share: bool = True

    def shown(self, figures: Sequence[float]) -> str:
        return " / ".join(f"{figure:.1%}" if self.share else f"{figure:.3f}" for figure in figures)

    def measured(self, folder: Path, ended: Mapping[str, Any]) -> list[float]:
        """The figures of a run. ended: what training gave."""
        return [ended[name] for name in self.figures]


@dataclass(frozen=True)
class TextColumn(Column):
    """A text, whose longer windows are measured apart."""

    def measured(self, folder: Path, ended: Mapping[str, Any]) -> list[float]:
        return [jarilab.evaluate(folder, length=length, threads=1)["loss"] for length in (CONTEXT, 4 * CONTEXT)]


@dataclass(frozen=True)
class Cell:
    """One encoding on one task: the figures of the seeds that were trained, or why there are none."""

    figures: Sequence[Sequence[float]] = ()
    reason: str | None = None


Table = dict[str, dict[str, Cell]]
"""By title of the column, by encoding."""


def columns_of(out: Path, text: Path | None, translation: Sequence[str]) -> list[Column]:
    """Raises UserError for a text or files of translation that cannot be read."""
    groups = ("exact_match_seen_lengths", "exact_match_longer")
    found = [Column(name, name, {**SMALL, **LINES}, groups) for name in ("copy", "reverse", "sort")]
    found.append(Column("addition", TASKS["addition"], {**SMALL, **SUMS}, groups))
    if text is not None:
        settings = {**SMALL, **STACK, **TEXT, "task.train": str(text)}
        found.append(TextColumn("text, loss", "text", settings, ("loss", "longer_loss"), share=False))
    if translation:
        settings = {**SMALL, **PAIRS, "task.train": list(translation)}
        found.append(Column("translation, perplexity", "translation", settings, ("perplexity",), share=False))
    images = {**SMALL, "model.n_layers": 2, "training.epochs": 15}
    return [*found, Column("digits", "digits", images, ("accuracy",))]


def cells(columns: Sequence[Column], encodings: Sequence[str], seeds: int, out: Path) -> Iterator[Table]:
    """The table after each training: seed by seed, task by task."""
    table: Table = {column.title: {} for column in columns}
    tasks = {
        column.title: Experiment.of(column.task, None, column.settings).resolved.build_task() for column in columns
    }
    for seed in range(1, seeds + 1):
        for column in columns:
            of_column = table[column.title]
            for encoding in encodings:
                before = of_column.get(encoding, Cell())
                if before.reason is None:
                    folder = out / f"{column.title.partition(',')[0]}-{encoding.replace(':', '_')}-{seed}"
                    of_column[encoding] = tried(column, tasks[column.title], encoding, seed, folder, before)
                    yield table


def tried(column: Column, task: Any, encoding: str, seed: int, folder: Path, before: Cell) -> Cell:
    """The cell with one seed more. Raises UserError where the folder holds another run."""
    try:
        check_trainable(Experiment.of(column.task, encoding, column.settings, seed), task)
    except jarilab.UserError as error:
        return Cell(reason=f"does not go with it: {error}")
    try:
        ended = jarilab.train(column.task, folder, encoding=encoding, settings=column.settings, seed=seed, threads=1)
    except jarilab.UserError:
        raise
    except Exception as error:  # one that fails is a finding, and the other trainings are worth having
        return Cell(before.figures, f"failed: {type(error).__name__}: {error}")
    try:
        return Cell([*before.figures, column.measured(folder, ended)])
    except jarilab.UserError as error:
        return Cell(before.figures, f"trained, and cannot be measured: {error}")


def table_of(table: Table, columns: Sequence[Column], encodings: Sequence[str]) -> str:
    """A row for each encoding, the mean over seeds in each cell; below it, why there are dashes."""
    rows, reasons = [], []
    for encoding in encodings:
        row = [f"`{encoding}`"]
        for column in columns:
            cell = table[column.title].get(encoding)
            row.append(_text(column, cell))
            if cell is not None and cell.reason is not None:
                reasons.append(f"- `{encoding}`, {column.title}: {cell.reason}\n")
        rows.append(row)
    most = max((len(cell.figures) for of_column in table.values() for cell in of_column.values()), default=0)
    said = f"\nSeeds: {most}. One seed tells what runs and what learns; it cannot rank.\n\n"
    return markdown(["encoding", *(column.title for column in columns)], rows) + said + "".join(reasons)


def _text(column: Column, cell: Cell | None) -> str:
    """A cell: nothing where nothing was trained yet."""
    if cell is None:
        return ""
    if not cell.figures:
        return "-"
    return column.shown([sum(of_seeds) / len(of_seeds) for of_seeds in zip(*cell.figures, strict=True)])


def csv_of(table: Table, columns: Sequence[Column]) -> str:
    """A line for each figure of each training."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["task", "encoding", "seed", "figure", "value", "reason"])
    for column in columns:
        for encoding, cell in table[column.title].items():
            for seed, figures in enumerate(cell.figures, 1):
                for name, value in zip(column.figures, figures, strict=True):
                    writer.writerow([column.title, encoding, seed, name, value, ""])
            if cell.reason is not None:
                writer.writerow([column.title, encoding, "", "", "", cell.reason])
    return file.getvalue()


def run(columns: Sequence[Column], out: Path, encodings: Sequence[str], seeds: int) -> str:
    """Train what is not trained yet and write the tables into `out` after each; the last one. Raises UserError."""
    shown = ""
    for table in cells(columns, encodings, seeds, out):
        shown = table_of(table, columns, encodings)
        write_text(out / "every_encoding.md", shown)
        write_text(out / "every_encoding.csv", csv_of(table, columns))
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="Every encoding on every kind of task, small.")
    parser.add_argument("--out", required=True, type=Path, help="the folder for runs and tables")
    parser.add_argument("--text", type=Path, help="a file of text in UTF-8, for the task text")
    parser.add_argument("--translation", nargs=2, default=(), help="two files, line by line, for the task translation")
    parser.add_argument("--encodings", help="with commas between (all there are)")
    parser.add_argument("--tasks", help="titles of columns such as reverse,text (all)")
    parser.add_argument("--seeds", default=1, type=at_least_one, help="trainings of each (%(default)s)")
    given = parser.parse_args(arguments)
    encodings = sorted(registry.names()) if given.encodings is None else split_specs(given.encodings)

    def work() -> str:
        given.out.mkdir(parents=True, exist_ok=True)
        columns = columns_of(given.out, given.text, given.translation)
        return run(chosen(columns, given.tasks), given.out, encodings, given.seeds)

    return told(work)


def chosen(columns: Sequence[Column], tasks: str | None) -> list[Column]:
    """Those columns whose tasks are named. Raises UserError for one that is not there."""
    if tasks is None:
        return list(columns)
    by_name = {column.title.partition(",")[0]: column for column in columns}
    for name in split_specs(tasks):
        if name not in by_name:
            raise jarilab.UserError(f"--tasks expects some of {', '.join(by_name)}; got {name!r}")
    return [by_name[name] for name in split_specs(tasks)]


if __name__ == "__main__":
    sys.exit(main())
