"""outcomes.json of a run: the outcome of each held-out example, from which comparisons pair examples."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from jarilab.core.errors import UserError
from jarilab.core.options import check_fields
from jarilab.core.storage.files import read_json, seal_record, unseal_record, write_json

FILE = "outcomes.json"
TRAINED = "trained"
"""The key of outcomes at the trained length; others are at lengths, `512`."""
MAX_EXAMPLES = 100_000_000
MAX_OUTCOME = float(np.finfo(np.float16).max)
FIELDS = {"hash": str, "outcomes": dict[str, dict[str, Any]]}
OUTCOME_FIELDS: dict[str, Any] = {
    "examples": Annotated[int, Ge(1), Le(MAX_EXAMPLES)],
    "type": Literal["bits", "float16"],
    "data": str,
}
Outcomes = dict[str, np.ndarray]
"""Values of all held-out examples `(N,)` by length; their mean is the metric."""


def write_outcomes(folder: Path, run: str, outcomes: Mapping[str, np.ndarray]) -> None:
    """Write outcomes.json atomically: 0 and 1 as bits, other numbers in half precision. run: its hash."""
    # The losses of a diverged run may exceed half precision, or be NaN.
    storable = {
        length: values_N
        for length, values_N in outcomes.items()
        if np.abs(values_N).max() <= MAX_OUTCOME
    }
    packed = {length: _pack(values_N) for length, values_N in storable.items()}
    write_json(folder / FILE, seal_record({"hash": run, "outcomes": packed}))


def read_outcomes(folder: Path, run: str) -> Outcomes:
    """The outcomes of a run by length; empty for a run without the file. run: its hash.

    Raises UserError if the file is damaged or of another run.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    record = unseal_record(path, read_json(path))
    check_fields(str(path), FIELDS, record)
    if record["hash"] != run:
        raise UserError(
            f"{path}: expected outcomes of the run {run}, got those of another; remove it"
        )
    return {length: _unpack(path, entry) for length, entry in record["outcomes"].items()}


def _pack(values_N: np.ndarray) -> dict[str, Any]:
    are_bits = bool(np.isin(values_N, (0, 1)).all())
    stored = np.packbits(values_N.astype(bool)) if are_bits else values_N.astype("<f2")
    text = base64.b64encode(stored.tobytes()).decode("ascii")
    return {"examples": len(values_N), "type": "bits" if are_bits else "float16", "data": text}


def _unpack(path: Path, entry: Mapping[str, Any]) -> np.ndarray:
    check_fields(f"{path}: outcomes", OUTCOME_FIELDS, entry)
    examples, are_bits = entry["examples"], entry["type"] == "bits"
    size = (examples + 7) // 8 if are_bits else 2 * examples
    try:
        data = base64.b64decode(entry["data"], validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != size:
        raise UserError(
            f"{path}: expected {size:,} bytes of {examples:,} outcomes, got {len(data):,}; remove the file, and pairs "
            "are compared without it"
        )
    if are_bits:
        return np.unpackbits(np.frombuffer(data, np.uint8), count=examples).astype(np.float32)
    values_N = np.frombuffer(data, "<f2").astype(np.float32)
    if not np.isfinite(values_N).all():
        raise UserError(f"{path}: expected finite outcomes, got NaN or infinity; remove the file")
    return values_N
