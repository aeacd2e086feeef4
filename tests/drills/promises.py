"""What is promised of a run, whatever happens to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from helpers.runs import TIMES
from jarilab.core.errors import UserError
from jarilab.runs import checkpoint

SEALED = "sha256"
"""The digest of a record or a row goes by its times, too."""
LINE = "line"
"""Of a row: it goes by the rows before it, of which a damaged one may be left out."""
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


class BrokenError(AssertionError):
    """A promise was not kept."""


class Left(NamedTuple):
    """What a finished run leaves, apart from times: weights, optimizer with random states, the rest of the state;
    the curve; the result; snapshots; what is kept of the data."""

    model: bytes
    optimizer: bytes
    state: dict[str, Any]
    curve: list[dict[str, Any]]
    result: dict[str, Any]
    snapshots: dict[str, bytes]
    kept: dict[str, bytes]


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in (*TIMES, SEALED, LINE)}


def left_by(run: Path) -> Left:
    newest = max((run / "checkpoints").glob("step-*"))
    model, optimizer, state = (newest / name for name in FILES)
    record = json.loads((run / "run.json").read_text())
    return Left(
        model.read_bytes(),
        optimizer.read_bytes(),
        timeless(json.loads(state.read_text())),
        [timeless(row) for row in curve_of(run)],
        timeless(json.loads((run / "result.json").read_text())),
        {path.name: path.read_bytes() for path in (run / "snapshots").glob("step-*")},
        {name: (run / name).read_bytes() for name in record["kept"]},
    )


def curve_of(run: Path, *, torn: bool = False) -> list[dict[str, Any]]:
    """The rows of the curve. torn: whether its last line may be a part of one. Raises BrokenError for any other line
    that is none, and for a step that is there twice."""
    path = run / "metrics.jsonl"
    lines = path.read_text(errors="replace").split("\n") if path.is_file() else []
    rows = []
    for number, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines) - 1 or (line and not torn):
                raise BrokenError(f"line {number + 1} of the curve is none: {line[:80]!r}") from None
    steps = [row["step"] for row in rows]
    if steps != sorted(set(steps)):
        raise BrokenError(f"steps of the curve repeat or go back: {steps}")
    return rows


def newest_of(run: Path) -> int:
    """The step of the newest whole checkpoint; 0 where there is none. Raises BrokenError where there are some and none
    is whole."""
    folder = run / "checkpoints"
    try:
        path, _ = checkpoint.newest(folder)
    except UserError as error:
        raise BrokenError(f"no whole checkpoint: {error}") from None
    return 0 if path is None else int(path.name.removeprefix("step-"))


def check_same(run: Path, golden: Left, *, without_best: bool = False, rows_lost: bool = False) -> None:
    """Raises BrokenError, naming what differs, unless a run ended as the undisturbed one. without_best: but for the
    best on the way, where its checkpoint was damaged and the command said so. rows_lost: but for rows of the curve that
    were damaged, as it said."""
    ours = left_by(run)
    if rows_lost:
        golden = golden._replace(curve=[row for row in golden.curve if row in ours.curve])
        ours.result["curve_rows"] = golden.result["curve_rows"]
        ours.state["rows"] = golden.state["rows"]
    if without_best:
        ours.result["best"] = golden.result["best"]
    different = [name for name in Left._fields if getattr(ours, name) != getattr(golden, name)]
    if different:
        details = {name: _difference(getattr(ours, name), getattr(golden, name)) for name in different}
        raise BrokenError(f"not as undisturbed: {details}")


def _difference(ours: Any, golden: Any) -> str:
    if isinstance(ours, bytes):
        return f"{len(ours)} bytes, {len(golden)} expected, or others"
    if isinstance(ours, list):
        if len(ours) != len(golden):
            return f"{len(ours)} rows, {len(golden)} expected"
        ours, golden = next((a, b) for a, b in zip(ours, golden, strict=True) if a != b)
    keys = [key for key in ours.keys() | golden.keys() if ours.get(key) != golden.get(key)]
    return ", ".join(f"{key}: {str(ours.get(key))[:60]} for {str(golden.get(key))[:60]}" for key in sorted(keys))


def check_nothing_left_over(run: Path) -> None:
    """Raises BrokenError for half a file, and for a checkpoint that is not whole."""
    partial = [str(path.relative_to(run)) for path in run.rglob("*") if "partial" in path.name]
    if partial:
        raise BrokenError(f"left over: {', '.join(partial)}")
    for path in (run / "checkpoints").iterdir():
        try:
            checkpoint.verify(path)
        except UserError as error:
            raise BrokenError(f"left over: {error}") from None
