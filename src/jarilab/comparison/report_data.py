"""What the report shows, as plain data: results, curves, and maps of a few examples with what proves them."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jarilab.inspect.capture import Tape, record
from jarilab.inspect.measures import equal_row_difference
from jarilab.inspect.model_io import precise
from jarilab.inspect.sites import AttentionSite
from jarilab.predictors.base import Trace, predictor_class, predictor_for
from jarilab.runs import checkpoint
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_metrics, read_run
from jarilab.runs.loaded import load_checkpoint
from jarilab.runs.options import deciding
from jarilab.tasks.base import Task

KINDS = {"encoder": "encoder self-attention", "cross": "decoder cross-attention"}
LONGEST_INPUT = 2048
"""Tokens of an example: a map has their square."""


def payload(
    table: dict[str, Any], trials: Sequence[tuple[Experiment, Path]], task: Task
) -> dict[str, Any]:
    """Everything that `report.render` draws. Maps are those of the first seed of each encoding."""
    experiment, folder = trials[0]
    shown = [trial for trial in trials if trial[0].seed == experiment.seed]
    ceiling = table["ceiling"]
    names = [summary["encoding"] for summary in table["encodings"]]
    reported = predictor_class(task).reported
    inputs = task.sample_inputs() if reported else []
    examples = [_example(task, line, shown) for line in inputs]
    rows = []
    for row, (_, of_row) in zip(table["trials"], trials, strict=True):
        rows.append({**row, "curve": _curve(of_row)})
    return {
        "title": f"{experiment.task}: {', '.join(names)}",
        "model": experiment.model,
        "task": {
            "name": experiment.task,
            "sentence": task.describe(),
            "groups": list(task.groups),
            "metric": asdict(task.metric),
            "ceiling": ceiling,
            "ceiling_sentence": task.ceiling_sentence() if ceiling else None,
            "held_out": table["trials"][0]["held_out"],
        },
        "summary": table["encodings"],
        "differences": table["differences"],
        "trials": rows,
        "examples": examples,
        "what_ran": _what_ran(experiment, folder),
    }


def _what_ran(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """A trial for people who want to have it once more."""
    record = read_run(folder)
    environment = record["environment"]
    kernels = set(record.get("kernels", {}).values())
    return {
        "command": " ".join(sys.argv),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "model": experiment.model.replace("_", " "),
        "jari": environment["jari"],
        "torch": environment["torch"],
        "processor": f"{environment['cpu']}, {environment['capability']}",
        "threads per trial": environment["threads"],
        "precision": experiment.precision,
        "attention kernel": ", ".join(sorted(kernels)),
        **_options("model", experiment.model_options),
        **_options("task", experiment.task_options),
        **_options("training", deciding(experiment.training)),
    }


def _options(section: str, options: dict[str, Any]) -> dict[str, Any]:
    """What was chosen, for people; the encodings stand in the title."""
    chosen = {}
    for name, value in options.items():
        if value not in (None, "", []) and name != "encoding":
            words = name.replace("_", " ")
            chosen[f"{section}: {words}"] = value
    return chosen


def _curve(folder: Path) -> list[dict[str, Any]]:
    keys = ("examples", "cpu_seconds", "loss")
    points = []
    for row in read_metrics(folder):
        point = {key: row[key] for key in keys}
        point["value"] = row.get("value")
        points.append(point)
    return points


def _example(task: Task, line: str, shown: Sequence[tuple[Experiment, Path]]) -> dict[str, Any]:
    models, traces = [], []
    for experiment, folder in shown:
        model, trace = _model(task, line, experiment, folder)
        models.append(model)
        traces.append(trace)
    return {"input": line, "expected": traces[0].expected, "models": models}


@torch.no_grad()
def _model(
    task: Task, line: str, experiment: Experiment, folder: Path
) -> tuple[dict[str, Any], Trace]:
    path, _ = checkpoint.newest(folder / "checkpoints")
    assert path is not None, f"{folder} has a result, so it has a checkpoint"
    predictor = predictor_for(load_checkpoint(path, experiment, task), task)
    trace = predictor.trace(line, LONGEST_INPUT)
    # In float64, so that what is 0 in theory is not hidden behind rounding.
    model = predictor.traced_model.double()
    with record(model) as tape:
        model(*precise(trace.inputs))
    # A decoder's own attention says little of how the input is read.
    sites = [tape.site(name) for name in tape.sites]
    shown = [site for site in sites if site.kind in KINDS]
    expected = trace.expected
    return {
        "encoding": experiment.encoding,
        "seed": experiment.seed,
        "answer": trace.answer,
        "correct": None if expected is None else trace.answer == expected,
        "sites": [_site(tape, site, trace) for site in shown],
    }, trace


def _site(tape: Tape, site: AttentionSite, trace: Trace) -> dict[str, Any]:
    weights_HQK = tape.weights(site.name)[0]
    trust = tape.trust(site.name)
    query = list(trace.names(site.queries))
    key = list(trace.names(site.keys))
    equal_rows = None
    if site.kind == "encoder":
        equal_rows = equal_row_difference(weights_HQK, query)
    fixed = np.rint(weights_HQK.numpy() * 65535).astype("<u2")
    return {
        "name": site.name,
        "kind": KINDS[site.kind],
        "query": query,
        "key": key,
        "heads": weights_HQK.shape[0],
        "weights": base64.b64encode(fixed.tobytes()).decode("ascii"),
        "equal_rows": equal_rows,
        "trust": {
            "row_sum_error": trust.row_sum_error,
            "masked_weight": trust.masked_weight,
            "rebuild_error": trust.rebuild_error,
        },
    }
