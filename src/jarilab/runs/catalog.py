"""Lists of the runs in a folder, of tasks and of encodings. Nothing that a run names is executed."""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.options import Option, options_of
from jarilab.core.registry import first_sentence, trust_code
from jarilab.encodings.base import Site, hooks_of
from jarilab.encodings.base import registry as encodings
from jarilab.encodings.compose import LayerEncodings, files_of, layer_specs, part_spec, split_sum
from jarilab.runs.folder import read_experiment, read_metrics, read_run, vocabulary_of
from jarilab.runs.jobs import (
    CLUSTER,
    RECORD,
    RUNNING,
    TrialJob,
    UnreachableError,
    jobs_alive,
)
from jarilab.runs.lock import is_training
from jarilab.runs.origins import history
from jarilab.runs.results import read_result
from jarilab.runs.task_settings import models_for
from jarilab.tasks.base import registry as tasks
from jarilab.tasks.metrics import METRICS

MAX_DEPTH = 4
"""Levels of folders that are searched for runs."""
# Without all other files: notes of the user in the folder do not change the run.
RUN_FILES = ("run.json", "metrics.jsonl", "result.json")
"""The files whose times say when a run changed."""
FINISHED, UNFINISHED, NOT_BEGUN, DAMAGED = "finished", "not finished", "never begun", "damaged"


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run as a line of a list.

    state: finished, not finished, training, queued, never begun or damaged. problem: the error of a damaged one. job:
    number of the scheduler's job that trains it. history: weights that it started from, and earlier budgets. step,
    steps: steps taken, and all steps. value: of the metric, when it was measured last. vocabulary: digest of a learned
    vocabulary of answers. age: seconds since the last change. size: bytes.
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
    job: str | None = None
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
        if self.job is not None:
            parts.append(f"job {self.job}")
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
    jobs = _jobs_in(folder)
    begun = [_summary(run, jobs.pop(run, None)) for run in run_folders(folder)]
    queued = [  # they have no folder yet
        RunSummary(run=str(run), state=job.state, job=job.number, age=0.0, size=0)
        for run, job in jobs.items()
    ]
    return sorted(begun + queued, key=lambda summary: summary.run) if queued else begun


def _jobs_in(folder: Path) -> dict[Path, TrialJob]:
    """The queued and running jobs of studies in a folder, by the folders of their trials."""
    jobs: dict[Path, TrialJob] = {}
    for record in sorted(folder.glob(f"**/{CLUSTER}/{RECORD}")):
        study = record.parent.parent
        try:
            trials = jobs_alive(study)
        except (UnreachableError, UserError) as error:
            print(f"jarilab: {study}: queued jobs are not known: {error}", file=sys.stderr)
            continue
        jobs |= {study / trial: job for trial, job in trials.items()}
    return jobs


def run_folders(folder: Path, max_depth: int = MAX_DEPTH) -> Iterator[Path]:
    """The run folders in a folder, itself included."""
    if (folder / "run.json").is_file():
        yield folder
    elif max_depth:
        children = (path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
        for path in sorted(children):
            yield from run_folders(path, max_depth - 1)


def _summary(folder: Path, job: TrialJob | None) -> RunSummary:
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    changed = max(path.stat().st_mtime for path in files if path.name in RUN_FILES)
    where: dict[str, Any] = {"run": str(folder), "age": time.time() - changed, "size": size}
    try:
        record = read_run(folder)
        experiment = read_experiment(record, folder / "run.json")
        state = _state(folder, experiment.hash)
        if state["state"] != FINISHED:
            state |= _training_state(folder, job)
    except UserError as error:
        return RunSummary(**where, problem=str(error))
    return RunSummary(
        **where,
        task=experiment.task,
        model=experiment.model,
        encoding=experiment.encoding,
        seed=experiment.seed,
        history=tuple(history(record)),
        vocabulary=vocabulary_of(record),
        **state,
    )


def _training_state(folder: Path, job: TrialJob | None) -> dict[str, Any]:
    """The state of an unfinished run that a job or another process trains; empty if none does."""
    if job is not None:
        return {"state": job.state, "job": job.number}
    return {"state": RUNNING} if is_training(folder) else {}


def _state(folder: Path, run: str) -> dict[str, Any]:
    """State, step and last metric of a run. run: its hash."""
    if (folder / "result.json").exists():
        result = read_result(folder, run)
        metric, steps = result["metric"], result.get("steps")
        counts = {"step": steps, "steps": steps}
        return {"state": FINISHED, **counts, "metric": metric, "value": result[metric]}
    rows = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
    if not rows:
        return {"state": NOT_BEGUN}
    measured = [row for row in rows if "value" in row]
    value = measured[-1]["value"] if measured else None
    metrics = [name for name in METRICS if measured and name in measured[-1]]
    counts = {"step": rows[-1]["step"], "steps": rows[-1].get("steps")}
    return {"state": UNFINISHED, **counts, "metric": next(iter(metrics), None), "value": value}


# Tasks and encodings -------------------------------------------------------------------------------------------------


def describe_tasks() -> list[dict[str, Any]]:
    """Every task of the package: name, description, models that can learn it, metric, options."""
    return [_task(name, tasks.spec(name).target) for name in tasks.names()]


def _task(name: str, target: Any) -> dict[str, Any]:
    options = options_of(target)
    metric = getattr(target.metric, "name", None)  # a class of yours may have a property
    return {
        "name": name,
        "what": first_sentence(target),
        "models": models_for(target),
        "metric": options["metric"].default if "metric" in options else metric,
        "options": _options(target),
    }


CLAIMS = {
    "shift_invariant": "moving all positions by the same amount changes nothing",
    "causal_only": "works only if queries never see later keys",
    "cross": "can be used in cross-attention",
    "shared": "one instance for all layers",
    "integer_only": "positions must be integers",
    "keeps_norms": "rotation keeps the length of vectors",
    "random_in_training": "two forwards in training differ",
}
"""The claims of an encoding, in words."""
SITE = Site(d_model=64, n_heads=8, d_head=8, d_value=8, causal=True)
LAYERS = 2
"""The attention layer and the depth for which parameters are counted: the defaults of most models."""

_CITED = re.compile(r"\(([A-Z][^()]*?\d{4})")
_AUTHORS = re.compile(r"^(\w+),.* (\d{4})$")


def describe_encodings() -> list[dict[str, Any]]:
    """`describe_encoding` of every encoding of the package."""
    return [describe_encoding(name) for name in encodings.names()]


def describe_encoding(spec: str) -> dict[str, Any]:
    """Facts about an encoding: names, description, axes, hooks, claims, number of parameters, source, options.

    Description and source are those of the class docstring, whose paragraph `Source: ...` names the paper. Raises
    UserError for an unknown encoding.
    """
    parsed = encodings.spec(spec)
    target = parsed.target
    description, source = _described(target)
    citation = _CITED.search(source)
    encoding = parsed.build(SITE)
    return {
        "name": parsed.name,
        "also": encodings.aliases(parsed.name),
        "what": first_sentence(target),
        "about": description,
        "axes": list(target.axes),
        "hooks": sorted(hooks_of(target)),
        "claims": {claim: getattr(encoding, claim) for claim in CLAIMS},
        "learns": count_parameters(str(parsed)),
        "paper": source,
        "cited": _AUTHORS.sub(r"\1 et al. \2", citation[1]) if citation else None,
        "options": _options(target),
    }


def _described(target: type) -> tuple[str, str]:
    """The description and the source in a class docstring, without its options."""
    option = re.compile(rf"({'|'.join(options_of(target))})(, \w+)*: ")
    description, source = [], ""
    for paragraph in (inspect.getdoc(target) or "").split("\n\n"):
        if paragraph.startswith("Source: "):
            source = " ".join(paragraph.removeprefix("Source: ").split())
        elif not (options_of(target) and option.match(paragraph)):
            description.append(paragraph)
    return "\n\n".join(description), source


def describe_typed_encodings(text: str) -> list[dict[str, Any]]:
    """`describe_encoding`, and `spec`, for each part of a sum and each layer of an encoding that a person typed.

    Raises UserError for an unknown encoding.
    """
    # Only for typed text: whoever types a file's name agrees to execute it.
    for path in files_of(text):
        trust_code(path)
    parts = [part_spec(part)[0] for of_layer in layer_specs(text) for part in split_sum(of_layer)]
    specs = dict.fromkeys(map(str, parts))
    return [describe_encoding(spec) | {"spec": spec} for spec in specs]


def count_parameters(spec: str) -> int:
    """The number of parameters of an encoding in a causal stack of `LAYERS` layers at `SITE`."""
    stack = LayerEncodings(spec, SITE, LAYERS)
    return sum(parameter.numel() for parameter in stack.parameters())


def _options(target: type) -> list[dict[str, Any]]:
    return [_option(option) for option in options_of(target).values()]


def _option(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "kind": option.kind,
        "choices": list(option.choices),
        "default": option.default,
        "meaning": option.meaning,
    }
