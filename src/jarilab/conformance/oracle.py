"""The double loop that applies an encoding's formula: in numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from jarilab.encodings.oracle import Oracle, Place, Vector


def double_loop(
    oracle: Oracle,
    encoding: Any,
    q: Vector,
    k: Vector,
    v: Vector,
    q_at: list[Place],
    k_at: list[Place],
    *,
    scale: float,
    causal: bool,
) -> Vector:
    """Softmax of the scores and weighted sum of the values, one query and one key after the other: `(B, H, Q, E')`.

    q_at, k_at: positions. causal: no query sees a key at a later position; of cells, one in a later row, or further on
    in its own.
    """
    output = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h, query in np.ndindex(*q.shape[:3]):
        i, q_E = q_at[query], q[b, h, query]
        allowed = [(key, j) for key, j in enumerate(k_at) if j <= i or not causal]
        scores_K = np.array(
            [oracle.score(encoding, q_E, k[b, h, key], i, j, h, scale) for key, j in allowed]
        )
        weights_K = np.exp(scores_K - scores_K.max())
        weights_K /= weights_K.sum()
        for weight, (key, j) in zip(weights_K, allowed, strict=True):
            output[b, h, query] += weight * oracle.value(encoding, v[b, h, key], i, j, h)
    return output
