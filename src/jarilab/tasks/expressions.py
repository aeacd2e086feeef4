"""All expressions of `arithmetic` as arrays: their numbers, and their characters as tokens."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from jarilab.text import END, PADDING, CharacterVocabulary

Answers = Literal["plain", "reversed", "padded"]

Array: TypeAlias = np.ndarray

VOCABULARY = CharacterVocabulary("0123456789+-")
ZERO, PLUS, MINUS = (VOCABULARY.number(character) for character in "0+-")
DIGITS = tuple(range(ZERO, PLUS))


def expressions(minimum: int, maximum: int, operators: str) -> tuple[Array, Array, Array]:
    """i, j and the operator's number of every expression, in the order of the file: for i, for j, + then -."""
    span = np.arange(minimum, maximum + 1, dtype=np.int64)
    numbers = np.array([ord(operator) for operator in operators])
    left, right, operator = np.meshgrid(span, span, numbers, indexing="ij")
    return left.ravel(), right.ravel(), operator.ravel()


def source_tokens(left: Array, right: Array, operator: Array, width: int, *, padded: bool) -> Array:
    """`(N, K)` tokens of the expressions, padding behind. width: digits of the largest number. padded: write as many
    digits of every number."""
    count = len(left)
    characters = np.zeros((count, 2 * width + 1), dtype=np.uint8)
    rows = np.arange(count)
    place = np.zeros(count, dtype=np.int64)
    _write_number(characters, place, left, width, padded)
    adds = operator == ord("+")
    characters[rows, place] = np.where(adds, PLUS, MINUS)
    place += 1
    _write_number(characters, place, right, width, padded)
    return characters


def target_tokens(
    left: Array, right: Array, operator: Array, width: int, answers: Answers
) -> Array:
    """`(N, Q)` tokens of the answers, each with its end and padding behind. width: digits of the largest answer."""
    adds = operator == ord("+")
    value = np.where(adds, left + right, left - right)
    # Room for a sign, the digits and the end; a column that no answer needs is cut off below.
    count = len(left)
    characters = np.zeros((count, width + 2), dtype=np.uint8)
    place = np.zeros(count, dtype=np.int64)
    negative = np.flatnonzero(value < 0)
    characters[negative, 0] = MINUS
    place[negative] = 1
    pad = answers == "padded"
    _write_number(characters, place, np.abs(value), width, pad)
    length = (characters != PADDING).sum(1)
    if answers == "reversed":
        characters = _reversed(characters, length)
    characters[np.arange(count), length] = END
    longest = int(length.max()) + 1
    return characters[:, :longest]


def _write_number(characters: Array, place: Array, number: Array, width: int, pad: bool) -> None:
    """Write each number into its row of `characters` from `place` on, and move `place` behind it."""
    rows = np.arange(len(number))
    for power in range(width - 1, -1, -1):
        always = pad or power == 0
        shown = rows if always else np.flatnonzero(number >= 10**power)
        digit = number[shown] // 10**power % 10
        column = place[shown]
        characters[shown, column] = ZERO + digit
        place[shown] = column + 1


def _reversed(characters: Array, length: Array) -> Array:
    """Position t of a reversed answer is position length - 1 - t of the plain one."""
    column = np.arange(characters.shape[1])
    index = length[:, None] - 1 - column
    turned = np.take_along_axis(characters, np.maximum(index, 0), 1)
    return np.where(index >= 0, turned, PADDING).astype(np.uint8)


def operands(numbers: Array, minimum: int, maximum: int, operators: int) -> tuple[Array, Array]:
    """i and j of the expressions with these numbers in the order of the file, of `operators` for each pair."""
    span = maximum - minimum + 1
    pair = numbers // operators
    return minimum + pair // span, minimum + pair % span


def carries(left: Array, right: Array, operator: Array) -> Array:
    """How often each expression carries, or borrows from the larger of its numbers."""
    adds = operator == ord("+")
    larger, smaller = np.maximum(left, right), np.minimum(left, right)
    count = np.zeros(len(left), dtype=np.int64)
    width = int(digits(larger).max(initial=1))
    for power in range(1, width + 1):
        place = 10**power
        carried = left % place + right % place >= place
        borrowed = larger % place < smaller % place
        count += np.where(adds, carried, borrowed)
    return count


def digits(number: Array) -> Array:
    """How many digits each number has."""
    powers = 10 ** np.arange(1, 19)
    return 1 + np.searchsorted(powers, number, side="right")


def root_repeats(shapes: Array) -> Array:
    """How often to repeat each example, so that a shape's share goes with the square root of its number."""
    _, shape, counts = np.unique(shapes, return_inverse=True, return_counts=True)
    roots = np.sqrt(counts.max() / counts)
    repeats = np.rint(roots).astype(np.int64)
    return repeats[shape]


def hashes(left: Array, right: Array, operator: Array) -> Array:
    """A 64-bit hash of each expression (splitmix64 over i, j and the operator): the same whatever the options are."""
    golden, first, second = map(
        np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
    )
    with np.errstate(over="ignore"):
        z = np.zeros(len(left), dtype=np.uint64)
        for part in (left, right, operator):
            z = (z ^ part.astype(np.uint64)) + golden
            z = _folded(z, 30) * first
            z = _folded(z, 27) * second
            z = _folded(z, 31)
    return z


def _folded(z: Array, bits: int) -> Array:
    return z ^ (z >> np.uint64(bits))


def answer_to(text: str, operators: str, answers: Answers, width: int) -> str | None:
    """The right answer to an expression without spaces; None where it is none, or of another operator. width: of padded
    answers."""
    operator = next((one for one in operators if one in text), None)
    if operator is None:
        return None
    left, _, right = text.partition(operator)
    if not (left.isdecimal() and right.isdecimal() and text.isascii()):
        return None
    sign = 1 if operator == "+" else -1
    value = int(left) + sign * int(right)
    answer = str(abs(value))
    if answers == "padded":
        answer = answer.zfill(width)
    if value < 0:
        answer = "-" + answer
    return answer[::-1] if answers == "reversed" else answer
