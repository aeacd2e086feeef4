"""The examples of circuits: rows of ids with right answers, and pairs of inputs for patching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Row = tuple[np.ndarray, np.ndarray]
"""Ids `(L,)` that begin with the start token, and right answers `(L,)`; NONE where nothing is asked."""
NONE = -100


@dataclass(frozen=True)
class Pair:
    """Two inputs of one length. answer: right for `clean` at `position`. rival: right for `corrupt`, or any other."""

    clean: np.ndarray
    corrupt: np.ndarray
    position: int
    answer: int
    rival: int


@dataclass(frozen=True)
class Task:
    """row: draws an example. pair: draws two inputs; None if no input changes the answer.

    names: of tokens, by id; others are words. chance_labels: whether no answer is right.
    """

    row: Callable[[np.random.Generator], Row]
    pair: Callable[[np.random.Generator], Pair] | None = None
    names: tuple[tuple[int, str], ...] = ()
    chance_labels: bool = False

    def name(self, token: int, start: int) -> str:
        return "<s>" if token == start else dict(self.names).get(token, f"w{token}")


def _other(generator: np.random.Generator, vocabulary: int, *tokens: int) -> int:
    """A token that is none of these."""
    return int(generator.choice(np.setdiff1d(np.arange(vocabulary), tokens)))


def _started(ids: np.ndarray, vocabulary: int) -> np.ndarray:
    return np.concatenate([[vocabulary], ids])


def copying(vocabulary: int, length: int, back: int) -> Task:
    """The answer is the token `back` before."""

    def row(generator: np.random.Generator) -> Row:
        ids = _started(generator.integers(0, vocabulary, length - 1), vocabulary)
        answers = np.full(length, NONE)
        answers[back + 1 :] = ids[1:-back]
        return ids, answers

    def pair(generator: np.random.Generator) -> Pair:
        ids, answers = row(generator)
        position = int(generator.integers(back + 1, length))
        answer = int(answers[position])
        corrupt = ids.copy()
        corrupt[position - back] = rival = _other(generator, vocabulary, answer)
        return Pair(ids, corrupt, position, answer, rival)

    return Task(row, pair)


def mirrored(vocabulary: int, length: int, *, reverse: bool) -> Task:
    """The answer is the token of another input at the same position, or with `reverse` at the mirrored one."""

    def row(generator: np.random.Generator) -> Row:
        ids = _started(generator.integers(0, vocabulary, length - 1), vocabulary)
        answers = ids.copy()
        answers[1:] = ids[:0:-1] if reverse else ids[1:]
        answers[0] = NONE
        return ids, answers

    def pair(generator: np.random.Generator) -> Pair:
        ids, answers = row(generator)
        position = int(generator.integers(1, length))
        answer = int(answers[position])
        corrupt = ids.copy()
        source = length - position if reverse else position
        corrupt[source] = rival = _other(generator, vocabulary, answer)
        return Pair(ids, corrupt, position, answer, rival)

    return Task(row, pair)


def repeated_blocks(vocabulary: int, length: int, block: int | None = None) -> Task:
    """A block of tokens comes again; the answer is the token that followed the earlier copy.

    block: a fixed length, the block then fills the row; drawn with prefix and gap by default.
    """

    def fixed(generator: np.random.Generator, size: int) -> Row:
        copies = -(-(length - 1) // size)
        ids = np.tile(generator.choice(vocabulary, size, replace=False), copies)[: length - 1]
        answers = np.full(length, NONE)
        answers[size + 1 : -1] = ids[size + 1 :]
        return _started(ids, vocabulary), answers

    def drawn(generator: np.random.Generator) -> Row:
        size = int(generator.integers(5, length // 3 + 1))
        rest = length - 1 - 2 * size
        prefix = int(generator.integers(0, rest + 1))
        tokens = generator.choice(vocabulary, size + rest, replace=False)
        again = tokens[prefix : prefix + size]
        cut = int(generator.integers(prefix + size, size + rest + 1))
        ids = np.concatenate([tokens[:cut], again, tokens[cut:]])
        answers = np.full(length, NONE)
        answers[cut + 1 : cut + size] = again[1:]
        return _started(ids, vocabulary), answers

    def row(generator: np.random.Generator) -> Row:
        return drawn(generator) if block is None else fixed(generator, block)

    def pair(generator: np.random.Generator) -> Pair:
        ids, answers = row(generator)
        asked = np.flatnonzero(answers != NONE)
        # The third copy of a fixed block has two earlier ones.
        asked = asked if block is None else asked[asked < 2 * block]
        position = int(generator.choice(asked))
        earlier = int(np.flatnonzero(ids[:position] == ids[position])[-1])
        corrupt = ids.copy()
        corrupt[earlier] = _other(generator, vocabulary, *ids[:position].tolist(), *ids[position:].tolist()[:1])
        answer = int(answers[position])
        return Pair(ids, corrupt, position, answer, _other(generator, vocabulary, answer, int(corrupt[earlier])))

    return Task(row, pair)


def seen_before(vocabulary: int, length: int) -> Task:
    """The answer is token 1 where the token came before, else token 0."""

    def row(generator: np.random.Generator) -> Row:
        ids = _started(generator.integers(0, vocabulary, length - 1), vocabulary)
        answers = np.array([int(token in ids[:i]) for i, token in enumerate(ids)])
        answers[0] = NONE
        return ids, answers

    def pair(generator: np.random.Generator) -> Pair:
        while True:
            ids, _ = row(generator)
            counts = [(ids[:i] == token).sum() for i, token in enumerate(ids)]
            once = np.flatnonzero(np.array(counts) == 1)
            unseen = np.setdiff1d(np.arange(vocabulary), ids)
            if len(once) and len(unseen):
                break
        position = int(generator.choice(once))
        corrupt = ids.copy()
        corrupt[np.flatnonzero(ids[:position] == ids[position])[0]] = generator.choice(unseen)
        return Pair(ids, corrupt, position, 1, 0)

    return Task(row, pair)


def seen_anywhere(vocabulary: int, length: int) -> Task:
    """The answer is token 1 where the token comes elsewhere in the row too, else token 0."""
    before = seen_before(vocabulary, length)

    def answers(ids: np.ndarray) -> np.ndarray:
        counts = (ids[:, None] == ids).sum(1)
        return np.where(ids == vocabulary, NONE, (counts > 1).astype(int))

    def row(generator: np.random.Generator) -> Row:
        ids, _ = before.row(generator)
        return ids, answers(ids)

    def pair(generator: np.random.Generator) -> Pair:
        assert before.pair is not None
        while True:
            drawn = before.pair(generator)
            if answers(drawn.corrupt)[drawn.position] == 0:
                return drawn

    return Task(row, pair)


def largest_so_far(vocabulary: int, length: int) -> Task:
    """The answer is the largest id so far; the largest of a row is drawn first, so that rows differ."""

    def row(generator: np.random.Generator) -> Row:
        largest = int(generator.integers(3, vocabulary))
        ids = generator.integers(0, largest + 1, length - 1)
        ids[generator.integers(0, 4)] = largest
        answers = np.maximum.accumulate(ids)
        return _started(ids, vocabulary), np.concatenate([[NONE], answers])

    def pair(generator: np.random.Generator) -> Pair:
        while True:
            ids, answers = row(generator)
            position = int(generator.integers(length // 2, length))
            largest = int(answers[position])
            places = np.flatnonzero(ids == largest)
            if len(places) > 1:
                continue
            corrupt = ids.copy()
            corrupt[places] = 0
            return Pair(ids, corrupt, position, largest, int(corrupt[1 : position + 1].max()))

    return Task(row, pair)


def commonest(vocabulary: int, length: int) -> Task:
    """The answer at the end of a row is its commonest token."""

    def filled(generator: np.random.Generator, top: int, other: int) -> np.ndarray:
        ids = generator.integers(0, vocabulary, length - 1)
        order = generator.permutation(length - 1)
        ids[order[: length // 2]] = top
        ids[order[length // 2 : length // 2 + 3]] = other
        return _started(ids, vocabulary)

    def row(generator: np.random.Generator) -> Row:
        top, other = generator.choice(vocabulary, 2, replace=False).tolist()
        ids = filled(generator, top, other)
        answers = np.full(length, NONE)
        for i in range(3 * length // 4, length):
            counts = np.bincount(ids[1 : i + 1], minlength=vocabulary)
            if np.sort(counts)[-2] + 2 < counts[top]:
                answers[i] = top
        answers[-1] = top
        return ids, answers

    def pair(generator: np.random.Generator) -> Pair:
        top, other = generator.choice(vocabulary, 2, replace=False).tolist()
        ids = filled(generator, top, other)
        corrupt = ids.copy()
        corrupt[ids == top], corrupt[ids == other] = other, top
        return Pair(ids, corrupt, length - 1, top, other)

    return Task(row, pair)


def constant(vocabulary: int, length: int, answer: int) -> Task:
    """The answer is always the same."""

    def row(generator: np.random.Generator) -> Row:
        ids = _started(generator.integers(0, vocabulary, length - 1), vocabulary)
        return ids, np.full(length, answer)

    return Task(row)


DELIMITERS = (".", ",", "!", "?")


def last_delimiter(vocabulary: int, length: int) -> Task:
    """The answer is the last delimiter so far; the first ids are delimiters."""
    count = len(DELIMITERS)

    def row(generator: np.random.Generator) -> Row:
        ids = generator.integers(count, vocabulary, length - 1)
        place = int(generator.integers(0, 4))
        while place < length - 1:
            ids[place] = generator.integers(0, count)
            place += int(generator.integers(3, 9))
        answers = np.full(length, NONE)
        for i, token in enumerate(ids, 1):
            answers[i] = token if token < count else answers[i - 1]
        return _started(ids, vocabulary), answers

    def pair(generator: np.random.Generator) -> Pair:
        ids, answers = row(generator)
        position = int(generator.choice(np.flatnonzero(answers != NONE)))
        answer = int(answers[position])
        corrupt = ids.copy()
        corrupt[np.flatnonzero(ids[: position + 1] < count)[-1]] = rival = _other(generator, count, answer)
        return Pair(ids, corrupt, position, answer, rival)

    return Task(row, pair, tuple(enumerate(DELIMITERS)))


def random_answers(vocabulary: int, length: int) -> Task:
    """No answer can be known."""

    def row(generator: np.random.Generator) -> Row:
        ids = _started(generator.integers(0, vocabulary, length - 1), vocabulary)
        return ids, generator.integers(0, vocabulary, length)

    return Task(row, chance_labels=True)
