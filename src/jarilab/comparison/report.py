"""The report of a comparison: its data, and the HTML page that needs no network."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jarilab.comparison.curves import drawn_point
from jarilab.comparison.examples import Trials, blind_of, example_of, lead_example
from jarilab.pages.kit.page import assemble
from jarilab.pages.kit.tones import tones_of
from jarilab.runs.environment import typed_command
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_metrics, read_run
from jarilab.runs.origins import history
from jarilab.runs.training_options import deciding
from jarilab.tasks.base import Task
from jarilab.tasks.metrics import Metric
from jarilab.tasks.predictors.base import predictor_class

STYLES = ("kit/theme.css", "kit/base.css", "kit/maps.css", "report.css")


def render(payload: dict[str, Any]) -> str:
    """The report as one HTML document. payload: from `payload`."""
    return assemble(
        "jarilab.comparison",
        "report.html",
        STYLES,
        "report.js",
        payload,
        str(payload["title"]),
        live=False,
        description=description(payload),
    )


def description(payload: dict[str, Any]) -> str:
    """The measured values in one sentence, for the preview of a link to the report."""
    task = payload["task"]
    metric = Metric(**task["metric"])
    means = [f"{row['encoding']} {metric.text(row['mean'])}" for row in payload["summary"]]
    sentence = f"{task['name']}, {metric.title} on held-out data: {', '.join(means)}."
    ceiling = task["ceiling"] or {}
    if ceiling.get("all") is None:
        return sentence
    limit = metric.text(ceiling["all"])
    return f"{sentence} Without positions at most {limit} on average."


def payload(table: dict[str, Any], trials: Trials, task: Task) -> dict[str, Any]:
    """The data that the page draws. Maps are those of the first seed of each encoding."""
    experiment, folder = trials[0]
    first_trials: dict[str, tuple[Experiment, Path]] = {}
    for trial in trials:
        first_trials.setdefault(trial[0].encoding, trial)
    compared = list(first_trials.values())
    ceiling = table["ceiling"]
    names = [summary["encoding"] for summary in table["encodings"]]
    reported = predictor_class(task).reported
    inputs = task.sample_inputs() if reported else []
    examples = [example_of(task, line, compared) for line in inputs]
    ordered = sorted(table["encodings"], key=lambda row: row["mean"], reverse=task.metric.higher)
    ranked = [row["encoding"] for row in ordered]
    rows = []
    for row, (_, trial_folder) in zip(table["trials"], trials, strict=True):
        rows.append({**row, "curve": list(map(drawn_point, read_metrics(trial_folder)))})
    return {
        "title": f"{experiment.task}: {', '.join(names)}",
        "tones": tones_of((name, name) for name in names),
        "model": experiment.model,
        "task": {
            "name": experiment.task,
            "sentence": "; ".join([task.describe(), *table["notes"]]),
            "groups": list(task.groups),
            "metric": asdict(task.metric),
            "ceiling": ceiling,
            "ceiling_sentence": task.ceiling_sentence() if ceiling else None,
            "ones_first": getattr(task, "ones_first", False),
            "held_out": table["trials"][0]["held_out"],
        },
        "summary": table["encodings"],
        "differences": table["differences"],
        "pairs": table["pairs"],
        "lengths": table["lengths"],
        "trials": rows,
        "unfinished": table["unfinished"],
        "examples": examples,
        "blind": blind_of(examples),
        "opening": lead_example(examples, ranked),
        "what_ran": _what_ran(experiment, folder) | tuned_facts(table),
    }


def _what_ran(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """The settings and versions of a trial, to repeat it."""
    record = read_run(folder)
    environment = record["environment"]
    kernels = set(record.get("kernels", {}).values())
    return {
        "command": typed_command(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "model": experiment.model.replace("_", " "),
        "jari": environment["jari"],
        "torch": environment["torch"],
        "processor": f"{environment['cpu']}, {environment['capability']}",
        "threads per trial": environment["threads"],
        "precision": experiment.precision,
        **({"before": "; ".join(before)} if (before := history(record)) else {}),
        "attention kernel": ", ".join(sorted(kernels)),
        **_options("model", experiment.model_options),
        **_options("task", experiment.task_options),
        **_options("training", deciding(experiment.training)),
    }


def tuned_facts(table: dict[str, Any]) -> dict[str, Any]:
    """The learning rate of each encoding in place of the first trial's; empty if it was not tuned."""
    rates = [f"{row['encoding']} {row['lr']:g}" for row in table["encodings"]]
    return {"training: lr": ", ".join(rates)} if table.get("tuning") else {}


def _options(section: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that are set, by words for them; the encodings stand in the title."""
    options_by_words = {}
    for name, value in options.items():
        if value not in (None, "", []) and name != "encoding":
            label = name.replace("_", " ")
            options_by_words[f"{section}: {label}"] = value
    return options_by_words
