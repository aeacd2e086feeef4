"""Print how trained runs ended: a row for each kind of run, with its seeds.

    jarilab compare arithmetic --encodings none,rotary --seeds 2 --out runs/demo
    python experiments/table_of_runs.py runs/demo --figures exact_match,cpu_seconds

A folder `NAME-SEED` in the given one is a run of kind NAME. A figure is a name in its result.json, or
`FILE.NAME` for another file of the folder. If a task counts an
upper bound for models without positions, it is the last row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from images import markdown, told

import jarilab
from jarilab.core.storage.files import read_json
from jarilab.tasks.metrics import METRICS, Metric

Run = Path
"""The folder of a run."""


def runs_of(folder: Path) -> dict[str, list[Run]]:
    """The runs in a folder by kind, in the order of their seeds. Raises UserError if there is none."""
    kinds: dict[str, list[Run]] = {}
    for path in sorted(folder.glob("*-*/result.json")):
        kinds.setdefault(path.parent.name.rpartition("-")[0], []).append(path.parent)
    if not kinds:
        raise jarilab.UserError(f"expected runs called NAME-SEED in {folder}, found none; name a folder of runs")
    return kinds


def metric_of(figure: str) -> Metric | None:
    """The metric whose digits a figure has: `exact_match_+` is the exact match of the group `+`."""
    name = figure.rpartition(".")[2]
    return next((METRICS[known] for known in METRICS if name == known or name.startswith(f"{known}_")), None)


def text_of(run: Run, figure: str) -> str:
    """A figure of a run as a table shows it. `test.bleu` is in the file test.json of its folder."""
    file, _, name = figure.rpartition(".")
    value, metric = read_json(run / f"{file or 'result'}.json")[name], metric_of(figure)
    return f"{value:,.0f}" if metric is None else metric.text(value)


def title_of(figure: str) -> str:
    """How a column is called."""
    file, _, name = figure.rpartition(".")
    metric = metric_of(figure)
    title = name if metric is None else f"{metric.title}{name.removeprefix(metric.name).replace('_', ' ')}"
    return {"cpu_seconds": "CPU-seconds"}.get(title, title) + (f", {file}" if file else "")


def table_of(kinds: Mapping[str, Sequence[Run]], figures: Sequence[str]) -> str:
    """A row for each kind of run. The figures of several seeds stand side by side."""
    rows = [
        [kind, *(", ".join(text_of(run, figure) for run in runs) for figure in figures)] for kind, runs in kinds.items()
    ]
    bounds = read_json(next(iter(kinds.values()))[0] / "result.json").get("ceiling")
    if isinstance(bounds, dict):
        groups = [figure.removeprefix("exact_match_").replace("exact_match", "all") for figure in figures]
        shares = [f"{bounds[group]:.2%}" if group in bounds else "" for group in groups]
        rows.append(["upper bound without positions, on average", *shares])
    return markdown(["run", *map(title_of, figures)], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="How trained runs ended, as a table.")
    parser.add_argument("folder", type=Path, help="holds the runs, each in a folder NAME-SEED")
    parser.add_argument("--figures", required=True, help="names in result.json, with commas between")
    given = parser.parse_args(arguments)
    return told(lambda: table_of(runs_of(given.folder), given.figures.split(",")))


if __name__ == "__main__":
    sys.exit(main())
