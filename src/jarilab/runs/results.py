"""result.json of a run, of which every field is checked before it is compared or drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from jarilab.core.errors import UserError
from jarilab.core.options import check_fields
from jarilab.core.storage.files import read_json, unseal_record
from jarilab.tasks.metrics import METRICS

Count = Annotated[int, Ge(0), Le(2**63)]
Amount = Annotated[float, Ge(0), Le(1e18)]
Number = Annotated[float, Ge(-1e18), Le(1e18)]
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
    "curve_rows": Count,
}
"""What the fields of a result are, where they are there."""
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
    """result.json of the run with this hash. Raises UserError if it is anything else."""
    path = folder / "result.json"
    result = unseal_record(path, read_json(path))
    ours = isinstance(result, dict) and result.get("hash") == run
    if not ours or not isinstance(result.get(str(result.get("metric"))), float):
        raise UserError(
            f"{path} is not the result of the run {run}; remove it, and the same command measures again"
        )
    fields = {name: kind for name, kind in FIELDS.items() if name in result or name in NEEDED}
    check_fields(str(path), fields, result)
    _check_values(str(path), result)
    return result


def _check_values(where: str, result: Mapping[str, Any]) -> None:
    """What was measured, in the metric that the run is judged by, of all, of groups and of parts."""
    name = result["metric"]
    known = METRICS.get(name)  # one of a task of one's own is not known here
    kind = Share if known is not None and known.share else Number
    for label, record in _measured(result):
        check_fields(f"{where}{label}", {name: kind} if name in record else {"value": kind}, record)
    for key in result:
        if key.startswith(f"{name}_"):
            check_fields(where, {key: kind}, result)
    for one in _parts(result):
        check_fields(f"{where}: parts", {"examples": FIELDS["steps"]}, one)


def _measured(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "", result
    yield ": best", result["best"]
    for one in _parts(result):
        yield ": parts", one


def _parts(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for parts in result.get("parts", {}).values():
        yield from parts.values()
