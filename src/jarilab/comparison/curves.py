"""The curves of any runs, as one small page without a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from jarilab.comparison.chart import Line, chart
from jarilab.errors import UserError
from jarilab.runs.folder import read_experiment, read_metrics, read_run
from jarilab.storage.files import write_text
from jarilab.tasks.metrics import METRICS
from jarilab.web.page import document, escape_text, read

PACKAGE = "jarilab.comparison"
COLOURS = 8
"""Colours that the style has for lines."""


@dataclass(frozen=True)
class Curve:
    """The curve of one run: what it is, and the rows of metrics.jsonl."""

    run: Path
    task: str
    model: str
    encoding: str
    seed: int
    rows: list[dict[str, Any]]

    @property
    def metric(self) -> str:
        """What was measured on the way; `value` where no metric of the package was."""
        measured = next((row for row in self.rows if "value" in row), {})
        return next((name for name in METRICS if name in measured), "value")

    def line(self, field: str, colour: int) -> Line:
        """One field against the examples trained on."""
        rows = [row for row in self.rows if isinstance(row.get(field), int | float)]
        return Line(colour, [(row["examples"], row[field]) for row in rows])


def curve_of(run: Path) -> Curve:
    """Raises UserError for a folder that is no run, or of which nothing was trained yet."""
    experiment = read_experiment(read_run(run), run / "run.json")
    rows = read_metrics(run) if (run / "metrics.jsonl").exists() else []
    rows = [row for row in rows if {"examples", "loss"} <= row.keys()]
    if not rows:
        raise UserError(f"{run} has no curve yet: nothing of it was trained; train it first")
    of = experiment
    return Curve(run, of.task, of.model, of.encoding, of.seed, rows)


def write(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page; gives its path. See `jarilab.report`."""
    curves = [curve_of(Path(run)) for run in runs]
    path = _beside(runs) if out is None else Path(out)
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected the name of a file, such as report.html")
    write_text(path, render(curves))
    return path


def _beside(runs: Sequence[str | Path]) -> Path:
    """In the folder of the one run, or beside several."""
    first = Path(runs[0])
    return (first if len(runs) == 1 else first.parent) / "report.html"


def render(curves: Sequence[Curve]) -> str:
    """The page as one HTML document."""
    names = ", ".join(curve.run.name for curve in curves)
    body = Template(read(PACKAGE, "curves.html")).substitute(
        names=escape_text(names),
        rows="\n".join(_row(curve, number) for number, curve in enumerate(curves)),
        charts="\n".join(_charts(curves)),
    )
    return document(PACKAGE, body, ["curves.css"], f"jari: {names}")


def _row(curve: Curve, number: int) -> str:
    last = curve.rows[-1]
    progress = f"{last['step']:,} of {last['steps']:,}" if "steps" in last else f"{last['step']:,}"
    cells = [str(curve.run), curve.task, curve.model, curve.encoding, str(curve.seed), progress]
    cells += [f"{last['loss']:.4f}", _measured(curve)]
    shown = "".join(f"<td>{escape_text(cell)}</td>" for cell in cells)
    return f'<tr><td><span class="swatch c{number % COLOURS}"></span></td>{shown}</tr>'


def _measured(curve: Curve) -> str:
    """The newest value of the metric, for people."""
    values = [row["value"] for row in curve.rows if isinstance(row.get("value"), int | float)]
    if not values:
        return ""
    metric = METRICS.get(curve.metric)
    if metric is None:
        return f"{values[-1]:.4g}"
    return f"{metric.title} {metric.text(values[-1])}"


def _charts(curves: Sequence[Curve]) -> list[str]:
    """A chart of the loss, and one for each metric."""
    numbered = list(enumerate(curves))
    lines = [curve.line("loss", number % COLOURS) for number, curve in numbered]
    charts = [_figure("Loss in training, on a logarithmic scale", lines, logarithmic=True)]
    for metric in dict.fromkeys(curve.metric for curve in curves):
        of_metric = [(number, curve) for number, curve in numbered if curve.metric == metric]
        lines = [curve.line("value", number % COLOURS) for number, curve in of_metric]
        title = METRICS[metric].title if metric in METRICS else "The metric of the task"
        if any(line.points for line in lines):
            charts.append(_figure(f"{title[0].upper()}{title[1:]}, held out", lines))
    return charts


def _figure(title: str, lines: Sequence[Line], *, logarithmic: bool = False) -> str:
    drawn = chart(lines, title, "examples trained on", logarithmic=logarithmic)
    return f"<figure><figcaption>{escape_text(title)}</figcaption>{drawn}</figure>"
