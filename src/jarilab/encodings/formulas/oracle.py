"""Formulas of encodings in numpy, one pair of tokens at a time, for the laws to compare with."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Vector = np.ndarray
Number = int | float


class Cell(NamedTuple):
    """A position on two axes, in a frame of `height` rows and `width` columns."""

    row: int
    column: int
    height: int
    width: int


Position: TypeAlias = Any
"""A number on one axis, a `Cell` on two: each formula is for one of them."""


def plain_score(
    encoding: Any, q_E: Vector, k_E: Vector, i: Position, j: Position, head: int, scale: float
) -> float:
    """Vaswani et al. 2017, equation 1: q . k / sqrt(d_k)."""
    return scale * sum(float(q_E[e] * k_E[e]) for e in range(len(q_E)))


def plain_value(encoding: Any, v_E: Vector, i: Position, j: Position, head: int) -> Vector:
    """Vaswani et al. 2017, equation 1: the value itself."""
    return v_E


def plain_embed(encoding: Any, position: Position) -> Vector:
    """Zeros: nothing is added to the input."""
    return np.zeros(encoding.site.d_model)


@dataclass(frozen=True)
class Oracle:
    """The formula of an encoding, for one query and one key, in float64 numpy.

    score(encoding, q_E, k_E, i, j, head, scale): the scaled score of the query at position i with the key at j, of
        vectors before any rotation; `scale * q_E @ k_E` by default.
    value(encoding, v_E, i, j, head): the value of the key at j for the query at i, before its weight; v_E by default.
    embed(encoding, position): the vector of width D that is added to the input; zeros by default.
    scores(encoding, q_QE, k_KE, x_KD, q_at, k_at, allowed_QK, head, scale): all scaled scores of a head, `(Q, K)`. It
        replaces `score` if a score depends on other keys or on the inputs of keys. Scores of pairs that are not allowed
        are not used.

    A position is a number on one axis, a Cell on two. The encoding is in float64: read its parameters as
    `encoding.table.detach().numpy()`.
    """

    score: Callable[[Any, Vector, Vector, Position, Position, int, float], float] = plain_score
    value: Callable[[Any, Vector, Position, Position, int], Vector] = plain_value
    embed: Callable[[Any, Position], Vector] = plain_embed
    scores: Callable[..., Vector] | None = None


class ScoreInputs(NamedTuple):
    """The arguments of `Oracle.scores`, in order.

    q, k, x: queries `(Q, E)`, keys `(K, E)` and inputs of keys `(K, D)`. q_at, k_at: their positions. allowed: which
    query may see which key, `(Q, K)`.
    """

    encoding: Any
    q: Vector
    k: Vector
    x: Vector
    q_at: Sequence[Position]
    k_at: Sequence[Position]
    allowed: Vector
    head: int
    scale: float


def pair_by_pair(score: Callable[[ScoreInputs, int, int], float]) -> Callable[..., Vector]:
    """An `Oracle.scores` that computes one allowed pair at a time.

    score(inputs, query, key): the scaled score of a query and a key, by their indices.
    """

    def scores(*arguments: Any) -> Vector:
        inputs = ScoreInputs(*arguments)
        scores_QK = np.zeros(inputs.allowed.shape)
        for query, key in np.argwhere(inputs.allowed).tolist():
            scores_QK[query, key] = score(inputs, query, key)
        return scores_QK

    return scores


@cache
def package_oracles() -> dict[str, Oracle]:
    """The oracles of the package's encodings, by name: the `ORACLES` of the modules in this folder.

    They are slow, share no code with the encodings, and are imported for the laws and tests only.
    """
    oracles: dict[str, Oracle] = {}
    package = importlib.import_module("jarilab.encodings.formulas")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "oracle":
            oracles |= importlib.import_module(f"{package.__name__}.{module.name}").ORACLES
    return oracles


def sum_of(oracles: Sequence[Oracle]) -> Oracle:
    """The oracle of a sum of encodings: the sum of what its parts add. At most one part may rotate."""

    def score(
        encoding: Any, q_E: Vector, k_E: Vector, i: Position, j: Position, head: int, scale: float
    ) -> float:
        plain, added = plain_score(encoding, q_E, k_E, i, j, head, scale), 0.0
        for oracle, part in zip(oracles, encoding.parts, strict=True):
            added += oracle.score(part, q_E, k_E, i, j, head, scale) - plain
        return plain + added

    def value(encoding: Any, v_E: Vector, i: Position, j: Position, head: int) -> Vector:
        added_E = np.zeros_like(v_E)
        for oracle, part in zip(oracles, encoding.parts, strict=True):
            added_E += oracle.value(part, v_E, i, j, head) - v_E
        return v_E + added_E

    def embed(encoding: Any, position: Position) -> Vector:
        total_D = plain_embed(encoding, position)
        for oracle, part in zip(oracles, encoding.parts, strict=True):
            total_D += oracle.embed(part, position)
        return total_D

    return Oracle(score, value, embed)


# Shared by the formulas -----------------------------------------------------------------------------------------------


def array(x: Any) -> Vector:
    """A tensor or an array, in float64."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().double().numpy()
    return np.array(x, dtype=np.float64)


def product(q_E: Any, k_E: Any, scale: float) -> float:
    """Vaswani et al. 2017, equation 1: q . k / sqrt(d_k)."""
    return plain_score(None, array(q_E), array(k_E), None, None, 0, scale)


def score_plus(bias: Callable[[Any, Position, Position, int], float]) -> Callable[..., float]:
    """A score: the product, plus a number that is not scaled. bias(encoding, i, j, head): that number."""

    def score(
        encoding: Any, q_E: Any, k_E: Any, i: Position, j: Position, head: int, scale: float
    ) -> float:
        return product(q_E, k_E, scale) + bias(encoding, i, j, head)

    return score


def score_rotated(rotate: Callable[[Any, Any, Position, int], Vector]) -> Callable[..., float]:
    """Su et al. 2021, equation 16: (R_m q) . (R_n k). rotate(encoding, x_E, position, head): the rotated vector."""

    def score(
        encoding: Any, q_E: Any, k_E: Any, i: Position, j: Position, head: int, scale: float
    ) -> float:
        return product(rotate(encoding, q_E, i, head), rotate(encoding, k_E, j, head), scale)

    return score


def rotate_pair(x_E: Vector, real: int, imaginary: int, angle: float) -> tuple[float, float]:
    """Two components, as one complex number, times exp(1j angle)."""
    z = complex(x_E[real], x_E[imaginary])
    z *= complex(math.cos(angle), math.sin(angle))
    return z.real, z.imag


def pair(encoding: Any, t: int, rotated: int) -> tuple[int, int]:
    """The two components of pair t, of `rotated` ones."""
    return (t, t + rotated // 2) if encoding.pairing == "half" else (2 * t, 2 * t + 1)
