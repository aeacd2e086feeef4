"""Lists of the runs in a folder. Nothing that a run names is executed.

Facts of a run are kept in the cache folder as long as its files do not change, so that a list need not load PyTorch.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jarilab.core.errors import UserError
from jarilab.core.storage.listings import listings
from jarilab.tasks.metrics import METRICS

if TYPE_CHECKING:
    from jarilab.runs.experiment import Experiment

MAX_DEPTH = 4
"""Levels of folders that are searched for runs."""
# Without all other files: notes of the user in the folder do not change the run.
RUN_FILES = ("run.json", "metrics.jsonl", "result.json")
"""The files whose times say when a run changed."""
FINISHED, UNFINISHED, NOT_BEGUN, DAMAGED = "finished", "not finished", "never begun", "damaged"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run as a line of a list.

    state: finished, not finished, training, never begun or damaged. problem: the error of a damaged one. history:
    weights that it started from, and earlier budgets. step, steps: steps taken, and all steps. value: of the metric,
    when it was measured last. vocabulary: digest of a learned vocabulary of answers. age: seconds since the last
    change. size: bytes.
    """

    run: str
    task: str = ""
    model: str = ""
    encoding: str = ""
    seed: int | None = None
    state: str = DAMAGED
    step: int | None = None
    steps: int | None = None
    metric: str | None = None
    value: float | None = None
    age: float
    size: int
    problem: str | None = None
    history: tuple[str, ...] = ()
    vocabulary: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def progress(self) -> str:
        """State and step as text."""
        parts = [] if self.state == UNFINISHED else [self.state]
        if self.step is not None and self.state != FINISHED:
            total = "" if self.steps is None else f" of {self.steps:,}"
            parts.append(f"at step {self.step:,}{total}")
        text = ", ".join(parts)
        return f"{text}: {self.problem}" if self.problem else text

    @property
    def measured(self) -> str:
        """The metric and its value as text."""
        if self.metric is None or self.value is None:
            return ""
        # None for a metric that only another file defines.
        metric = METRICS.get(self.metric)
        if metric is None:
            return f"{self.metric} {self.value:.4g}"
        return f"{metric.title} {metric.text(self.value)}"


def runs_in(folder: Path) -> list[RunSummary]:
    """The runs in a folder and its subfolders. Raises UserError if it is not a folder."""
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {problem}; name a folder that holds runs")
    with listings() as known:
        return [_summary(run, known) for run in run_folders(folder)]


def run_folders(folder: Path, max_depth: int = MAX_DEPTH) -> Iterator[Path]:
    """The run folders in a folder, itself included."""
    if (folder / "run.json").is_file():
        yield folder
    elif max_depth:
        children: list[Path] = []
        with suppress(FileNotFoundError):  # removed meanwhile
            children = sorted(p for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")
        for path in children:
            yield from run_folders(path, max_depth - 1)


def _files(folder: Path) -> dict[Path, os.stat_result]:
    """The status of each file in a folder, without those that a training removes meanwhile."""
    files: dict[Path, os.stat_result] = {}
    # Unlike `rglob`, `walk` passes over folders that are gone.
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(OSError):
                files[path] = path.stat()
    return {path: status for path, status in files.items() if stat.S_ISREG(status.st_mode)}


def _summary(folder: Path, known: dict[str, Any]) -> RunSummary:
    """A run as a line. known: facts of runs by folder, with the times and sizes of the files that they are from."""
    stats, now = _files(folder), time.time()
    size = sum(status.st_size for status in stats.values())
    recorded = {str(path): status for path, status in stats.items() if path.name in RUN_FILES}
    changed = max((status.st_mtime for status in recorded.values()), default=now)
    where: dict[str, Any] = {"run": str(folder), "age": now - changed, "size": size}
    name, files = (
        f"run {folder.absolute()}",
        [[p, s.st_mtime_ns, s.st_size] for p, s in sorted(recorded.items())],
    )
    if known.get(name, {}).get("files") != files:
        try:
            known[name] = {"files": files, "facts": _facts(folder)}
        except UserError as error:
            return RunSummary(**where, problem=str(error))
    facts = dict(known[name]["facts"])
    if facts["state"] != FINISHED:
        facts |= _training_state(folder)
    history = tuple(facts.pop("history"))
    return RunSummary(**where, **facts, history=history)


def _facts(folder: Path) -> dict[str, Any]:
    """What the files of a run say. Raises UserError if they are damaged."""
    from jarilab.runs.folder import read_experiment, read_run, vocabulary_of
    from jarilab.runs.origins import history

    record = read_run(folder)
    experiment = read_experiment(record, folder / "run.json")
    return {
        "task": experiment.task,
        "model": experiment.model,
        "encoding": experiment.encoding,
        "seed": experiment.seed,
        "history": history(record),
        "vocabulary": vocabulary_of(record),
        **_state(folder, experiment),
    }


def _training_state(folder: Path) -> dict[str, Any]:
    """The state of an unfinished run that another process trains; empty if none does."""
    from jarilab.runs.lock import is_training

    return {"state": "training"} if is_training(folder) else {}


def _state(folder: Path, experiment: Experiment) -> dict[str, Any]:
    """State, step and last metric of a run."""
    from jarilab.runs.folder import read_metrics
    from jarilab.runs.results import metric_in, read_result

    if (folder / "result.json").exists():
        result = read_result(folder, experiment.hash)
        metric, steps = result["metric"], result.get("steps")
        counts = {"step": steps, "steps": steps}
        return {"state": FINISHED, **counts, "metric": metric, "value": result[metric]}
    rows = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
    if not rows:
        return {"state": NOT_BEGUN}
    counts = {"step": rows[-1]["step"], "steps": rows[-1].get("steps")}
    measured = next((row for row in reversed(rows) if "value" in row), None)
    if measured is None:
        return {"state": UNFINISHED, **counts}
    metric = metric_in(measured, experiment)
    return {"state": UNFINISHED, **counts, "metric": metric, "value": measured["value"]}
