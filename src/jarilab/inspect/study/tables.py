"""Tables of records as files and data frames."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jarilab.core.storage.files import atomic_write, write_text

Records = list[dict[str, Any]]


def columns_of(rows: Records) -> list[str]:
    """The columns of all records, in the order of their first use."""
    return list(dict.fromkeys(name for row in rows for name in row))


def plain(value: float) -> float | None:
    """A number for JSON: None for NaN and infinity."""
    return float(value) if math.isfinite(value) else None


def rows_of(columns: Mapping[str, list[Any]]) -> Records:
    """The rows of a table, each with the names of the columns."""
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def optional(module: str) -> Any:
    """A module, or None if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def frame_of(rows: Records) -> Any:
    """A pandas frame; the records themselves if pandas is not installed."""
    pandas = optional("pandas")
    return rows if pandas is None else pandas.DataFrame(rows, columns=columns_of(rows))


def write_tables(tables: Mapping[str, Records], folder: Path) -> list[Path]:
    """Write NAME.csv and NAME.json, and NAME.parquet if pyarrow is installed; returns the files."""
    files = []
    for name, rows in tables.items():
        files += [folder / f"{name}.csv", folder / f"{name}.json"]
        write_text(files[-2], csv_of(rows))
        write_text(
            files[-1], json.dumps(rows, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
        )
        arrow, parquet = optional("pyarrow"), optional("pyarrow.parquet")
        if arrow is None or parquet is None:
            continue
        files.append(folder / f"{name}.parquet")
        names = columns_of(rows)
        complete = [{**dict.fromkeys(names), **row} for row in rows]
        with atomic_write(files[-1]) as partial:
            parquet.write_table(arrow.Table.from_pylist(complete), partial)
    return files


def csv_of(rows: Records) -> str:
    """The records as CSV; an empty cell where there is no value."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
