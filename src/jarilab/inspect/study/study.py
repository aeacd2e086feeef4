"""A study of all heads over a data set: its examples are read once, and it continues after an interruption."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import nn

from jarilab.core.errors import UserError
from jarilab.core.storage.files import check_format, read_json, write_bytes, write_json
from jarilab.inspect.figures.figure import Figure
from jarilab.inspect.figures.study import draw_heads, draw_mean_maps
from jarilab.inspect.measure.measures import MEASURES, Measure
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.study.example import (
    Accumulator,
    Batch,
    example_maps,
)
from jarilab.inspect.study.gold_links import GoldLinks
from jarilab.inspect.study.head import Head, heads_of
from jarilab.inspect.study.mean_maps import MeanMaps
from jarilab.inspect.study.measure_table import MeasureTable
from jarilab.inspect.study.probes import ProbeInput, ProbeRunner
from jarilab.inspect.study.role_sums import RoleSums
from jarilab.inspect.study.roles import Roles, number_of_tests
from jarilab.inspect.study.tables import frame_of, write_tables

FORMAT = "jarilab-study-1"
RECORD, NUMBERS, PROGRESS = "study.json", "measures.f32", "progress.safetensors"
SECONDS_BETWEEN_SAVES = 5.0
DATA_CONTEXT = 3
"""Tokens that come again in data before induction is expected: a single word such as `the` announces nothing."""


class Study:
    """What every head of a model does over a data set.

    heads: in the order of all tables. folder: where it is kept; None keeps it in memory. measures: by name.
    accumulators: further statistics. about: what was studied, plain data; a folder with another record is refused.
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
        record_of_study = {
            "format": FORMAT,
            "heads": [head.short for head in heads],
            "sites": list(dict.fromkeys(head.site for head in heads)),
            "measures": list(measures),
            "statistics": [each.name for each in self.accumulators],
            "seed": seed,
            "about": self.about,
        }
        self._next_save = time.monotonic() + SECONDS_BETWEEN_SAVES
        if folder is not None:
            _prepare(folder, record_of_study)
        self._values = MeasureTable(heads, measures, folder and folder / NUMBERS)
        if folder is not None:
            self._resume(folder)

    @property
    def examples(self) -> int:
        """The number of examples so far."""
        return self._values.examples

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
            example = batch.example(row, self.examples)
            values = self._values.blank()
            for maps in parts:
                self._values.measure(maps, values)
                for each in self.accumulators:
                    each.add(example, maps)
            self._values.append(values)
        if self.folder is not None and time.monotonic() > self._next_save:
            self.save()

    def save(self) -> None:
        """Write the progress, from which an interrupted study continues."""
        if self.folder is None:
            return
        start = time.monotonic()
        self._values.flush()
        arrays = {
            f"{each.name}/{key}": array
            for each in self.accumulators
            for key, array in each.state().items()
        }
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        arrays["examples"] = np.array([self.examples])
        write_bytes(self.folder / PROGRESS, safetensors.numpy.save(arrays))
        end = time.monotonic()
        # Large states take at most a twentieth of the time.
        self._next_save = end + max(SECONDS_BETWEEN_SAVES, 20 * (end - start))

    def _resume(self, folder: Path) -> None:
        """Continue from the progress of the folder."""
        path = folder / PROGRESS
        if not path.is_file():
            self._values.truncate(0)
            return
        try:
            saved = safetensors.numpy.load(path.read_bytes())
            for each in self.accumulators:
                each.load(_part(saved, each.name))
            self._values.truncate(int(saved["examples"][0]))
        except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
            raise UserError(
                f"{path} is damaged ({error}); remove {folder} and run the study again"
            ) from None

    # Results ---------------------------------------------------------------------------------------------------------

    def name_roles(self, model: nn.Module, probes: ProbeInput | None) -> None:
        """Run the probes and name the role of each head. probes: None names roles by the data alone."""
        results = None
        if probes is not None:
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
                "accumulators=[MeanMaps(heads)]"
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
        target.mkdir(parents=True, exist_ok=True)
        self.save()
        tables = {name: rows for name, rows in self.all_rows().items() if rows}
        return write_tables(tables, target)


def _prepare(folder: Path, expected: dict[str, Any]) -> None:
    """Make the folder of a study. Raises UserError if it holds another one, or other files."""
    path = folder / RECORD
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(
                f"{folder}: expected a new folder or a study to continue, got "
                f"{'other files' if folder.is_dir() else 'a file'}; choose another folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, expected)
        return
    saved = read_json(path)
    check_format(path, FORMAT, saved)
    different = [key for key in expected if saved.get(key) != expected[key]]
    if different:
        details = "; ".join(_difference(key, saved.get(key), expected[key]) for key in different)
        raise UserError(
            f"{folder}: expected a new folder or this study, got another study ({details}); choose another folder, "
            "or remove this one"
        )


def _part(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """The arrays of one accumulator."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)}


def _difference(key: str, saved: Any, expected: Any) -> str:
    """What differs between two records, in short."""
    if isinstance(saved, dict) and isinstance(expected, dict):
        names = [name for name in {**saved, **expected} if saved.get(name) != expected.get(name)]
        # A digest says nothing beside a name that differs, too.
        names = [name for name in names if not name.endswith("_digest")] or names
        return "; ".join(_difference(name, saved.get(name), expected.get(name)) for name in names)
    there, here = (
        ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for value in (saved, expected)
    )
    return f"{key}: {there[:60]} there, {here[:60]} here"
