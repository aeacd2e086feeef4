"""The matrices of a walk, the names of their rows, and the difference of the last one from the model's output."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from jarilab.attention import definition
from jarilab.attention.definition import AttentionCall
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.measure.maps import equal_tokens, row_difference

Side = Literal["queries", "keys", "parameter", "other"]

OUTPUT_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Largest difference of a walk's end from the model's output, relative to its largest number if that is above 1."""


@dataclass(frozen=True, eq=False)
class Step:
    """One matrix of a walk.

    side: what its rows stand for, so that one query or key can be followed through all steps. The rows of a parameter
    stand for no tokens. rows: the tokens or names of the rows. columns: the tokens of the columns; None for the
    components of vectors.
    """

    name: str
    formula: str
    matrix: Float[Tensor, "R C"]
    side: Side
    rows: Sequence[str]
    columns: Sequence[str] | None = None

    @property
    def equal(self) -> dict[str, float]:
        """For each pair of equal tokens among the rows, the largest difference of their rows."""
        if self.side == "parameter":
            return {}
        differences = {}
        for i, j in equal_tokens(self.rows):
            pair = f"'{visible(self.rows[i])}' at {i} and at {j}"
            differences[pair] = float(row_difference(self.matrix, i, j).max())
        return differences

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "formula": self.formula,
            "shape": list(self.matrix.shape),
            "rows_are": self.side,
            "rows": list(self.rows),
            "columns": None if self.columns is None else list(self.columns),
            "matrix": [_row_as_json(row) for row in self.matrix.tolist()],
            "equal": self.equal,
        }


def _row_as_json(row: list[float]) -> list[float | None]:
    # Hidden scores are minus infinity, which JSON cannot express.
    return [value if value > float("-inf") else None for value in row]


@dataclass(frozen=True, eq=False)
class Walk:
    """The steps of one head, and the difference of the last one from the model's output.

    encoding: the spec at this site. call: the recorded call, with all heads; for a recurrent decoder, of one step.
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
    """The tokens of the queries and keys of a site; makes the steps whose rows stand for them."""

    queries: Sequence[str]
    keys: Sequence[str]

    def of_queries(self, name: str, formula: str, matrix: Float[Tensor, "Q C"]) -> Step:
        return Step(name, formula, matrix, "queries", self.queries)

    def of_keys(self, name: str, formula: str, matrix: Float[Tensor, "K C"]) -> Step:
        return Step(name, formula, matrix, "keys", self.keys)

    def of_pairs(self, name: str, formula: str, matrix: Float[Tensor, "Q K"]) -> Step:
        return Step(name, formula, matrix, "queries", self.queries, self.keys)


def of_parameter(name: str, formula: str, matrix: Float[Tensor, "R C"]) -> Step:
    """The step of a parameter, with numbered rows."""
    rows = [str(row) for row in range(len(matrix))]
    return Step(name, formula, matrix, "parameter", rows)


def steps_to_weights(
    call: AttentionCall,
    head: int,
    product: Float[Tensor, "Q K"],
    names: Names,
    *,
    scaled: str | None = None,
    hidden: str,
    weights: str,
) -> list[Step]:
    """From the recomputed product of queries and keys to the weights, with what the encoding and the mask add.

    scaled, hidden, weights: the formulas of scaled scores (None leaves these out), of masked ones, and of the weights.
    """
    parts, steps = replace(definition.summands(call).of_head(head), product=product), []
    if parts.terms is not None:
        formula = "what the encoding adds, by content and place"
        steps.append(names.of_pairs("+ terms", formula, parts.unscaled))
    if scaled is not None:
        steps.append(names.of_pairs("scores", scaled, parts.scaled))
    if parts.bias is not None:
        formula = "what the encoding adds, by place alone"
        steps.append(names.of_pairs("+ bias", formula, parts.scores))
    allowed = call.geometry.allowed
    if allowed is not None and not bool(allowed.all()):
        masked_QK = parts.scores.masked_fill(~allowed[0, 0], float("-inf"))
        steps.append(names.of_pairs("masked", hidden, masked_QK))
    return [*steps, names.of_pairs("weights", weights, definition.weights(call)[0, head])]


def distance_to_output(site: str, matrix: Tensor, output: Tensor) -> float:
    """The largest difference of the last matrix from the output. Raises RuntimeError if it is above the tolerance."""
    error = float((matrix - output).abs().max())
    size = max(1.0, float(output.abs().max()))
    if error > OUTPUT_TOLERANCE[output.dtype] * size:
        raise RuntimeError(
            f"the walk through {site} ends {error:g} away from the model's own output"
        )
    return error


# Token names --------------------------------------------------------------------------------------------------------

# The signs of the pages, see `token` in pages/kit/static/tokens.js.
SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"}
EMPTY = "∅"
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"}
_JOINER = "\u200d"  # joins two emoji to one, and stays
_SYMBOLS = {"So", "Sk"}


def visible(token: str) -> str:
    """A token with signs for white space at its ends, control characters and broken letters: ` der` -> `␣der`."""
    return "".join(_visible_letter(token, index) for index in range(len(token))) or EMPTY


def _visible_letter(token: str, index: int) -> str:
    letter = token[index]
    is_inside = 0 < index < len(token) - 1
    if letter == " " and is_inside:
        return letter
    if unicodedata.category(letter) not in _INVISIBLE or _joins(token, index):
        return letter
    if letter in SIGNS:
        return SIGNS[letter]
    if ord(letter) < 32:
        return chr(0x2400 + ord(letter))
    return f"‹{ord(letter):X}›"


def _joins(token: str, index: int) -> bool:
    before = token[:index].removesuffix("\ufe0f")[-1:]
    after = token[index + 1 : index + 2]
    if token[index] != _JOINER or not before or not after:
        return False
    return {unicodedata.category(before), unicodedata.category(after)} <= _SYMBOLS
