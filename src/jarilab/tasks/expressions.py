"""All expressions of `arithmetic` as arrays: their numbers, and their characters as tokens."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from jarilab.data.text import END, PADDING, CharacterVocabulary

Answers = Literal["plain", "reversed", "padded"]

Array: TypeAlias = np.ndarray

VOCABULARY = CharacterVocabulary("0123456789+-")
ZERO, PLUS, MINUS = (VOCABULARY.number[character] for character in "0+-")
DIGITS = tuple(range(ZERO, PLUS))


def expressions(minimum: int, maximum: int, operators: str) -> tuple[Array, Array, Array]:
    """Return i, j and the operator's index of every expression in order: for i, for j, + then -."""
    span = np.arange(minimum, maximum + 1, dtype=np.int64)
    numbers = np.array([ord(operator) for operator in operators])
    left, right, operator = np.meshgrid(span, span, numbers, indexing="ij")
    return left.ravel(), right.ravel(), operator.ravel()


def source_tokens(minimum: int, maximum: int, operators: str, width: int, *, padded: bool) -> Array:
    """Return tokens of the expressions, `(N, K)`, padded at the end.

    width: digits of the largest number. padded: write that many digits of every number.
    """
    numbers, lengths = _written(np.arange(minimum, maximum + 1), width, padded)
    span = len(numbers)
    source = np.zeros((span, span, len(operators), 2 * width + 1), dtype=np.uint8)
    # All first operands of one length at a time: the operator is then in the same column.
    for length in np.unique(lengths):
        first, last = np.searchsorted(lengths, (length, length + 1))
        some = source[first:last]
        some[..., :length] = numbers[first:last, None, None, :length]
        some[..., length] = [PLUS if operator == "+" else MINUS for operator in operators]
        some[..., length + 1 : length + 1 + width] = numbers[:, None]
    return source.reshape(-1, 2 * width + 1)


def target_tokens(
    minimum: int, maximum: int, operators: str, width: int, answers: Answers
) -> Array:
    """Return tokens of the answers, `(N, Q)`, with the end, padded. width: digits of the largest answer."""
    span = maximum - minimum + 1
    left, right = np.arange(span)[:, None], np.arange(span)
    written = _every_answer(minimum, maximum, operators, width, answers)
    longest = _columns(written)
    target = np.empty((span, span, len(operators), longest), dtype=np.uint8)
    for number, (operator, tokens) in enumerate(zip(operators, written, strict=True)):
        index = left + right if operator == "+" else left - right + span - 1
        target[:, :, number] = tokens[:, :longest][index]
    return target.reshape(-1, longest)


def longest_answer(minimum: int, maximum: int, operators: str, width: int, answers: Answers) -> int:
    """Return the columns that `target_tokens` needs."""
    return _columns(_every_answer(minimum, maximum, operators, width, answers))


def _columns(written: list[Array]) -> int:
    """Return the number of tokens of the longest answer."""
    return max(int((tokens != PADDING).sum(1).max()) for tokens in written)


def _every_answer(
    minimum: int, maximum: int, operators: str, width: int, answers: Answers
) -> list[Array]:
    """Return the tokens of each value of an answer, for each operator, padded."""
    sums = np.arange(2 * minimum, 2 * maximum + 1)
    differences = np.arange(minimum - maximum, maximum - minimum + 1)
    values = [sums if operator == "+" else differences for operator in operators]
    return [_answers(each, width, answers) for each in values]


def expression_tokens(
    left: Array, right: Array, operator: Array, width: int, answers: Answers
) -> tuple[Array, Array]:
    """Return source and target tokens of expressions whose operands have `width` digits each."""
    adds = operator == ord("+")
    sign = np.where(adds, PLUS, MINUS).astype(np.uint8)[:, None]
    left_digits, right_digits = (_written(side, width, True)[0] for side in (left, right))
    source = np.concatenate((left_digits, sign, right_digits), 1)
    values = np.where(adds, left + right, left - right)
    target = _answers(values, width + bool(adds.any()), answers)
    longest = int((target != PADDING).sum(1).max())
    return source, target[:, :longest]


def _answers(values: Array, width: int, answers: Answers) -> Array:
    """Return tokens of values, `(N, width + 2)`, with sign and end, padded."""
    digits, lengths = _written(np.abs(values), width, answers == "padded")
    tokens = np.zeros((len(values), width + 2), dtype=np.uint8)
    tokens[:, :width] = digits
    negative = values < 0
    tokens[negative, 1 : width + 1] = digits[negative]
    tokens[negative, 0] = MINUS
    lengths = lengths + negative
    if answers == "reversed":
        tokens = _reversed(tokens, lengths)
    tokens[np.arange(len(values)), lengths] = END
    return tokens


def _written(numbers: Array, width: int, pad: bool) -> tuple[Array, Array]:
    """Return tokens of numbers, `(N, width)`, padded, and the number of digits of each. pad: with zeros."""
    powers = 10 ** np.arange(width - 1, -1, -1)
    tokens = (ZERO + numbers[:, None] // powers % 10).astype(np.uint8)
    lengths = np.full(len(numbers), width) if pad else digits(numbers)
    column = np.arange(width) + (width - lengths)[:, None]
    moved = np.take_along_axis(tokens, np.minimum(column, width - 1), 1)
    return np.where(column < width, moved, PADDING).astype(np.uint8), lengths


def _reversed(characters: Array, length: Array) -> Array:
    """Reverse answers: position t becomes position length - 1 - t."""
    column = np.arange(characters.shape[1])
    index = length[:, None] - 1 - column
    turned = np.take_along_axis(characters, np.maximum(index, 0), 1)
    return np.where(index >= 0, turned, PADDING).astype(np.uint8)


def operands(numbers: Array, minimum: int, maximum: int, operators: int) -> tuple[Array, Array]:
    """Return i and j of the expressions at these indices, with `operators` expressions for each pair."""
    span = maximum - minimum + 1
    pair = numbers // operators
    return minimum + pair // span, minimum + pair % span


def carries(left: Array, right: Array, operator: Array) -> Array:
    """Return how often each expression carries, or borrows from the larger number."""
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
    """Return the number of digits of each number."""
    powers = 10 ** np.arange(1, 19)
    return 1 + np.searchsorted(powers, number, side="right")


def root_repeats(shapes: Array) -> Array:
    """Return repeats of each example that make a shape's share proportional to the square root of its count."""
    _, shape, counts = np.unique(shapes, return_inverse=True, return_counts=True)
    roots = np.sqrt(counts.max() / counts)
    repeats = np.rint(roots).astype(np.int64)
    return repeats[shape]


def hashes(left: Array, right: Array, operator: Array) -> Array:
    """Return a 64-bit hash of each expression (splitmix64 over i, j and the operator), independent of the options."""
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
    """Return the right answer to an expression without spaces, or None. width: of padded answers."""
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
