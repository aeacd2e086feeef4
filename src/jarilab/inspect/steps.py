"""One matrix on the way through an attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jarilab.inspect.measures import equal_tokens, row_difference
from jarilab.shapes import Float, Tensor

Side = Literal["queries", "keys", "parameter", "other"]


@dataclass(frozen=True, eq=False)
class Step:
    """One matrix on the way. side: what its rows are, so that one query or one key can be followed through all steps;
    a parameter is the model's own, and its rows stand for no tokens. rows: the tokens they stand for, or their names.
    columns: the tokens they stand for, keys as a rule; None for the components of vectors.
    equal: for each pair of equal tokens among the rows, the largest difference of their rows."""

    name: str
    formula: str
    matrix: Float[Tensor, "R C"]
    side: Side
    rows: Sequence[str]
    columns: Sequence[str] | None = None

    @property
    def equal(self) -> dict[str, float]:
        if self.side == "parameter":
            return {}
        return {
            f"{self.rows[i]!r} at {i} and at {j}": float(row_difference(self.matrix, i, j).max())
            for i, j in equal_tokens(self.rows)
        }

    def as_dict(self) -> dict[str, Any]:
        # A hidden score is minus infinity, which JSON does not have: null.
        rows = [
            [value if value > float("-inf") else None for value in row]
            for row in self.matrix.tolist()
        ]
        record = {"name": self.name, "formula": self.formula, "shape": list(self.matrix.shape)}
        names = {
            "rows": list(self.rows),
            "columns": None if self.columns is None else list(self.columns),
        }
        return {**record, "rows_are": self.side, **names, "matrix": rows, "equal": self.equal}
