"""The share of right answers by a property of the example, such as the length of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from jarilab.core.shapes import Bool, Int, Tensor

Parts = dict[str, dict[str, dict[str, float]]]
"""{property: {its value: {"value": share of right answers, "examples": their number}}}"""


def parts_of(
    right: Bool[Tensor, " N"], by: Mapping[str, Int[Tensor, " N"]]
) -> dict[Literal["parts"], Parts]:
    """Return the `parts` of `Task.evaluate`; nothing if no property varies.

    right: whether each answer is right. by: a number for each example and property.
    """
    found: Parts = {}
    for name, number_N in by.items():
        values = number_N.unique().tolist()
        if len(values) > 1:
            found[name] = {str(value): _share(right[number_N == value]) for value in values}
    return {"parts": found} if found else {}


def _share(right: Bool[Tensor, " N"]) -> dict[str, float]:
    return {"value": float(right.double().mean()), "examples": len(right)}
