"""What an encoding does, once more as its paper's formula, for the laws to compare with: in numpy alone."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Vector = np.ndarray


class Cell(NamedTuple):
    """A position on two axes, in a frame of `height` rows and `width` columns."""

    row: int
    column: int
    height: int
    width: int


Place: TypeAlias = Any  # a number where there is one axis, a Cell where there are two: a formula knows which it is for


def plain_score(
    encoding: Any, q_E: Vector, k_E: Vector, i: Place, j: Place, head: int, scale: float
) -> float:
    """Vaswani et al. 2017, equation 1: q . k / sqrt(d_k)."""
    return scale * sum(float(q_E[e] * k_E[e]) for e in range(len(q_E)))


def plain_value(encoding: Any, v_E: Vector, i: Place, j: Place, head: int) -> Vector:
    """Vaswani et al. 2017, equation 1: the value itself."""
    return v_E


def plain_embed(encoding: Any, position: Place) -> Vector:
    """Nothing is added to the input."""
    return np.zeros(encoding.site.width)


@dataclass(frozen=True)
class Oracle:
    """The formula of an encoding, for one query and one key, in float64 numpy.

    score(encoding, q_E, k_E, i, j, head, scale): the scaled score of the query at position i with the key at j, from
        the vectors as they are before any rotation; `scale * q_E @ k_E` by default.
    value(encoding, v_E, i, j, head): what the query at i takes from the key at j, before the weight; v_E by default.
    embed(encoding, position): what is added to the input, of width D; nothing by default.
    scores(encoding, q_QE, k_KE, x_KD, q_at, k_at, allowed_QK, head, scale): all scaled scores of a head at once,
        `(Q, K)`, for a formula in which a score depends on other keys than its own, or on what keys are made of; in
        place of `score`. What is not allowed is never read.

    A position is a number, or a Cell where there are two axes.
    Parameters are read from the encoding: `encoding.table.detach().numpy()`. It is in float64.
    """

    score: Callable[[Any, Vector, Vector, Place, Place, int, float], float] = plain_score
    value: Callable[[Any, Vector, Place, Place, int], Vector] = plain_value
    embed: Callable[[Any, Place], Vector] = plain_embed
    scores: Callable[..., Vector] | None = None


class ScoreInputs(NamedTuple):
    """What all scores of a head are made of, in the order in which `Oracle.scores` is given it.

    q, k, x: of shapes `(Q, E)`, `(K, E)`, `(K, D)`. q_at, k_at: positions. allowed: which query may look at which key,
    `(Q, K)`.
    """

    encoding: Any
    q: Vector
    k: Vector
    x: Vector
    q_at: Sequence[Place]
    k_at: Sequence[Place]
    allowed: Vector
    head: int
    scale: float


def pair_by_pair(score: Callable[[ScoreInputs, int, int], float]) -> Callable[..., Vector]:
    """An `Oracle.scores` that asks for one score after the other, of each query with each key that it may look at.

    score(inputs, query, key): the scaled score of the query and the key with these numbers, counted from 0.
    """

    def scores(*given: Any) -> Vector:
        inputs = ScoreInputs(*given)
        found_QK = np.zeros(inputs.allowed.shape)
        for query, key in np.argwhere(inputs.allowed).tolist():
            found_QK[query, key] = score(inputs, query, key)
        return found_QK

    return scores


@cache
def formulas() -> dict[str, Oracle]:
    """The formula of each encoding of the package, by the encoding's name: `ORACLES` of the modules beside this one.

    They are slow on purpose and share no code with the encodings."""
    oracles: dict[str, Oracle] = {}
    package = importlib.import_module("jarilab.encodings.formulas")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "oracle":
            oracles |= importlib.import_module(f"jarilab.encodings.formulas.{module.name}").ORACLES
    return oracles


def sum_of(oracles: Sequence[Oracle]) -> Oracle:
    """The formula of a sum of encodings, given its parts': what each adds is added. At most one of them may rotate,
    since two rotations are no sum."""

    def score(
        encoding: Any, q_E: Vector, k_E: Vector, i: Place, j: Place, head: int, scale: float
    ) -> float:
        plain, added = plain_score(encoding, q_E, k_E, i, j, head, scale), 0.0
        for oracle, part in zip(oracles, encoding.parts, strict=True):
            added += oracle.score(part, q_E, k_E, i, j, head, scale) - plain
        return plain + added

    def value(encoding: Any, v_E: Vector, i: Place, j: Place, head: int) -> Vector:
        added_E = np.zeros_like(v_E)
        for oracle, part in zip(oracles, encoding.parts, strict=True):
            added_E += oracle.value(part, v_E, i, j, head) - v_E
        return v_E + added_E

    def embed(encoding: Any, position: Place) -> Vector:
        total_D = plain_embed(encoding, position)
        for oracle, part in zip(oracles, encoding.parts, strict=True):
            total_D += oracle.embed(part, position)
        return total_D

    return Oracle(score, value, embed)
