"""What the methods of jarilab measure on one planted model: plain data, before anything is decided."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from jarilab.core.errors import UserError
from jarilab.inspect.study.importance import HeadImportance
from jarilab.inspect.study.model_batches import study

from .planting import PlantedModel, answer_loss, plant

STUDIED_ROWS, ROWS = 16, 16
"""Examples of a study, and of ablations."""
Job = tuple[str, int, tuple[str, ...]]
"""A family, a seed and names of `MEASURES`."""
Measurement = dict[str, dict[str, Any]]
"""By method and head, or two heads with a space between: a role, or a value with its interval and p."""


def measure_roles(planted: PlantedModel) -> Measurement:
    """The role of each head over examples of the task and probes."""
    result = study(planted.model, [planted.examples(STUDIED_ROWS)], measures={}, probes=planted.probes())
    return {"roles": {row["head"]: row["role"] for row in result.rows()}}


def measure_importance(planted: PlantedModel) -> Measurement:
    """Total effects of four kinds of ablation, the direct effect, and pairs."""
    importance = HeadImportance(planted.model, [planted.examples(ROWS, 2)], answer_loss)
    rows = importance.rows(controls=0)
    measured: Measurement = {}
    for row in rows:
        measured.setdefault(row["kind"], {})[row["head"]] = _interval(row, "total", "p_holm")
        if row["kind"] == "zero":
            measured.setdefault("direct", {})[row["head"]] = _interval(row, "direct")
    pairs = importance.pair_rows(rows)
    measured["pairs"] = {f"{row['head']} {row['other']}": _interval(row, "excess", "p_holm") for row in pairs}
    return measured


MEASURES: dict[str, Callable[[PlantedModel], Measurement]] = {
    "roles": measure_roles,
    "importance": measure_importance,
}


def measure_model(job: Job) -> dict[str, Any]:
    """The record of one family and seed. A method that fails leaves its error there."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    family, seed, methods = job
    begin = time.process_time()
    planted = plant(family, seed)
    measured: Measurement = {}
    errors: dict[str, str] = {}
    for method in methods:
        try:
            measured |= MEASURES[method](planted)
        except (UserError, RuntimeError, ValueError, IndexError, KeyError, TypeError) as error:
            errors[method] = f"{type(error).__name__}: {error}"[:400]
    return {
        "family": family,
        "host": planted.host,
        "seed": seed,
        "draws": planted.draws,
        "facts": planted.circuit.facts,
        "names": planted.names,
        "measured": measured,
        "errors": errors,
        "seconds": round(time.process_time() - begin, 1),
    }


def _interval(row: Mapping[str, Any], name: str, p: str | None = None) -> list[Any]:
    """The value of a column with its interval, and the p-value in another column."""
    columns = (name, f"{name}_low", f"{name}_high", *([p] if p else []))
    return [_short(row[column]) for column in columns]


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
