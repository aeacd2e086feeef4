"""The share of right answers by what an example is like: how long its answer is, how often it carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from jarilab.core.shapes import Bool, Int, Tensor

Parts = dict[str, dict[str, dict[str, float]]]
"""{what an example is told by: {its number there: {"value": the share of right answers, "examples": of how many}}}"""


def parts_of(
    right: Bool[Tensor, " N"], by: Mapping[str, Int[Tensor, " N"]]
) -> dict[Literal["parts"], Parts]:
    """What `Task.evaluate` gives beside its metrics; nothing where there is nothing to tell.

    right: whether each answer is. by: a number of each example; where all examples have the same one, nothing is told
    by it.
    """
    found: Parts = {}
    for name, number_N in by.items():
        values = number_N.unique().tolist()
        if len(values) > 1:
            found[name] = {str(value): _share(right[number_N == value]) for value in values}
    return {"parts": found} if found else {}


def _share(right: Bool[Tensor, " N"]) -> dict[str, float]:
    return {"value": float(right.double().mean()), "examples": len(right)}
