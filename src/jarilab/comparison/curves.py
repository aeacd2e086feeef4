"""Training curves of any runs, as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jarilab.comparison.examples import explore_command
from jarilab.comparison.study import RECORD as STUDY
from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_text
from jarilab.pages.kit.page import assemble
from jarilab.pages.kit.tones import tones_of
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_experiment, read_metrics, read_run, vocabulary_of
from jarilab.runs.origins import history
from jarilab.runs.results import metric_in, read_result
from jarilab.tasks.metrics import METRICS, Metric, confusion_table, vocabulary_note

STYLES = ("kit/theme.css", "kit/base.css", "report.css")
UNKNOWN = Metric("value", "the metric of the task")
"""The metric of a run whose own metric is defined in another file."""


@dataclass(frozen=True)
class Curve:
    """The training curve of a run: the rows of its metrics.jsonl.

    metric: that of the task; UNKNOWN if jarilab has none of its name. history: see `jarilab.runs.origins.history`.
    confusion: see `jarilab.tasks.metrics.confusion_table`.
    """

    run: Path
    experiment: Experiment
    rows: list[dict[str, Any]]
    metric: Metric = UNKNOWN
    history: Sequence[str] = ()
    vocabulary: str | None = None
    confusion: Sequence[Sequence[str]] = ()

    @property
    def value(self) -> float | None:
        """The newest value of the metric, or None."""
        values = [row["value"] for row in self.rows if isinstance(row.get("value"), int | float)]
        return values[-1] if values else None


def curve_of(run: Path) -> Curve:
    """The curve of a run. Raises UserError if the folder is no run or has no row yet."""
    record = read_run(run)
    experiment = read_experiment(record, run / "run.json")
    rows = read_metrics(run) if (run / "metrics.jsonl").exists() else []
    rows = [row for row in rows if "examples" in row and row.get("loss") is not None]
    if not rows:
        raise UserError(f"{run} has no curve yet: nothing of it was trained; train it first")
    confusion: Sequence[Sequence[str]] = ()
    if (run / "result.json").exists():
        result = read_result(run, experiment.hash)
        name, confusion = result["metric"], confusion_table(result)
    else:
        measured = next((row for row in rows if "value" in row), None)
        name = None if measured is None else metric_in(measured, experiment)
    metric = METRICS.get(str(name), UNKNOWN)
    return Curve(run, experiment, rows, metric, history(record), vocabulary_of(record), confusion)


def write(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of these runs and return its path; by default report.html in or beside the first run.

    Beside trials of a study it is curves.html, since report.html is the page of the study.
    Raises UserError for a folder without a curve, and if the file cannot be written.
    """
    curves = [curve_of(Path(run)) for run in runs]
    folder = Path(runs[0]) if len(runs) == 1 else Path(runs[0]).parent
    name = "curves.html" if (folder / STUDY).exists() else "report.html"
    path = folder / name if out is None else Path(out)
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected the name of a file, such as report.html")
    write_text(path, render(curves))
    return path


def render(curves: Sequence[Curve]) -> str:
    """The page as one HTML document."""
    data = payload(curves)
    return assemble(
        "jarilab.comparison",
        "curves.html",
        STYLES,
        "curves.js",
        data,
        str(data["title"]),
        live=False,
        description="; ".join(_described(curve) for curve in curves),
    )


def _described(curve: Curve) -> str:
    last, metric = curve.rows[-1], curve.metric
    measured = "" if curve.value is None else f", {metric.title} {metric.text(curve.value)}"
    return f"{curve.run.name}: step {last['step']:,}, loss {last['loss']:.4f}{measured}"


def payload(curves: Sequence[Curve]) -> dict[str, Any]:
    """The data that the page draws."""
    names = ", ".join(curve.run.name for curve in curves)
    return {
        "title": names,
        "tones": tones_of((str(curve.run), curve.experiment.encoding) for curve in curves),
        "explore": explore_command([(curve.experiment, curve.run) for curve in curves]),
        "runs": [_run(curve) for curve in curves],
        "notes": vocabulary_note(curve.vocabulary for curve in curves),
    }


def drawn_point(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row of metrics.jsonl that are drawn."""
    return {key: row.get(key) for key in ("examples", "cpu_seconds", "loss", "value")}


def _run(curve: Curve) -> dict[str, Any]:
    last, experiment = curve.rows[-1], curve.experiment
    points = [drawn_point(row) for row in curve.rows]
    return {
        "run": str(curve.run),
        "name": curve.run.name,
        "task": experiment.task,
        "model": experiment.model,
        "encoding": experiment.encoding,
        "seed": experiment.seed,
        "experiment": experiment.hash,
        "history": "; ".join(curve.history),
        "step": last["step"],
        "steps": last.get("steps"),
        "loss": last["loss"],
        "value": curve.value,
        "metric": asdict(curve.metric),
        "curve": points,
        "confusion": curve.confusion,
    }
