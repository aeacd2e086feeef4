"""What the methods of jarilab measure on one planted model: plain data, before anything is decided."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from jarilab.inspect.study.importance import HeadImportance
from jarilab.inspect.study.model_batches import study

from .planting import PlantedModel, answer_loss, plant

STUDIED_ROWS = 32
BATCHES, ROWS = 2, 16
"""Batches of examples of ablations, and rows of each."""
Row = dict[str, Any]
Job = tuple[str, int]
"""A family and a seed."""
Measurement = dict[str, list[Row]]
"""Rows by method; `heads` has a row a head with the role, `pairs` a row a pair of heads."""


def measure_roles(planted: PlantedModel) -> Measurement:
    """The role of each head over examples of the task and probes."""
    result = study(planted.model, [planted.examples(STUDIED_ROWS)], planted.token_names, probes=planted.probes())
    return {"roles": [_select(row, "head", "role", "role_candidate", "role_low") for row in result.rows()]}


def measure_importance(planted: PlantedModel) -> Measurement:
    """Total effects of four kinds of ablation, the direct effect, and pairs."""
    batches = [planted.examples(ROWS, 2 + number) for number in range(BATCHES)]
    importance = HeadImportance(planted.model, batches, answer_loss)
    rows = importance.rows(controls=0)
    measured: Measurement = {}
    for row in rows:
        measured.setdefault(row["kind"], []).append(_interval(row, "total"))
        if row["kind"] == "zero":
            measured.setdefault("direct", []).append(_interval(row, "direct"))
    measured["pairs"] = [_interval(row, "excess") | {"other": row["other"]} for row in importance.pair_rows(rows)]
    return measured


MEASURES: list[Callable[[PlantedModel], Measurement]] = [measure_roles, measure_importance]


def measure(planted: PlantedModel) -> Measurement:
    """All methods."""
    measured: Measurement = {}
    for each in MEASURES:
        measured |= each(planted)
    return measured


def measure_model(job: Job) -> dict[str, Any]:
    """The record of one family and seed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    family, seed = job
    begin = time.process_time()
    planted = plant(family, seed)
    measured = measure(planted)
    return {
        "family": family,
        "host": planted.host,
        "seed": seed,
        "draws": planted.draws,
        "facts": planted.circuit.facts,
        "names": planted.names,
        "measured": measured,
        "seconds": round(time.process_time() - begin, 1),
    }


def _select(row: Mapping[str, Any], *names: str) -> Row:
    return {name: _short(row[name]) for name in names}


def _interval(row: Mapping[str, Any], name: str) -> Row:
    """The value of a column with its interval; p_holm is that of the total or of the excess."""
    ends = {"value": name, "low": f"{name}_low", "high": f"{name}_high"}
    selected = {"head": row["head"], **{key: _short(row[column]) for key, column in ends.items()}}
    return selected | ({} if name == "direct" else {"p": _short(row["p_holm"])})


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
