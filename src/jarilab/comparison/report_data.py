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
from jarilab.runs import checkpoint
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_metrics, read_run
from jarilab.runs.options import deciding
from jarilab.tasks.base import Task, TokenTask
from jarilab.tasks.classification import ImageTask
from jarilab.training.answering import Answering, answered


def payload(
    table: dict[str, Any], trials: Sequence[tuple[Experiment, Path]], task: Task
) -> dict[str, Any]:
    """Everything that `report.render` draws. Maps are those of the first seed of each encoding."""
    shown = [
        (experiment, folder)
        for experiment, folder in trials
        if experiment.seed == trials[0][0].seed
    ]
    record_of_first = read_run(trials[0][1])
    environment = record_of_first["environment"]
    ceiling = table["ceiling"]
    names = [summary["encoding"] for summary in table["encodings"]]
    experiment = trials[0][0]
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
        "trials": [
            {**row, "curve": _curve(folder)}
            for row, (_, folder) in zip(table["trials"], trials, strict=True)
        ],
        "examples": [_example(task, line, shown) for line in task.sample_inputs()]
        if _answers(task)
        else [],
        "what_ran": {
            "command": " ".join(sys.argv),
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "model": experiment.model.replace("_", " "),
            "jari": environment["jari"],
            "torch": environment["torch"],
            "processor": f"{environment['cpu']}, {environment['capability']}",
            "threads per trial": environment["threads"],
            "precision": experiment.precision,
            "attention kernel": ", ".join(sorted(set(record_of_first.get("kernels", {}).values()))),
            **_options("model", experiment.model_options),
            **_options("task", experiment.task_options),
            **_options("training", deciding(experiment.training)),
        },
    }


def _options(section: str, options: dict[str, Any]) -> dict[str, Any]:
    """What was chosen, for people; the encodings stand in the title."""
    chosen = {
        name: value
        for name, value in options.items()
        if value not in (None, "", []) and name != "encoding"
    }
    return {f"{section}: {name.replace('_', ' ')}": value for name, value in chosen.items()}


def _curve(folder: Path) -> list[dict[str, Any]]:
    keys = ("examples", "cpu_seconds", "loss")
    return [
        {**{k: row[k] for k in keys}, "value": row.get("value")} for row in read_metrics(folder)
    ]


def _answers(task: Task) -> bool:
    """Whether it answers an input by tokens or a class, whose attention the page shows; boxes are for the explorer."""
    return isinstance(task, TokenTask) or (isinstance(task, ImageTask) and not task.finds)


def _example(task: Task, line: str, shown: Sequence[tuple[Experiment, Path]]) -> dict[str, Any]:
    ids = task.read(line)
    models = [_model(task, line, ids, experiment, folder) for experiment, folder in shown]
    source = task.show_source(ids) if isinstance(task, TokenTask) else []
    return {"input": line, "expected": task.expected(line), "source": source, "models": models}


@torch.no_grad()
def _model(task: Task, line: str, ids: Any, experiment: Experiment, folder: Path) -> dict[str, Any]:
    model: Any = experiment.model_instance(task)
    path, _ = checkpoint.newest(folder / "checkpoints")
    assert path is not None, f"{folder} has a result, so it has a checkpoint"
    checkpoint.load_model(path, model, experiment.hash)
    said = answered(model.eval(), task, ids)
    text = task.answer(Answering(model, task), line.strip(), ids, said.written)
    # In float64, so that what is 0 in theory is not hidden behind rounding.
    model = model.double()
    with record(model) as tape:
        model(*precise(said.inputs))
    query, key, expected = said.target, said.source, task.expected(line)
    sites = [
        _site(tape, name, key if name.startswith("encoder") else query, key) for name in tape.sites
    ]
    return {
        "encoding": experiment.encoding,
        "seed": experiment.seed,
        "answer": text,
        "correct": None if expected is None else text == expected,
        "sites": [site for site in sites if not site["name"].endswith(".self")],
    }


def _site(tape: Tape, name: str, query: list[str], key: list[str]) -> dict[str, Any]:
    weights_HQK = tape.weights(name)[0]
    trust = tape.trust(name)
    encoder = name.startswith("encoder")
    kind = "encoder self-attention" if encoder else "decoder cross-attention"
    fixed = np.rint(weights_HQK.numpy() * 65535).astype("<u2")
    return {
        "name": name,
        "kind": kind,
        "query": query,
        "key": key,
        "heads": weights_HQK.shape[0],
        "weights": base64.b64encode(fixed.tobytes()).decode("ascii"),
        "equal_rows": equal_row_difference(weights_HQK, query) if encoder else None,
        "trust": {
            "row_sum_error": trust.row_sum_error,
            "masked_weight": trust.masked_weight,
            "rebuild_error": trust.rebuild_error,
        },
    }
