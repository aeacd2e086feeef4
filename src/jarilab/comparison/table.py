"""The table of a study: every trial, every encoding over its seeds, and every pair of encodings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from jarilab.comparison.pairs import Bound, Outcomes, Pairs, compare_pairs, describe_pairs, pair_row
from jarilab.comparison.seed_noise import bimodal_half_width
from jarilab.comparison.statistics import Interval, mean_interval
from jarilab.comparison.study import Trial
from jarilab.core.errors import UserError
from jarilab.encodings.compose import NO_ENCODING
from jarilab.runs.experiment import Experiment
from jarilab.runs.folder import read_experiment, read_run
from jarilab.runs.outcomes import FILE as OUTCOMES_FILE
from jarilab.runs.outcomes import TRAINED, read_outcomes
from jarilab.runs.results import read_result
from jarilab.tasks.base import Task
from jarilab.tasks.metrics import Metric, score_notes

Rows = Sequence[Mapping[str, Any]]
RowsOf = Mapping[str, Rows]
"""The trials of each encoding as rows of the table, by its label."""


def tabulate(trials: Sequence[Trial], task: Task, unfinished: Rows = ()) -> dict[str, Any]:
    """The table of finished trials. unfinished: rows for the others.

    Raises UserError if a folder holds a run with other settings.
    """
    rows: list[dict[str, Any]] = []
    reference = trials[0].experiment
    for trial in trials:
        record = read_run(trial.folder)
        saved = read_experiment(record, trial.folder / "run.json")
        differences = trial.experiment.difference(saved)
        if differences:
            lines = "\n  ".join(differences)
            raise UserError(
                f"{trial.folder} cannot be compared: it holds another run than this comparison asks for; choose "
                f"another --out, or give its settings:\n  {lines}"
            )
        result = read_result(trial.folder, trial.experiment.hash)
        rows.append(_row(trial, saved, result, task))
    rows_by_encoding: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        rows_by_encoding.setdefault(row["encoding"], []).append(row)
    metric = task.metric
    summaries = [_summary(name, rows_by_encoding, metric) for name in rows_by_encoding]
    ceiling = task.ceiling()
    # The bound holds where only the encoding gives the order; a recurrent model reads it by itself.
    has_bound = metric.name == "exact_match" and reference.model == task.usual_model
    limit = ceiling["all"] if ceiling and has_bound else None
    return {
        "task": reference.task,
        "describe": task.describe(),
        "notes": list(dict.fromkeys(note for row in rows for note in row.pop("notes"))),
        "metric": metric.name,
        "ceiling": ceiling,
        "trials": rows,
        "unfinished": list(unfinished),
        "encodings": summaries,
        **_compare_pairs(rows_by_encoding, rows[0]["held_out"], metric, TRAINED, limit),
        "lengths": _lengths(trials[0].lengths, rows_by_encoding, task),
    }


def interval_of(
    name: str, rows_of: RowsOf, examples: int, metric: Metric, path: Sequence[str] = ("value",)
) -> Interval:
    """The mean of an encoding over its seeds, as wide as the seeds of any encoding demand.

    path: the keys of the value in a row, which some rows may lack.
    """
    values_of: dict[str, list[float]] = {}
    for key, rows in rows_of.items():
        values = (_at(row, path) for row in rows)
        values_of[key] = [value for value in values if value is not None]
    at_least = bimodal_half_width(list(values_of.values()))
    return mean_interval(values_of[name], examples, share=metric.share, at_least=at_least)


def _at(row: Any, path: Sequence[str]) -> Any:
    for key in path:
        row = None if row is None else row.get(key)
    return row


def _lengths(lengths: Sequence[int], rows_of: RowsOf, task: Task) -> dict[str, Any] | None:
    """Means, best encoding and pairs at each of the other lengths; None without other lengths."""
    if not lengths:
        return None
    at = [_at_length(length, rows_of, task.metric) for length in lengths]
    return {"unit": task.length_unit, "trained": task.trained_length, "at": at}


def _at_length(length: int, rows_of: RowsOf, metric: Metric) -> dict[str, Any]:
    """Mean of each encoding at a length, the best of them, and those that are not ranked below it."""
    measured: dict[str, list[dict[str, Any]]] = {}
    encodings = []
    for name, rows in rows_of.items():
        measured[name] = [
            {"seed": row["seed"], "run": row["run"], "hash": row["hash"]}
            | row["lengths"][str(length)]
            for row in rows
        ]
    for name in rows_of:
        first = measured[name][0]
        interval = interval_of(name, measured, first["examples"], metric)
        summary = {"mean": interval.mean, "low": interval.low, "high": interval.high}
        encodings.append({"encoding": name, **summary, "notices": first["notices"]})
    sign = 1 if metric.higher else -1
    best = max(encodings, key=lambda row: sign * row["mean"])["encoding"]
    examples = measured[best][0]["examples"]
    compared = _compare_pairs(measured, examples, metric, str(length))
    unranked = []
    for row in compared["differences"]:
        if best in (row["first"], row["second"]) and row["better"] != best:
            unranked.append(row["second"] if row["first"] == best else row["first"])
    return {
        "length": length,
        "examples": examples,
        "encodings": encodings,
        "best": best,
        "unranked": unranked,
        **compared,
    }


def _row(
    trial: Trial, experiment: Experiment, result: Mapping[str, Any], task: Task
) -> dict[str, Any]:
    """A finished trial in the table."""
    metric = task.metric.name
    groups = {}
    for group in task.groups[1:]:
        key = f"{metric}_{group}"
        if key in result:
            groups[group] = result[key]
    return {
        "encoding": experiment.encoding,
        "seed": experiment.seed,
        "value": result[metric],
        "best_value": result["best"][metric],
        "groups": groups,
        "group_examples": result.get("group_examples", {}),
        "parts": result.get("parts", {}),
        "lengths": {str(n): result["lengths"][str(n)] for n in trial.lengths},
        "hash": trial.experiment.hash,
        "held_out": int(result["examples"]),
        "notes": score_notes(result),
        "lr": experiment.training["lr"],
        "parameters": result["parameters"],
        "examples": result["trained_examples"],
        "steps": result["steps"],
        "cpu_seconds": result["cpu_seconds"],
        "seconds_per_step": result["seconds"] / result["steps"],
        "peak_memory": result.get("peak_memory"),
        "run": str(trial.folder),
        "command": shlex.join(trial.command),
    }


def _summary(name: str, rows_of: RowsOf, metric: Metric) -> dict[str, Any]:
    """One encoding over all its seeds."""
    rows = rows_of[name]
    first = rows[0]
    interval = interval_of(name, rows_of, first["held_out"], metric)
    groups, group_intervals = {}, {}
    for group in first["groups"]:
        groups[group] = fmean(row["groups"][group] for row in rows)
        examples = first["group_examples"].get(group)
        if examples:
            one = interval_of(name, rows_of, examples, metric, ("groups", group))
            group_intervals[group] = [one.low, one.high]

    peaks = [row["peak_memory"] for row in rows if row["peak_memory"] is not None]

    def mean(key: str) -> float:
        return fmean(row[key] for row in rows)

    return {
        "encoding": name,
        "trials": len(rows),
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "interval": interval.how,
        "best_mean": mean("best_value"),
        "held_out": first["held_out"],
        "groups": groups,
        "group_examples": first["group_examples"],
        "group_intervals": group_intervals,
        "parts": _mean_parts(name, rows_of, metric),
        "lr": first["lr"],
        "parameters": first["parameters"],
        "seconds_per_step": mean("seconds_per_step"),
        "cpu_seconds": mean("cpu_seconds"),
        "peak_memory": max(peaks) if peaks else None,
    }


def _mean_parts(encoding: str, rows_of: RowsOf, metric: Metric) -> dict[str, Any]:
    """The mean of each part over the seeds, with its interval; parts that every seed has."""
    rows = rows_of[encoding]
    means: dict[str, Any] = {}
    for by, parts in rows[0]["parts"].items():
        if any(by not in row["parts"] for row in rows):
            continue
        means[by] = {}
        for name, part in parts.items():
            path = ("parts", by, name, "value")
            interval = interval_of(encoding, rows_of, part["examples"], metric, path)
            ends = {"value": interval.mean, "low": interval.low, "high": interval.high}
            means[by][name] = {**part, **ends}
    return means


def _compare_pairs(
    rows_of: RowsOf, held_out: int, metric: Metric, length: str, limit: float | None = None
) -> dict[str, Any]:
    """Every pair of encodings in the table, and how the pairs were compared.

    held_out: the number of examples. length: of their outcomes. limit: the upper bound without positions, if it holds.
    """
    rows_by_seed: dict[str, dict[int, Mapping[str, Any]]] = {}
    for name, rows in rows_of.items():
        rows_by_seed[name] = {row["seed"]: row for row in rows}
    common_seeds = sorted(set.intersection(*map(set, rows_by_seed.values())))
    n_seeds = len(set[int]().union(*rows_by_seed.values()))
    missing = {name: n_seeds - len(rows) for name, rows in rows_by_seed.items()}
    paired: dict[str, Rows] = {}
    values: dict[str, list[float]] = {}
    for name, rows in rows_by_seed.items():
        paired[name] = [rows[seed] for seed in common_seeds]
        values[name] = [row["value"] for row in paired[name]]
    pairs, bound = Pairs([], 0, None), None
    if common_seeds:  # otherwise some failed at every seed of another
        outcomes = _outcomes(paired, length) if len(common_seeds) > 1 else None
        pairs = compare_pairs(values, held_out, share=metric.share, outcomes=outcomes)
        if limit is not None and NO_ENCODING in values:
            bound = Bound.of(NO_ENCODING, limit, values, held_out)
    pairs = replace(pairs, missing={name: n for name, n in missing.items() if n})
    differences = [pair_row(one, metric, pairs, bound) for one in pairs.differences]
    return {"differences": differences, "pairs": describe_pairs(pairs, held_out, metric)}


def _outcomes(rows_of: RowsOf, length: str) -> Outcomes | None:
    """The outcome of each held-out example; None if a trial did not keep them, as those of older versions."""
    outcomes: dict[str, np.ndarray] = {}
    for name, rows in rows_of.items():
        values = [read_outcomes(Path(row["run"]), row["hash"]).get(length) for row in rows]
        present = [values_N for values_N in values if values_N is not None and len(values_N) > 1]
        if len(present) < len(rows):
            return None
        for row, values_N in zip(rows, present, strict=True):
            _check_outcomes(row, values_N)
        if len({len(values_N) for values_N in present}) > 1:
            return None
        outcomes[name] = np.stack(present)
    return outcomes if len({values.shape for values in outcomes.values()}) == 1 else None


def _check_outcomes(row: Mapping[str, Any], values_N: np.ndarray) -> None:
    """Raises UserError if the mean of outcomes is not the value of the trial."""
    mean, value = float(values_N.mean(dtype=np.float64)), row["value"]
    if not np.isclose(mean, value, rtol=1e-3, atol=1e-6):
        path = Path(row["run"]) / OUTCOMES_FILE
        raise UserError(
            f"{path}: expected outcomes with a mean of {value:g} as in result.json, got {mean:g}; remove the file, and "
            "pairs are compared without it"
        )
