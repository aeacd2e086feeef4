"""The softmax of one's own numbers, and its derivative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jarilab.core.errors import UserError
from jarilab.core.shapes import Float, Tensor
from jarilab.inspect.explain.softmax_lens import softmax_jacobian

MOST_NUMBERS = 256

Number = int | float


@dataclass(frozen=True, eq=False)
class Softmax:
    """What the softmax makes of K numbers. scores: the numbers, divided by the square root of `divided` where that is
    given; name: how they are written."""

    name: str
    scores: Float[Tensor, " K"]
    divided: Number | None = None

    @property
    def weights(self) -> Float[Tensor, " K"]:
        return self.scores.softmax(-1)

    @property
    def jacobian(self) -> Float[Tensor, "K K"]:
        """The derivative of each weight by each score."""
        return softmax_jacobian(self.weights)

    @property
    def trace(self) -> float:
        """Of the derivative: 1 - sum p^2."""
        return float(self.jacobian.trace())

    @property
    def entropy(self) -> float:
        """In nats."""
        weights_K = self.weights
        return -float(torch.special.xlogy(weights_K, weights_K).sum())

    @property
    def most(self) -> float:
        """The largest entropy there can be: log K."""
        return math.log(len(self.scores))

    def as_dict(self) -> dict[str, Any]:
        return {
            "scores": self.scores.tolist(),
            "divided_by_root_of": self.divided,
            "weights": self.weights.tolist(),
            "derivative": self.jacobian.tolist(),
            "trace": self.trace,
            "entropy": self.entropy,
            "largest_entropy": self.most,
        }


def softmax_of(rows: Sequence[Sequence[Number]], divide: Sequence[Number] = ()) -> list[Softmax]:
    """Of each row of numbers; and after it, of the row divided by the square root of each of `divide`, in float64.

    Raises UserError for a row without two finite numbers, or a divisor that is not above 0.
    """
    if not rows:
        raise UserError("no numbers to take the softmax of; give such as 0.3,0.4,0.1")
    for number in divide:
        if not 0 < number < math.inf:
            raise UserError(
                f"numbers can be divided by the root of a number above 0, got {number:g}; give such as 64"
            )
    found = []
    for row in rows:
        _check(row)
        name = ", ".join(f"{number:g}" for number in row)
        scores_K = torch.tensor(row, dtype=torch.float64)
        found.append(Softmax(name, scores_K))
        for number in divide:
            divided = Softmax(f"({name}) / √{number:g}", scores_K / math.sqrt(number), number)
            found.append(divided)
    return found


def _check(row: Sequence[Number]) -> None:
    if not 2 <= len(row) <= MOST_NUMBERS or not all(map(math.isfinite, row)):
        raise UserError(
            f"expected 2 to {MOST_NUMBERS} finite numbers in a row, got {', '.join(map(str, row)) or 'nothing'}; "
            "give such as 0.3,0.4,0.1"
        )
