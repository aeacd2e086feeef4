"""metrics.jsonl, the curve of a run: one row a line, with its line number and its SHA-256.

    {"step": 200, "loss": 1.31, ..., "line": 12, "sha256": "9f0c..."}

Every line that does not match its checksum is reported, except a partial last line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jarilab.core.storage.files import SEAL, digest, matches_digest, read_bytes

MAX_BYTES = 2**28
COUNTS = ("step", "steps", "examples", "tokens", "held_out")
NUMBERS = (*COUNTS, "loss", "value", "gradient_norm", "lr", "seconds", "cpu_seconds")
"""Fields of a row that must be numbers if they are present."""


@dataclass(frozen=True)
class MetricsLog:
    """A log as it was read. rows: the undamaged rows. problems: a sentence for each damaged or missing line."""

    rows: list[dict[str, Any]]
    problems: list[str]


def sealed_lines(rows: Iterable[Mapping[str, Any]], run: str, first: int = 1) -> list[str]:
    """Lines of rows, numbered from `first`. run: hash of the run; it is part of the checksums."""
    return [_line(row, number, run) for number, row in enumerate(rows, first)]


def _line(row: Mapping[str, Any], number: int, run: str) -> str:
    numbered = {**row, "line": number}
    return json.dumps({**numbered, SEAL: digest([run, numbered])}, allow_nan=False) + "\n"


def read(path: Path, run: str, count: int | None = None) -> MetricsLog:
    """The rows of a log and its problems. run: hash of the run. count: rows of a finished run.

    Raises UserError if the file cannot be read at all.
    """
    # `replace`: bytes that are not UTF-8 damage their own line only.
    *lines, rest = read_bytes(path, MAX_BYTES).decode(errors="replace").split("\n")
    parsed = [_parsed(line) for line in lines]
    # A kill during a write leaves a partial last line, whose step training computes again. But a complete row with
    # another byte for its line end is damaged.
    if _is_intact(_parsed(rest[:-1]), run):
        parsed.append(None)
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    last_number, damaged = 0, 0
    for number, row in enumerate(parsed, 1):
        if row is None or not is_row(row) or not _is_intact(row, run):
            problems.append(f"{path}:{number} is damaged: it does not match its checksum")
            damaged += 1
            continue
        row_number = row.pop("line")
        if row_number <= last_number:
            problems.append(f"{path}:{number} is damaged: it repeats line {row_number}")
            continue
        missing = row_number - last_number - 1 - damaged
        if missing > 0:
            problems.append(f"{path}:{number} is damaged: {missing} lines before it are missing")
        last_number, damaged = row_number, 0
        row.pop(SEAL)
        rows.append(row)
    if count is not None and len(rows) != count and not problems:
        problems.append(f"{path} is damaged: expected {count} lines, got {len(rows)}")
    return MetricsLog(rows, problems)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _is_intact(row: dict[str, Any] | None, run: str) -> bool:
    """Whether a row matches its checksum."""
    if row is None or SEAL not in row or not _is_count(row.get("line")):
        return False
    inner = {name: value for name, value in row.items() if name != SEAL}
    return matches_digest(row[SEAL], [run, inner])


def is_row(row: Mapping[str, Any]) -> bool:
    """Whether a row has a step and finite numbers, so that it can be drawn."""
    if not all(_is_number(row[name]) for name in NUMBERS if row.get(name) is not None):
        return False
    counts = [row[name] for name in ("step", "steps", "examples") if name in row]
    return "step" in row and all(map(_is_count, counts))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63  # a bool is an int for isinstance


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    # An integer may exceed every float.
    except OverflowError:
        return False
