"""List the runs in a folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from jarilab.cli.arguments import Parser, Words

if TYPE_CHECKING:
    from jarilab.runs.catalog import RunSummary

UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


def arguments(parser: Parser, words: Words) -> None:
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        default="runs",
        help="folder to search (default: runs)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    from jarilab.cli.terminal import show, table
    from jarilab.runs.catalog import runs_in
    from jarilab.tasks.metrics import vocabulary_note

    runs = runs_in(Path(options.folder))
    head = ["run", "task", "encoding", "seed", "size", "changed", "state", "measured"]
    rows = [head, *map(_row, runs)]
    if any(listed.history for listed in runs):
        befores = ["before", *("; ".join(listed.history) for listed in runs)]
        rows = [[*row, before] for row, before in zip(rows, befores, strict=True)]
    text = table(rows) if runs else f"no runs in {options.folder}"
    notes = vocabulary_note(run.vocabulary for run in runs if run.metric in ("loss", "perplexity"))
    record = {"runs": [listed.as_dict() for listed in runs], "notes": notes}
    show(options, record, "\n".join([text, *notes]))


def _row(listed: RunSummary) -> list[str]:
    seed = "" if listed.seed is None else str(listed.seed)
    name = [listed.run, listed.task, listed.encoding, seed]
    return [*name, size(listed.size), ago(listed.age), listed.progress, listed.measured]


def ago(seconds: float) -> str:
    """Elapsed time in its largest whole unit."""
    rounded = max(1, int(seconds))
    unit, length = next((unit, length) for unit, length in UNITS if rounded >= length)
    count = rounded // length
    return f"{count} {unit}{'s' if count > 1 else ''} ago"


def size(count: int) -> str:
    """Bytes as megabytes."""
    return f"{count / 1e6:.1f} MB"
