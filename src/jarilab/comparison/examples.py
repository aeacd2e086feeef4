"""Examples of a report: the answer of each model, its attention maps and their checks."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from jarilab.comparison.lead_example import KINDS
from jarilab.inspect.intervene.effects import ablation
from jarilab.inspect.measure.heads import salience
from jarilab.inspect.measure.maps import Map, equal_row_difference
from jarilab.inspect.record.capture import Tape, record
from jarilab.inspect.record.model_io import to_float64
from jarilab.inspect.record.sites import AttentionSite
from jarilab.pages.kit.data_blocks import FIXED
from jarilab.pages.kit.image_data import picture_of
from jarilab.runs import checkpoint
from jarilab.runs.experiment import Experiment
from jarilab.runs.loaded import load_checkpoint
from jarilab.tasks.base import Task
from jarilab.tasks.predictors.base import Trace, predictor_for

LONGEST_INPUT = 2048
"""Tokens of an example: a map has their square."""
MEASURED_INPUT = 256
"""Tokens up to which heads are switched off one by one, and measured."""

Trials = Sequence[tuple[Experiment, Path]]


def explore_command(runs: Sequence[tuple[Experiment, Path]], line: str | None = None) -> str:
    """The command that opens these runs in the explorer. line: the input."""
    words = ["jarilab", "explore", *(str(folder) for _, folder in runs)]
    if line is not None:
        words += ["--input", line]
    if any(run.files for run, _ in runs):
        words.append("--trust-code")
    return shlex.join(words)


def example_of(task: Task, line: str, trials: Trials) -> dict[str, Any]:
    """An input of the task, with the answer, maps and measures of the newest checkpoint of each trial."""
    models, traces = [], []
    for experiment, folder in trials:
        model, trace = _model(task, line, experiment, folder)
        models.append(model)
        traces.append(trace)
    source = traces[0].sequences.get("source")
    image = None if source is None or source.image is None else picture_of(source.image)
    return {
        "input": line,
        "image": image,
        "expected": traces[0].expected,
        "explore": explore_command(trials, line),
        "models": models,
    }


@torch.no_grad()
def _model(
    task: Task, line: str, experiment: Experiment, folder: Path
) -> tuple[dict[str, Any], Trace]:
    checkpoint_path, _ = checkpoint.newest(folder / "checkpoints")
    assert checkpoint_path is not None, f"{folder} has a result, so it has a checkpoint"
    predictor = predictor_for(load_checkpoint(checkpoint_path, experiment, task), task)
    trace = predictor.trace(line, LONGEST_INPUT)
    # In float64, so that what is 0 in theory is not hidden behind rounding.
    model = predictor.traced_model.double()
    inputs = to_float64(trace.inputs)
    with record(model) as tape:
        model(*inputs)
    # With a source, the decoder's self-attention shows little of how the source is read.
    sites = [tape.site(name) for name in tape.sites]
    selected = [site for site in sites if site.kind != "decoder"] or sites
    effects = _effects(model, inputs, trace)
    expected = trace.expected
    return {
        "encoding": experiment.encoding,
        "seed": experiment.seed,
        "run": str(folder),
        "experiment": experiment.hash,
        "step": int(checkpoint_path.name.removeprefix("step-")),
        "answer": trace.answer,
        "correct": None if expected is None else trace.answer == expected,
        "sites": [_site(tape, site, trace, effects.get(site.name)) for site in selected],
    }, trace


def _effects(model: nn.Module, inputs: tuple[Any, ...], trace: Trace) -> dict[str, list[float]]:
    """How much the loss of the answer rises without each head, by site; empty if that would take long."""
    longest = max(len(sequence.names) for sequence in trace.sequences.values())
    if longest > MEASURED_INPUT or trace.answer is None:
        return {}
    effects = ablation(model, inputs, trace.written)
    return {name: effect_H.tolist() for name, effect_H in effects.items()}


def _site(
    tape: Tape, site: AttentionSite, trace: Trace, effects: list[float] | None
) -> dict[str, Any]:
    """The maps and measurements of one site."""
    weights_HQK = tape.weights(site.name)[0]
    trust = tape.trust(site.name)
    query = list(trace.names(site.queries))
    key = list(trace.names(site.keys))
    equal_rows = equal_columns = None
    if site.kind == "encoder":
        equal_rows = equal_row_difference(weights_HQK, query)
    elif site.kind == "cross":
        equal_columns = equal_row_difference(weights_HQK.transpose(1, 2), key)
    fixed = np.rint(weights_HQK.numpy() * FIXED).astype("<u2")
    return {
        "name": site.name,
        "kind": KINDS[site.kind],
        "query": query,
        "key": key,
        "heads": weights_HQK.shape[0],
        "weights": base64.b64encode(fixed.tobytes()).decode("ascii"),
        "equal_rows": equal_rows,
        "equal_columns": equal_columns,
        "effects": effects,
        "salience": salience(Map.of(tape, site.name, query, key)).tolist(),
        "trust": asdict(trust) | {"holds": trust.holds},
    }
