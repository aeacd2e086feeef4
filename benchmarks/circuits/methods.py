"""What the methods of jarilab measure on one planted model: plain data, before anything is decided."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from jarilab.core.errors import UserError
from jarilab.inspect.cause.answers import AnswerMetric, logit_over_mean
from jarilab.inspect.cause.composition import compositions
from jarilab.inspect.cause.contributions import contribution_rows
from jarilab.inspect.cause.parts import ModelParts
from jarilab.inspect.cause.patching import patch
from jarilab.inspect.cause.screening import screen
from jarilab.inspect.study.example import Batch
from jarilab.inspect.study.gold_links import GoldLinks
from jarilab.inspect.study.importance import HeadImportance
from jarilab.inspect.study.model_batches import study

from .planting import PlantedModel, answer_loss, plant

STUDIED_ROWS, LINKED_ROWS, ROWS, PAIRS = 16, 48, 16, 12
"""Examples of a study, of one with gold links, and of ablations, and pairs of inputs for patching."""
Job = tuple[str, int, tuple[str, ...]]
"""A family, a seed and names of `MEASURES`."""
Measurement = dict[str, dict[str, Any]]
"""By method and head, or two heads with a space between: a role, or a value with its interval and p."""


def measure_roles(planted: PlantedModel) -> Measurement:
    """The role of each head over examples of the task and probes, with gold links if the task has them."""
    has_links = planted.task.links is not None
    batch = planted.trees(LINKED_ROWS) if has_links else planted.examples(STUDIED_ROWS)
    links = [GoldLinks] if has_links else []
    result = study(planted.model, [batch], measures={}, accumulators=links, probes=planted.probes())
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


def patch_pairs(planted: PlantedModel) -> list[dict[str, Any]]:
    """The rows of `patch` for each head, in both directions and by both metrics; none without pairs."""
    pairs = planted.pairs(PAIRS)
    if not pairs:
        return []
    return patch(
        planted.model,
        planted.batch([pair.clean for pair in pairs]),
        planted.batch([pair.corrupt for pair in pairs]),
        [pair.answer for pair in pairs],
        [pair.rival for pair in pairs],
        read_at=pairs[0].position,
        controls=0,
    )


def measure_patching(planted: PlantedModel) -> Measurement:
    """Recovered fractions of each head."""
    measured: Measurement = {}
    for row in patch_pairs(planted):
        suffix = "_difference" if row["metric"] == "logit difference" else ""
        method = row["direction"] + suffix
        measured.setdefault(method, {})[row["part"]] = _interval(row, "fraction")
    return measured


def _answered(planted: PlantedModel) -> tuple[Batch, AnswerMetric]:
    """Inputs with the metric of their right answer: of the pairs, or at the last position if there are none."""
    pairs = planted.pairs(PAIRS)
    if pairs:
        batch = planted.batch([pair.clean for pair in pairs])
        return batch, logit_over_mean([pair.answer for pair in pairs], pairs[0].position)
    batch = planted.examples(PAIRS, 3)
    return batch, logit_over_mean([answers[-1] for answers in batch.extras])


def contributions_of(planted: PlantedModel) -> list[dict[str, Any]]:
    """The rows of `contribution_rows` for each head, to the logit of the right answer over the mean."""
    batch, metric = _answered(planted)
    return [row for row in contribution_rows(planted.model, [batch], metric) if row["kind"] == "head"]


def measure_contributions(planted: PlantedModel) -> Measurement:
    """Direct contribution of each head."""
    return {"contribution": {row["part"]: _interval(row, "contribution") for row in contributions_of(planted)}}


def measure_screening(planted: PlantedModel) -> Measurement:
    """Attribution patching: estimated fraction of the answer that each head's clean output recovers."""
    pairs = planted.pairs(PAIRS)
    if not pairs:
        return {}
    clean, corrupt = (planted.batch([getattr(pair, side) for pair in pairs]) for side in ("clean", "corrupt"))
    metric = logit_over_mean([pair.answer for pair in pairs], pairs[0].position)
    with torch.no_grad():
        values = [metric(batch.forward(planted.model), batch).mean() for batch in (clean, corrupt)]
    difference = float(values[0] - values[1])
    rows = screen(planted.model, [corrupt], metric, [clean], top=0, sample=0).rows
    estimates = {row["head"]: _interval(row, "estimate", divisor=difference) for row in rows}
    return {"attribution": estimates}


def measure_composition(planted: PlantedModel) -> Measurement:
    """For each pair of heads, how much of the earlier head the later one's q, k and v can read, over chance."""
    batch, _ = _answered(planted)
    rows = compositions(ModelParts(planted.model, batch), batch)
    measured: dict[str, dict[str, float]] = {}
    for row in rows:
        measured.setdefault(f"{row['head']} {row['to']}", {})[row["input"]] = _short(row["to_chance"])
    return {"composition": measured}


MEASURES: dict[str, Callable[[PlantedModel], Measurement]] = {
    "roles": measure_roles,
    "importance": measure_importance,
    "patching": measure_patching,
    "contributions": measure_contributions,
    "screening": measure_screening,
    "composition": measure_composition,
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
        "methods": list(methods),
        "measured": measured,
        "errors": errors,
        "seconds": round(time.process_time() - begin, 1),
    }


def _interval(row: Mapping[str, Any], name: str, p: str | None = None, divisor: float = 1.0) -> list[Any]:
    """The value of a column with its interval over a divisor, and the p-value in another column."""
    values = [row[column] for column in (name, f"{name}_low", f"{name}_high")]
    divided = [None if value is None else _short(value / divisor) for value in values]
    return [*divided, *([_short(row[p])] if p else [])]


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
