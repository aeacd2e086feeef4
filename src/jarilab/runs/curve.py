"""The curve of a run, metrics.jsonl: a line for each row, with its number and its SHA-256.

    {"step": 200, "loss": 1.31, ..., "line": 12, "sha256": "9f0c..."}

A kill while a line is written leaves a part of it at the end, which is no damage: what it was about is computed again.
Any other line that is not what it was is named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jarilab.core.storage.files import SEAL, digest, matches_digest, read_bytes

LARGEST = 2**28
COUNTS = ("step", "steps", "examples", "tokens", "held_out")
NUMBERS = (*COUNTS, "loss", "value", "gradient_norm", "lr", "seconds", "cpu_seconds")
"""The fields of a row that are drawn or counted, where they are there."""


@dataclass(frozen=True)
class CurveFile:
    """rows: the whole ones. problems: a sentence for each line that is not, or is missing."""

    rows: list[dict[str, Any]]
    problems: list[str]


def sealed_lines(rows: Iterable[Mapping[str, Any]], run: str, first: int = 1) -> list[str]:
    """Rows as they are written, the first as this line. run: the hash of the run, so that the rows of another one are
    noticed."""
    return [_line(row, number, run) for number, row in enumerate(rows, first)]


def _line(row: Mapping[str, Any], number: int, run: str) -> str:
    told = {**row, "line": number}
    return json.dumps({**told, SEAL: digest([run, told])}, allow_nan=False) + "\n"


def read(path: Path, run: str, count: int | None = None) -> CurveFile:
    """The rows of a curve. run: the hash of the run. count: how many a finished one has. Raises UserError where it
    cannot be read at all."""
    *lines, torn = read_bytes(path, LARGEST).decode(errors="replace").split("\n")
    parsed = [_parsed(line) for line in lines]
    if _whole(_parsed(torn[:-1]), run):
        parsed.append(None)  # all of it was written: what is damaged is the end of the line
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    before, damaged = 0, 0
    for number, row in enumerate(parsed, 1):
        if row is None or not is_row(row) or not _whole(row, run):
            problems.append(
                f"{path}:{number} is damaged: it is not what it was when it was written"
            )
            damaged += 1
            continue
        told = row.pop("line")
        if told <= before:
            problems.append(f"{path}:{number} is damaged: it is line {told} once more")
            continue
        missing = told - before - 1 - damaged
        if missing > 0:
            problems.append(f"{path}:{number} is damaged: {missing} before it are missing")
        before, damaged = told, 0
        row.pop(SEAL)
        rows.append(row)
    if count is not None and len(rows) != count and not problems:
        problems.append(f"{path} is damaged: it has {len(rows)} whole lines of {count}")
    return CurveFile(rows, problems)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _whole(row: dict[str, Any] | None, run: str) -> bool:
    """Whether a row is what was sealed."""
    if row is None or SEAL not in row or not _is_count(row.get("line")):
        return False
    inner = {name: value for name, value in row.items() if name != SEAL}
    return matches_digest(row[SEAL], [run, inner])


def is_row(row: Mapping[str, Any]) -> bool:
    """Whether a row can be drawn: its step is there, and its numbers are finite."""
    if not all(_is_number(row[name]) for name in NUMBERS if row.get(name) is not None):
        return False
    counts = [row[name] for name in ("step", "steps", "examples") if name in row]
    return "step" in row and all(map(_is_count, counts))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False
