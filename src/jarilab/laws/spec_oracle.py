"""An encoding's formula, applied by a double loop in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jarilab.encodings.base import Site, hooks_of, registry
from jarilab.encodings.compose import build, split_sum
from jarilab.encodings.formulas.oracle import (
    Oracle,
    Position,
    ScoreInputs,
    Vector,
    package_oracles,
    pair_by_pair,
    sum_of,
)
from jarilab.laws.fixtures import HEAD_WIDTH, VALUE_WIDTH


def double_loop(
    oracle: Oracle,
    encoding: Any,
    q: Vector,
    k: Vector,
    v: Vector,
    x: Vector,
    q_at: list[Position],
    k_at: list[Position],
    *,
    scale: float,
    allowed_QK: Vector,
) -> Vector:
    """Softmax and weighted sum for one query and key after the other: `(B, H, Q, E')`.

    x: what the keys are made of, `(B, K, D)`. q_at, k_at: positions. allowed_QK: which query sees which key.
    """
    output = np.zeros((*q.shape[:3], v.shape[3]))
    scores = scores_of(oracle)
    for b, h in np.ndindex(*q.shape[:2]):
        scores_QK = scores(encoding, q[b, h], k[b, h], x[b], q_at, k_at, allowed_QK, h, scale)
        for query, i in enumerate(q_at):
            visible = np.flatnonzero(allowed_QK[query])
            scores_K = scores_QK[query, visible]
            weights_K = np.exp(scores_K - scores_K.max())
            weights_K /= weights_K.sum()
            for weight, key in zip(weights_K, visible, strict=True):
                value_E = oracle.value(encoding, v[b, h, key], i, k_at[key], h)
                output[b, h, query] += weight * value_E
    return output


def scores_of(oracle: Oracle) -> Callable[..., Vector]:
    """A function for all scores of a head: the formula's own, or one that computes pair by pair."""
    if oracle.scores is not None:
        return oracle.scores

    def score(inputs: ScoreInputs, query: int, key: int) -> float:
        q_E, k_E = inputs.q[query], inputs.k[key]
        i, j = inputs.q_at[query], inputs.k_at[key]
        return oracle.score(inputs.encoding, q_E, k_E, i, j, inputs.head, inputs.scale)

    return pair_by_pair(score)


def formula_of(spec: str) -> Oracle | None:
    """The encoding's own oracle, or the paper's formula for an encoding of the package.

    None if a part has neither, and if the parts do not simply add up: two rotate, or one rotates the queries that
    another's terms use.
    """
    specs = [registry.spec(part) for part in split_sum(spec)]
    oracles = []
    for part in specs:
        oracle = getattr(part.target, "oracle", None) or package_oracles().get(part.name)
        if oracle is None:
            return None
        oracles.append(oracle)
    if len(oracles) == 1:
        return oracles[0]
    if any(oracle.scores is not None for oracle in oracles):
        return None
    rotating = sum("rotate" in hooks_of(part.target) for part in specs)
    hooks = build(spec, Site(HEAD_WIDTH, 1, HEAD_WIDTH, VALUE_WIDTH, causal=True)).hooks
    return None if rotating > 1 or {"rotate", "terms"} <= hooks else sum_of(oracles)
