"""Reading and checking result.json of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from jarilab.core.errors import UserError
from jarilab.core.options import check_fields
from jarilab.core.storage.files import read_json, unseal_record
from jarilab.runs.experiment import Experiment
from jarilab.tasks.metrics import BUILT_IN

TRAINING_SCALARS = ("loss", "gradient_norm", "lr")
NOT_METRICS = (*TRAINING_SCALARS, "tokens", "examples", "step", "steps", "seconds", "cpu_seconds")
NOT_METRICS += ("held_out", "value")
"""Fields of a row of the curve that the task does not measure."""
Count = Annotated[int, Ge(0), Le(2**63)]
Amount = Annotated[float, Ge(0), Le(1e18)]
Share = Annotated[float, Ge(0), Le(1)]
FIELDS: dict[str, Any] = {
    "hash": str,
    "metric": str,
    "encoding": str,
    "seed": Count,
    "best": dict[str, Any],
    "steps": Annotated[int, Ge(1), Le(2**63)],
    "trained_examples": Count,
    "parameters": Count,
    "examples": Annotated[float, Ge(1), Le(1e18)],
    "seconds": Amount,
    "cpu_seconds": Amount,
    "ceiling": float | dict[str, float] | None,
    "peak_memory": int | None,
    "group_examples": dict[str, Annotated[int, Ge(1), Le(2**63)]],
    "parts": dict[str, dict[str, dict[str, Any]]],
    "confusion": dict[str, dict[str, int]],
    "curve_rows": Count,
    "lengths": dict[str, dict[str, Any]],
}
"""The types of a result's fields; those in NEEDED must be present."""
NEEDED = (
    "hash",
    "metric",
    "best",
    "steps",
    "trained_examples",
    "parameters",
    "examples",
    "seconds",
    "cpu_seconds",
)


def read_result(folder: Path, run: str) -> dict[str, Any]:
    """The result of a run. run: its hash. Raises UserError if the file is damaged or of another run."""
    path = folder / "result.json"
    result = unseal_record(path, read_json(path))
    is_of_run = isinstance(result, dict) and result.get("hash") == run
    if not is_of_run or not isinstance(result.get(str(result.get("metric"))), float):
        raise UserError(
            f"{path} is not the result of the run {run}; remove it, and the same command measures again"
        )
    fields = {name: kind for name, kind in FIELDS.items() if name in result or name in NEEDED}
    check_fields(str(path), fields, result)
    _check_values(str(path), result)
    return result


def metric_in(row: Mapping[str, Any], experiment: Experiment) -> str | None:
    """The name of the metric that a row of the curve has the `value` of.

    For a task of another file it is the first field of the task with this number; None if there is none.
    """
    if experiment.metric is not None:
        return experiment.metric
    measured = (name for name in row if name not in NOT_METRICS)
    return next((name for name in measured if row[name] == row["value"]), None)


def _check_values(where: str, result: Mapping[str, Any]) -> None:
    """Raises UserError if a value of the run's metric is out of range, in total, by group or by part."""
    name = result["metric"]
    # The range of a metric that another file defines is not known here.
    metric = BUILT_IN.get(name)
    kind = Share if metric is not None and metric.share else float
    for label, record in _measured(result):
        check_fields(f"{where}{label}", {name: kind} if name in record else {"value": kind}, record)
    for key in result:
        if key.startswith(f"{name}_"):
            check_fields(where, {key: kind}, result)
    for part in _parts(result):
        check_fields(f"{where}: parts", {"examples": FIELDS["steps"]}, part)
    for part in result.get("lengths", {}).values():
        check_fields(f"{where}: lengths", {"examples": FIELDS["steps"], "notices": list[str]}, part)


def _measured(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "", result
    yield ": best", result["best"]
    for part in _parts(result):
        yield ": parts", part
    for part in result.get("lengths", {}).values():
        yield ": lengths", part


def _parts(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for parts in result.get("parts", {}).values():
        yield from parts.values()
