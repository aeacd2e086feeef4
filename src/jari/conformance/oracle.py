"""The formula of an encoding, and the double loop that applies it: numpy alone, nothing of the package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Vector = np.ndarray


@dataclass(frozen=True)
class Oracle:
    """The formula of an encoding, for one query and one key, in float64 numpy.

    score(encoding, q_E, k_E, i, j, head, scale): the scaled score of the query at position i with the key at j, from
        the vectors as they are before any rotation; `scale * q_E @ k_E` by default.
    value(encoding, v_E, i, j, head): what the query at i takes from the key at j, before the weight; v_E by default.
    embed(encoding, position): what is added to the input, of width D; nothing by default.

    Parameters are read from the encoding: `encoding.table.detach().numpy()`. It is in float64.
    """

    score: Callable[[Any, Vector, Vector, int, int, int, float], float] | None = None
    value: Callable[[Any, Vector, int, int, int], Vector] | None = None
    embed: Callable[[Any, int], Vector] | None = None


def double_loop(
    oracle: Oracle,
    encoding: Any,
    q: Vector,
    k: Vector,
    v: Vector,
    q_at: list[int],
    k_at: list[int],
    *,
    scale: float,
    causal: bool,
) -> Vector:
    """Softmax of the scores and weighted sum of the values, one query and one key after the other: `(B, H, Q, E')`.

    q_at, k_at: positions. causal: no query sees a key at a later position.
    """
    score = oracle.score or (lambda encoding, q_E, k_E, i, j, head, scale: scale * float(q_E @ k_E))
    value = oracle.value or (lambda encoding, v_E, i, j, head: v_E)
    output = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h, query in np.ndindex(*q.shape[:3]):
        i = q_at[query]
        seen = [(key, j) for key, j in enumerate(k_at) if j <= i or not causal]
        scores = np.array([score(encoding, q[b, h, query], k[b, h, key], i, j, h, scale) for key, j in seen])
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        output[b, h, query] = sum(
            w * value(encoding, v[b, h, key], i, j, h) for w, (key, j) in zip(weights, seen, strict=True)
        )
    return output
