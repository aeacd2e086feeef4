"""Circuits as matrices over named coordinates of the residual stream, before they are put into a model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray
Factors = tuple[Array, Array]
"""Two matrices `(N, R)` whose product over R is a score of query and key, or `(N, R)` and `(R, N)` of a write."""


@dataclass(frozen=True)
class HeadDesign:
    """An attention head over N coordinates.

    query, key: `(N, R)`; the score of two vectors is the dot product of their images. offset: attend to the key that
    is this many tokens before the query, with this strength, in a model whose positions are rotations. value, output:
    `(N, R)` and `(R, N)`.
    """

    name: str
    query: Array
    key: Array
    value: Array
    output: Array
    offset: tuple[int, float] | None = None


@dataclass(frozen=True)
class MlpDesign:
    """relu(x up) down, of `(N, F)` and `(F, N)`."""

    up: Array
    down: Array


class Stream:
    """Named coordinates: T token, P position, C constant 1, S start token, O output, and what `extra` names.

    vocabulary: tokens without the start token, whose id is the last. length: tokens of a row, start included.
    rotary: whether positions are rotations of queries and keys, so that P is empty.
    """

    def __init__(self, vocabulary: int, length: int, *, rotary: bool = False, **extra: int):
        self.vocabulary, self.length, self.rotary = vocabulary, length, rotary
        sizes = {"T": vocabulary, "P": 0 if rotary else length, "C": 1, "S": 1, "O": vocabulary, **extra}
        self._slices: dict[str, slice] = {}
        first = 0
        for name, size in sizes.items():
            self._slices[name] = slice(first, first + size)
            first += size
        self.size = first

    def __getitem__(self, name: str) -> slice:
        return self._slices[name]

    # Factors --------------------------------------------------------------------------------------------------------

    def link(self, source: str, target: str, matrix: Array) -> Factors:
        """The bilinear form source . matrix . target, as factors of its rank."""
        left, right = np.zeros((self.size, matrix.shape[1])), np.zeros((self.size, matrix.shape[1]))
        left[self[source]] = matrix
        right[self[target]] = np.eye(matrix.shape[1])
        return left, right

    def match(self, source: str, target: str, strength: float) -> Factors:
        """Score `strength` where the query's `source` equals the key's `target`."""
        return self.link(source, target, strength * np.eye(self[source].stop - self[source].start))

    def rest(self, strength: float, query: str = "C") -> Factors:
        """A score of the start token, for each unit of the query's coordinates."""
        size = self[query].stop - self[query].start
        return self.link(query, "S", np.full((size, 1), strength))

    def copy(self, source: str, target: str, factor: float = 1.0) -> Factors:
        """Write `source` of the keys to `target`."""
        value, output = self.match(source, target, factor)
        return value, output.T

    def write(self, source: Array, target: Array) -> Factors:
        """Write one coordinate vector `(N,)` times the dot product with another."""
        return source[:, None], target[None]

    def unit(self, name: str, index: int = 0) -> Array:
        vector = np.zeros(self.size)
        vector[self[name].start + index] = 1.0
        return vector

    # Heads ----------------------------------------------------------------------------------------------------------

    def head(self, name: str, scores: list[Factors], writes: list[Factors]) -> HeadDesign:
        """A head that attends by content and learned positions."""
        none = np.zeros((self.size, 0))
        query = np.concatenate([none, *(q for q, _ in scores)], 1)
        key = np.concatenate([none, *(k for _, k in scores)], 1)
        value = np.concatenate([none, *(v for v, _ in writes)], 1)
        output = np.concatenate([none.T, *(o for _, o in writes)], 0)
        return HeadDesign(name, query, key, value, output)

    def at_offset(
        self, name: str, back: int, beta: float, writes: list[Factors], scores: list[Factors] | None = None
    ) -> HeadDesign:
        """A head that attends `back` tokens before the query, and rests at the start token if there is none."""
        scores = list(scores or [])
        if self.rotary:
            # The start token is then the nearest key to the missing one.
            head = self.head(name, scores, writes)
            return HeadDesign(name, head.query, head.key, head.value, head.output, (back, ROTARY_STRENGTH * beta))
        shifted = self.link("P", "P", beta * np.eye(self.length, k=-back))
        return self.head(name, [shifted, self.rest(beta / 2), *scores], writes)

    def offset_score(self, beta: float) -> float:
        """The score of the key at the offset, by `at_offset`."""
        return FAST_PAIRS * ROTARY_STRENGTH * beta if self.rotary else beta

    def noise_head(
        self, generator: np.random.Generator, width: int, scale: float, sharpness: float = 1.0
    ) -> HeadDesign:
        """Random weights of standard deviation `scale`; `sharpness` multiplies those of queries and keys."""

        def draw(*shape: int) -> Array:
            return scale * generator.standard_normal(shape)

        size = (self.size, width)
        return HeadDesign("noise", sharpness * draw(*size), sharpness * draw(*size), draw(*size), draw(*size[::-1]))


FAST_PAIRS, STATIC_PAIR = 6, 12
"""Rotary pairs that find an offset, and the first pair that is so slow that content can use it."""
RATIO = 0.46
"""Of the frequencies of consecutive pairs: the pair STATIC_PAIR turns by 1e-4 rad a token."""
ROTARY_STRENGTH = 2.0
"""Strength of each fast pair, for each unit of beta: the margin over the next token is then 1.2 beta."""


@dataclass(frozen=True)
class Layer:
    """The heads of one attention layer without noise heads, and its feed-forward network."""

    heads: list[HeadDesign] = field(default_factory=list)
    mlp: MlpDesign | None = None


@dataclass(frozen=True)
class Circuit:
    """Layers over a stream.

    temperature: logit of an answer for each unit of O. positions: `(L, P)`, if not one-hot. facts: that were drawn.
    """

    stream: Stream
    layers: list[Layer]
    temperature: float = 10.0
    positions: Array | None = None
    facts: dict[str, int] = field(default_factory=dict)

    def token_vectors(self) -> Array:
        """`(V + 1, N)`, the start token last."""
        stream = self.stream
        vectors = np.zeros((stream.vocabulary + 1, stream.size))
        vectors[:-1, stream["T"]] = np.eye(stream.vocabulary)
        vectors[:, stream["C"]] = 1.0
        vectors[-1, stream["S"]] = 1.0
        return vectors

    def position_vectors(self) -> Array:
        """`(L, N)`."""
        vectors = np.zeros((self.stream.length, self.stream.size))
        if not self.stream.rotary:
            vectors[:, self.stream["P"]] = np.eye(self.stream.length) if self.positions is None else self.positions
        return vectors

    def read_out(self) -> Array:
        """`(N, V + 1)`."""
        weights = np.zeros((self.stream.size, self.stream.vocabulary + 1))
        weights[self.stream["O"], :-1] = self.temperature * np.eye(self.stream.vocabulary)
        return weights
