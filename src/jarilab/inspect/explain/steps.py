"""The matrices on the way through an attention, and whether the last of them is the model's own output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall, Summands
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.explain.visible import visible
from jarilab.inspect.measure.measures import equal_tokens, row_difference

Side = Literal["queries", "keys", "parameter", "other"]

ARRIVES = {torch.float64: 1e-10, torch.float32: 1e-4}
"""How far a walk may end from the model's own output, relative to its largest number where that is above 1."""


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
        found = {}
        for i, j in equal_tokens(self.rows):
            pair = f"'{visible(self.rows[i])}' at {i} and at {j}"
            difference = row_difference(self.matrix, i, j)
            found[pair] = float(difference.max())
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "formula": self.formula,
            "shape": list(self.matrix.shape),
            "rows_are": self.side,
            "rows": list(self.rows),
            "columns": None if self.columns is None else list(self.columns),
            "matrix": [_in_json(row) for row in self.matrix.tolist()],
            "equal": self.equal,
        }


def _in_json(row: list[float]) -> list[float | None]:
    """A hidden score is minus infinity, which JSON does not have: null."""
    return [value if value > float("-inf") else None for value in row]


@dataclass(frozen=True, eq=False)
class Walk:
    """The steps of one head, and how far the last is from the model's own output.

    encoding: the spec at this site. call: what was recorded, of all heads; of a recurrent decoder, the one step's.
    """

    encoding: str
    site: str
    head: int
    steps: list[Step]
    error: float
    call: AttentionCall

    def as_dict(self) -> dict[str, Any]:
        return {
            "encoding": self.encoding,
            "site": self.site,
            "head": self.head,
            "error": self.error,
            "steps": [step.as_dict() for step in self.steps],
        }


@dataclass(frozen=True, eq=False)
class Names:
    """The tokens that the queries and the keys of a site are, and steps whose rows stand for them."""

    queries: Sequence[str]
    keys: Sequence[str]

    def of_queries(self, name: str, formula: str, matrix: Float[Tensor, "Q C"]) -> Step:
        return Step(name, formula, matrix, "queries", self.queries)

    def of_keys(self, name: str, formula: str, matrix: Float[Tensor, "K C"]) -> Step:
        return Step(name, formula, matrix, "keys", self.keys)

    def of_pairs(self, name: str, formula: str, matrix: Float[Tensor, "Q K"]) -> Step:
        return Step(name, formula, matrix, "queries", self.queries, self.keys)


def of_parameter(name: str, formula: str, matrix: Float[Tensor, "R C"]) -> Step:
    """A matrix of the model's own, whose rows are numbered."""
    rows = [str(row) for row in range(len(matrix))]
    return Step(name, formula, matrix, "parameter", rows)


def step_of_terms(parts: Summands, names: Names) -> list[Step]:
    """What the encoding adds to q.k; no step where it adds nothing."""
    if parts.terms is None:
        return []
    formula = "what the encoding adds, by content and place"
    return [names.of_pairs("+ terms", formula, parts.unscaled)]


def step_of_bias(parts: Summands, names: Names) -> list[Step]:
    """What the encoding adds to the scores; no step where it adds nothing."""
    if parts.bias is None:
        return []
    return [names.of_pairs("+ bias", "what the encoding adds, by place alone", parts.scores)]


def step_of_mask(parts: Summands, call: AttentionCall, names: Names, formula: str) -> list[Step]:
    """The scores without those of hidden keys; no step where nothing is hidden."""
    allowed = call.geometry.allowed
    if allowed is None or bool(allowed.all()):
        return []
    masked_QK = parts.scores.masked_fill(~allowed[0, 0], float("-inf"))
    return [names.of_pairs("masked", formula, masked_QK)]


def step_of_weights(call: AttentionCall, head: int, names: Names, formula: str) -> Step:
    """The weights, by the definition."""
    weights_QK = definition.weights(call)[0, head]
    return names.of_pairs("weights", formula, weights_QK)


def distance_to_output(site: str, matrix: Tensor, output: Tensor) -> float:
    """How far the last matrix is from the model's own output. Raises RuntimeError where it is another."""
    error = float((matrix - output).abs().max())
    size = max(1.0, float(output.abs().max()))
    if error > ARRIVES[output.dtype] * size:
        raise RuntimeError(
            f"the walk through {site} ends {error:g} away from the model's own output"
        )
    return error
