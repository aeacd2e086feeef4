"""A study of all heads over a data set: its examples are read once, and it continues after an interruption."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.storage.files import check_format, read_json, write_json
from jarilab.inspect.figures.figure import Figure
from jarilab.inspect.figures.study import draw_heads, draw_mean_maps
from jarilab.inspect.measure.measures import MEASURES, Measure
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.study.example import (
    Accumulator,
    Batch,
    Example,
    HeadMaps,
    example_maps,
)
from jarilab.inspect.study.gold_links import GoldLinks
from jarilab.inspect.study.head import Head, heads_of
from jarilab.inspect.study.mean_maps import MeanMaps
from jarilab.inspect.study.measure_table import MeasureTable
from jarilab.inspect.study.probes import ProbeInput, ProbeRunner
from jarilab.inspect.study.progress_file import ProgressFile, difference
from jarilab.inspect.study.role_sums import RoleSums
from jarilab.inspect.study.roles import Roles, number_of_tests
from jarilab.inspect.study.tables import frame_of, write_tables

FORMAT = "jarilab-study-1"
RECORD, NUMBERS, PROGRESS = "study.json", "measures.f32", "progress.safetensors"
ADDED = "examples added"
"""The key of the number of examples of a statistic, beside those of its state."""
DATA_CONTEXT = 3
"""Tokens that come again in data before induction is expected: a single word such as `the` announces nothing."""


class Study:
    """What every head of a model does over a data set.

    heads: in the order of all tables. folder: where it is kept; None keeps it in memory. measures: by name.
    accumulators: further statistics; one that is new in the folder sees all examples again. about: what was studied,
    plain data; a folder with another record is refused.
    Raises UserError for a folder of another study.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        folder: Path | None = None,
        *,
        measures: Mapping[str, Measure] | None = None,
        accumulators: Sequence[Accumulator] = (),
        seed: int = 0,
        about: Mapping[str, Any] | None = None,
    ):
        self.heads, self.folder, self.seed = list(heads), folder, seed
        measures = MEASURES if measures is None else measures
        self.role_sums = RoleSums(self.heads, context=DATA_CONTEXT)
        self.roles: Roles | None = None
        self.accumulators: list[Accumulator] = [self.role_sums, *accumulators]
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.about = dict(about or {})
        self._record: dict[str, Any] = {
            "format": FORMAT,
            "heads": [head.short for head in heads],
            "sites": list(dict.fromkeys(head.site for head in heads)),
            "measures": list(measures),
            "statistics": {each.name: getattr(each, "source", None) for each in self.accumulators},
            "seed": seed,
            "about": self.about,
        }
        self._counts = dict.fromkeys(self._record["statistics"], 0)
        self._values = MeasureTable(heads, measures, folder and folder / NUMBERS)
        is_there = folder is not None and check_folder(folder, self._record)
        self._progress = ProgressFile(folder if folder is None else folder / PROGRESS)
        # States of statistics that are in the folder and were not asked for.
        self._others: dict[str, np.ndarray] = {}
        self._has_record = False
        if is_there:
            self._resume()

    @property
    def examples(self) -> int:
        """The number of examples so far, which all statistics have seen."""
        return min(self._values.examples, *self._counts.values())

    def values(self) -> np.ndarray:
        """Value and chance of each measure, `(N, H, M, 2)`, NaN where undefined; mapped from the file."""
        return self._values.values()

    # Adding examples -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def add_batch(self, model: nn.Module, batch: Batch, skip: int = 0) -> Any:
        """Run the model on a batch and add its examples but the first `skip`; returns the outputs."""
        with record(model) as tape:
            outputs = batch.forward(model)
        self.add(tape, batch, skip)
        return outputs

    @torch.no_grad()
    def add(self, tape: Tape, batch: Batch, skip: int = 0) -> None:
        """Add the examples of a recorded batch but the first `skip`.

        Raises UserError if it has other heads than the study.
        """
        got = heads_of(tape)
        if got != self.heads:
            raise UserError(
                f"{batch.origins[:1] or 'a batch'}: expected the {len(self.heads)} heads of the study, got "
                f"{len(got)}; study inputs of one kind at a time"
            )
        for row, parts in example_maps(tape, batch):
            if row < skip:
                continue
            self._add_example(batch.example(row, self.examples), parts)
        if self._progress.is_due:
            self.save()

    def _add_example(self, example: Example, parts: Iterator[list[HeadMaps]]) -> None:
        """Add one example to all that have not seen it."""
        self._write_record()
        is_new = self._values.examples == example.index
        due = [each for each in self.accumulators if self._counts[each.name] == example.index]
        values = self._values.blank()
        for maps in parts:
            if is_new:
                self._values.measure(maps, values)
            for each in due:
                each.add(example, maps)
        if is_new:
            self._values.append(values)
        for each in due:
            self._counts[each.name] += 1

    def save(self) -> None:
        """Write the progress, from which an interrupted study continues."""
        if self.folder is None:
            return
        self._write_record()
        self._values.flush()
        arrays = {"examples": np.array([self._values.examples]), **self._others}
        for each in self.accumulators:
            state = {**each.state(), ADDED: np.array([self._counts[each.name]])}
            arrays |= {f"{each.name}/{key}": array for key, array in state.items()}
        self._progress.write(arrays)

    def _write_record(self) -> None:
        """Make the folder and write its record, before anything else is written."""
        if self.folder is not None and not self._has_record:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / RECORD, self._record)
            self._has_record = True

    def _resume(self) -> None:
        saved = self._progress.arrays
        self._others = {key: saved[key] for key in saved if "/" in key}
        try:
            for each in self.accumulators:
                prefix = f"{each.name}/"
                state = {
                    key.removeprefix(prefix): array
                    for key, array in self._others.items()
                    if key.startswith(prefix)
                }
                if state:
                    self._counts[each.name] = int(state.pop(ADDED)[0])
                    each.load(state)
            self._values.truncate(int(saved["examples"][0]) if saved else 0)
        except (ValueError, KeyError) as error:
            raise self._progress.damaged(error) from None
        self._progress.arrays = {}

    # Results ---------------------------------------------------------------------------------------------------------

    def name_roles(self, model: nn.Module, probes: ProbeInput | None) -> None:
        """Run the probes and name the role of each head.

        probes: None, or one with a shortage, names roles by the data alone.
        """
        results = None
        if probes is not None and probes.shortage is None:
            tests = number_of_tests(len(self.heads))
            results = ProbeRunner(model, self.heads, probes, self.seed).run(tests)
        links = [each.rows() for each in self.accumulators if isinstance(each, GoldLinks)]
        self.roles = Roles(self.heads, self.role_sums, results, list(chain.from_iterable(links)))
        self.tables["roles"] = self.roles.rows()

    def rows(self) -> list[dict[str, Any]]:
        """A row a head: mean, 95 % interval, chance and count of each measure, and the role if it was named."""
        rows = self._values.rows(self.seed)
        if self.roles is None:
            return rows
        return [row | role for row, role in zip(rows, self.roles.head_rows(), strict=True)]

    def add_table(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Keep a table that was computed apart, such as `importance`."""
        self.tables[name] = rows

    def all_rows(self) -> dict[str, list[dict[str, Any]]]:
        """All tables by name, `heads` first."""
        extra = {each.name: each.rows() for each in self.accumulators}
        return {"heads": self.rows(), **extra, **self.tables}

    def table(self, name: str = "heads") -> Any:
        """A table as a pandas frame, or as a list of records if pandas is not installed.

        name: `heads`, or that of another statistic. Raises UserError for an unknown one.
        """
        tables = self.all_rows()
        if name not in tables:
            raise UserError(f"unknown table {name!r}; this study has {', '.join(tables)}")
        return frame_of(tables[name])

    def figure(
        self,
        kind: str = "roles",
        site: str | None = None,
        head: int | None = None,
        *,
        alignment: str = "left",
        **options: Any,
    ) -> Figure:
        """A figure for a paper.

        kind: `roles`, a dot for each head; a measure, such as `previous`; or `mean_maps`, of one head, a site or all
        heads, aligned `left` or `right`. options: see `jarilab.draw_attention`.
        Raises UserError for an unknown kind, site or head, and for what was not studied.
        """
        if kind != MeanMaps.name:
            return draw_heads(self.rows(), kind, **options)
        means = next((each for each in self.accumulators if isinstance(each, MeanMaps)), None)
        if means is None or alignment not in ("left", "right"):
            got = "no mean maps" if means is None else alignment
            raise UserError(
                f"expected a study with mean maps, aligned left or right, got {got}; study with "
                "accumulators=[MeanMaps] of jarilab.inspect.study.mean_maps"
            )
        first = 0 if alignment == "left" else -means.size
        return draw_mean_maps(
            self.heads, means.maps(alignment).weights, first, site, head, **options
        )

    def write(self, folder: str | Path | None = None) -> list[Path]:
        """Write every table as CSV, JSON and, if pyarrow is installed, Parquet; returns the files."""
        target = self.folder if folder is None else Path(folder)
        if target is None:
            raise UserError(
                "expected a folder to write to, got none; pass one: study.write(FOLDER)"
            )
        self.save()
        target.mkdir(parents=True, exist_ok=True)
        tables = {name: rows for name, rows in self.all_rows().items() if rows}
        return write_tables(tables, target)


def check_folder(folder: Path, expected: dict[str, Any] | None = None) -> bool:
    """Whether a folder holds a study. Nothing is written.

    expected: the record of the study, to which the statistics in the folder are added.
    Raises UserError if the folder holds another study or other files, or cannot be made.
    """
    path = folder / RECORD
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(
                f"{folder}: expected a new folder or a study to continue, got "
                f"{'other files' if folder.is_dir() else 'a file'}; choose another folder"
            )
        parent = next(each for each in folder.absolute().parents if each.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            got = "may not be written to" if parent.is_dir() else "is a file"
            raise UserError(
                f"{folder}: expected a folder that can be made, got one in {parent}, which {got}; choose another folder"
            )
        return False
    saved = read_json(path)
    check_format(path, FORMAT, saved)
    if expected is None:
        return True
    if isinstance(saved.get("statistics"), dict):  # others may be added
        expected["statistics"] = saved["statistics"] | expected["statistics"]
        saved["statistics"] = expected["statistics"] | saved["statistics"]
    different = [key for key in expected if saved.get(key) != expected[key]]
    if different:
        details = "; ".join(difference(key, saved.get(key), expected[key]) for key in different)
        raise UserError(
            f"{folder}: expected a new folder or this study, got another study ({details}); choose another folder, "
            "or remove this one"
        )
    return True
