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

    names: of tokens, by id; others are words. chance_labels: whether no answer is right. links: of the tree of a row,
    as (relation, dependent, head).
    """

    row: Callable[[np.random.Generator], Row]
    pair: Callable[[np.random.Generator], Pair] | None = None
    names: tuple[tuple[int, str], ...] = ()
    chance_labels: bool = False
    links: Callable[[np.ndarray], list[tuple[str, int, int]]] | None = None

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


def sums(places: int) -> Task:
    """The sum of two numbers, the lowest place first; the answer at each digit of the second is that of the sum.

    Asked if what the places below add up to is not within 40 % of a carry.
    """

    def lower_sums(ids: np.ndarray) -> np.ndarray:
        """What the places below each one add up to, over a carry."""
        both = ids[1 : 1 + places] + ids[1 + places :]
        return np.array([sum(both[:k] * 10.0 ** np.arange(-k, 0)) for k in range(places)])

    def row(generator: np.random.Generator) -> Row:
        ids = _started(generator.integers(0, 10, 2 * places), 10)
        below = lower_sums(ids)
        answers = np.full(len(ids), NONE)
        digits = (ids[1 : 1 + places] + ids[1 + places :] + (below >= 1)) % 10
        answers[1 + places :] = np.where(abs(below - 1) >= 0.4, digits, NONE)
        return ids, answers

    def pair(generator: np.random.Generator) -> Pair:
        """The same two digits with and without a carry."""
        while True:
            (ids, answers), (corrupt, others) = row(generator), row(generator)
            place = int(generator.integers(1, places))
            position = 1 + places + place
            for at in range(place, places):
                corrupt[[1 + at, 1 + places + at]] = ids[[1 + at, 1 + places + at]]
            carries = [lower_sums(each)[place] >= 1 for each in (ids, corrupt)]
            if NONE not in (answers[position], others[position]) and carries[0] != carries[1]:
                answer = int(answers[position])
                return Pair(ids, corrupt, position, answer, (answer + 1 - 2 * int(carries[0])) % 10)

    return Task(row, pair, tuple((digit, str(digit)) for digit in range(10)))


FILLER = 0


def sorting(vocabulary: int, size: int) -> Task:
    """Distinct tokens, then a filler for each but the first; from the last token on, the answers are in order."""

    def row(generator: np.random.Generator) -> Row:
        drawn = 1 + generator.choice(vocabulary - 1, size, replace=False)
        ids = _started(np.concatenate([drawn, np.full(size - 1, FILLER)]), vocabulary)
        return ids, np.concatenate([np.full(size, NONE), np.sort(drawn)])

    def pair(generator: np.random.Generator) -> Pair:
        """A smaller token becomes one above the next answer, which is then the right one."""
        while True:
            ids, answers = row(generator)
            position = int(generator.integers(size + 1, 2 * size - 1))
            answer, rival = answers[position : position + 2].tolist()
            larger = np.setdiff1d(np.arange(rival + 1, vocabulary), ids)
            if len(larger):
                corrupt = ids.copy()
                smaller = np.flatnonzero((ids < answer) & (ids != FILLER))
                corrupt[generator.choice(smaller)] = generator.choice(larger)
                return Pair(ids, corrupt, position, answer, rival)

    return Task(row, pair, ((FILLER, "="),))


WORDS = [
    *(("det", word) for word in ("the", "a", "every")),
    *(("adj", word) for word in ("old", "small", "kind", "brave")),
    *(("subject", word) for word in ("he", "she", "king", "cook", "judge", "child")),
    *(("object", word) for word in ("him", "her", "house", "apple", "river", "stone")),
    *(("prep", word) for word in ("near", "behind")),
    *(("adv", word) for word in ("often", "never", "gladly")),
    *(("verb", word) for word in ("sees", "likes", "paints", "visits")),
]
"""The class and name of each word, by id. Subjects and objects have nouns of their own, as in a language with cases."""


def subject_of_verb(length: int) -> Task:
    """Sentences of a small grammar; the answer at a verb is its subject, 1 to 6 words before."""
    classes = [word_class for word_class, _ in WORDS]
    ids_of = {name: np.flatnonzero([each == name for each in classes]) for name in classes}

    def sentence(generator: np.random.Generator) -> list[str]:
        words = ["det", *["adj"] * generator.integers(0, 2), "subject"]
        words += ["prep", "det", "object"] if generator.random() < 0.5 else []
        words += [*["adv"] * generator.integers(0, 3), "verb"]
        return words + (["det", *["adj"] * generator.integers(0, 2), "object"] if generator.random() < 0.6 else [])

    def row(generator: np.random.Generator) -> Row:
        words: list[str] = []
        while len(words) < length - 1:
            words += sentence(generator)
        ids = np.array([generator.choice(ids_of[each]) for each in words[: length - 1]])
        ids = _started(ids, len(WORDS))
        answers = np.full(length, NONE)
        for _, dependent, verb in (link for link in links(ids) if link[0] == "nsubj"):
            answers[verb] = ids[dependent]
        return ids, answers

    def links(ids: np.ndarray) -> list[tuple[str, int, int]]:
        """The tree, but for what is cut off at the end."""
        names = ["start", *(classes[token] for token in ids[1:])]

        def nearest(at: int, step: int, *wanted: str) -> int | None:
            places = range(at + step, len(names) if step > 0 else 0, step)
            return next((place for place in places if names[place] in wanted), None)

        heads = {
            "det": ("det", 1, "subject", "object"),
            "adj": ("amod", 1, "subject", "object"),
            "prep": ("case", 1, "object"),
            "adv": ("advmod", 1, "verb"),
            "subject": ("nsubj", 1, "verb"),
            "object": ("obj", -1, "verb"),
            "oblique": ("nmod", -1, "subject"),
        }
        found = []
        for at, name in enumerate(names):
            if name == "object":
                is_oblique = names[nearest(at, -1, "prep", "subject", "verb") or 0] == "prep"
                found.append(
                    ("nmod", at, nearest(at, -1, "subject")) if is_oblique else ("obj", at, nearest(at, -1, "verb"))
                )
            elif name in heads:
                relation_, step, *wanted = heads[name]
                found.append((relation_, at, nearest(at, step, *wanted)))
        return [(name, at, head) for name, at, head in found if head is not None]

    def pair(generator: np.random.Generator) -> Pair:
        while True:
            ids, answers = row(generator)
            asked = np.flatnonzero(answers != NONE)
            position = int(generator.choice(asked))
            answer, corrupt = int(answers[position]), ids.copy()
            subject = next(at for name, at, head in links(ids) if name == "nsubj" and head == position)
            rival = int(generator.choice(np.setdiff1d(ids_of["subject"], [answer])))
            corrupt[subject] = rival
            return Pair(ids, corrupt, position, answer, rival)

    return Task(row, pair, tuple(enumerate(word for _, word in WORDS)), links=links)


def random_answers(vocabulary: int, length: int) -> Task:
    """No answer can be known."""

    def row(generator: np.random.Generator) -> Row:
        ids = _started(generator.integers(0, vocabulary, length - 1), vocabulary)
        return ids, generator.integers(0, vocabulary, length)

    return Task(row, chance_labels=True)
