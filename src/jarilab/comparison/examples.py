"""Examples of a report: the answer of each model, its attention maps and their checks."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

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


# The example that a report opens with --------------------------------------------------------------------------------


KINDS = {
    "encoder": "encoder self-attention",
    "cross": "decoder cross-attention",
    "decoder": "decoder self-attention",
}
Example = Mapping[str, Any]
Model = Mapping[str, Any]
Site = Mapping[str, Any]


def blind_of(examples: Sequence[Example]) -> str | None:
    """The encoding without positions: with it, equal tokens have equal rows in every encoder head.

    None if there is no such encoding.
    """
    models = (model for example in examples for model in example["models"])
    return next((model["encoding"] for model in models if _is_blind(model)), None)


def _is_blind(model: Model) -> bool:
    differences = [value for site in model["sites"] for value in site["equal_rows"] or []]
    known = [value for value in differences if value is not None]
    return bool(known) and not any(known)


def lead_example(examples: Sequence[Example], ranked: Sequence[str]) -> dict[str, Any] | None:
    """The example, models, site, head, query and key that a report opens with; None without maps.

    Of the one or two models the better one is last. ranked: encodings, the best first. The example is one that the
    better model answers and the other does not, if there is one. The head is the one of the better model whose removal
    raises the loss of the answer most. If that was not measured, it is the head farthest above chance. The cell is the
    weight farthest above an equal share.
    """
    blind = blind_of(examples)
    pair_indices = [_pair(example["models"], blind, ranked) for example in examples]
    candidates = [number for number, pair in enumerate(pair_indices) if pair]
    if not candidates:
        return None
    best = max(
        candidates, key=lambda number: _contrast(examples[number]["models"], pair_indices[number])
    )
    indices = pair_indices[best]
    better = examples[best]["models"][indices[-1]]
    heads = [(site, head) for site in better["sites"] for head in range(site["heads"])]
    site, head = max(heads, key=lambda entry: _salience(*entry))
    query, key = _cell(site, head)
    has_effects = site["effects"] is not None
    cell = {"site": site["name"], "head": head, "query": query, "key": key, "measured": has_effects}
    return {"example": best, "models": indices, **cell}


def _pair(models: Sequence[Model], blind: str | None, ranked: Sequence[str]) -> list[int]:
    """Indices of the models to compare: the one without positions or the second best, then the best."""
    numbers = {model["encoding"]: number for number, model in enumerate(models) if model["sites"]}
    by_rank = [name for name in ranked if name in numbers]
    informed = [name for name in by_rank if name != blind]
    best = informed[0] if informed else blind
    others = [name for name in (blind, *by_rank) if name in numbers and name != best]
    names = [*others[:1], best]
    return [numbers[name] for name in names if name in numbers]


def _contrast(models: Sequence[Model], pair: Sequence[int]) -> tuple[bool, bool]:
    """Whether the better model is right, and whether the other one is wrong."""
    return models[pair[-1]]["correct"] is True, models[pair[0]]["correct"] is False


def _salience(site: Site, head: int) -> tuple[float, float]:
    """The effect of a head on the answer, then its distance from chance."""
    effect = float("-inf") if site["effects"] is None else site["effects"][head]
    return effect, site["salience"][head]


def _cell(site: Site, head: int) -> tuple[int, int]:
    """Query and key of the weight that is farthest above an equal share of the visible keys."""
    weights_QK = weights_of(site, head)
    queries, keys = weights_QK.shape
    seen_Q = np.full(queries, keys)
    if site["kind"] == KINDS["decoder"]:
        seen_Q = np.arange(queries) + 1
    above_QK = weights_QK - 1 / seen_Q[:, None]
    query, key = divmod(int(above_QK.argmax()), keys)
    return query, key


def weights_of(site: Site, head: int) -> np.ndarray:
    """The map of a head `(Q, K)`, from 0 to 1."""
    fixed = np.frombuffer(base64.b64decode(site["weights"]), "<u2")
    queries, keys = len(site["query"]), len(site["key"])
    return fixed.reshape(-1, queries, keys)[head] / FIXED
