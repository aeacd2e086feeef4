"""Copy, reverse or sort a line of numbers: the smallest tasks with a source and a target."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Annotated, Any, final

import numpy as np
from annotated_types import Ge, Le, Lt

from jarilab.core.errors import UserError
from jarilab.data.text import END, PADDING, SPECIAL, ListedVocabulary
from jarilab.data.text.spelling import PARTED, SPACE, Reading, Rule, Spelling, Writing
from jarilab.tasks.base import full_names, registry
from jarilab.tasks.metrics import METRICS
from jarilab.tasks.seq2seq import JudgedBy, Matrix, PairsTask, Rows, Vocabulary

_SHORTENED: Rule = (rf"(?<![^{SPACE}])(?=[0-9]{{1,9}}(?![^{SPACE}]))0+(?=[0-9])", "")
"""A number of up to nine digits without leading zeros."""

MOST_NUMBERS = 10_000
"""Maximal numbers in a line."""
_RANGE = re.compile(r"([0-9]{1,6})(?:\.\.([0-9]{1,6}))?")


class NumberSequences(PairsTask):
    """Lines of random numbers from 0 to `symbols` - 1.

    Training and held-out lines are random, so both may contain the same short line; a run reports how many. symbols:
    number of different symbols. lines: training lines. held_out: held-out lines. lengths: numbers in a line, such as
    1..25. test_lengths: numbers in a held-out line (default: `lengths`). The result then has groups for trained,
    shorter and longer lengths. data_seed: seed of the random lines. metric: metric by which runs are compared.
    """

    length_unit = "numbers of a line"

    def __init__(
        self,
        *,
        symbols: Annotated[int, Ge(2), Le(10_000)] = 50,
        lines: Annotated[int, Ge(1), Le(10_000_000)] = 50_000,
        held_out: Annotated[int, Ge(1), Le(1_000_000)] = 1000,
        lengths: str = "1..25",
        test_lengths: str | None = None,
        data_seed: Annotated[int, Ge(0), Lt(2**63)] = 42,
        metric: JudgedBy = "exact_match",
    ):
        self.trained = _range("lengths", lengths)
        self.tested = self.trained
        if test_lengths is not None:
            self.tested = _range("test_lengths", test_lengths)
        super().__init__(max(self.trained.stop, self.tested.stop) - 1)
        self.symbols = symbols
        self.size, self.size_held_out = lines, held_out
        self.data_seed, self.metric = data_seed, METRICS[metric]
        self._numbers = _Numbers(symbols)

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        training = {"examples": 400_000, "batch_size": 128, "lr": 4e-3}
        if model == "recurrent":
            training["lr"] = 2e-3
        return full_names(training=training)

    @property
    def trained_length(self) -> int:
        return self.trained.stop - 1

    def tokens_trained(self, side: str) -> int:
        trained = copy(self)
        trained._longest = self.trained_length
        return trained.tokens_read(side)

    def _set_length(self, length: int, stride: int | None) -> None:
        self.tested, self._held_out = _range("length", str(length)), None
        self._longest = max(self.trained_length, length)
        if "_shared" in self.__dict__:
            del self._shared  # cached for other held-out lines

    @abstractmethod
    def answers(self, lines: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the target of each row of numbers, of which the first `lengths` count."""

    @property
    def spelling(self) -> Spelling:
        return Spelling(Reading(PARTED, rules=(_SHORTENED,), end=END), Writing(join=" "))

    @property
    def tokenizers(self) -> tuple[Vocabulary, Vocabulary]:
        return self._numbers, self._numbers

    def _read_data(self) -> tuple[Rows, Rows]:
        lines, lengths = self._training_lines()
        return _rows(lines, lengths), _rows(self.answers(lines, lengths), lengths)

    def _read_held_out(self) -> list[tuple[str, str]]:
        lines, lengths = self._held_out_lines()
        answers = self.answers(lines, lengths)
        return list(zip(_texts(lines, lengths), _texts(answers, lengths), strict=True))

    def _training_lines(self) -> tuple[np.ndarray, np.ndarray]:
        return self._lines(0, self.size, self.trained)

    def _held_out_lines(self) -> tuple[np.ndarray, np.ndarray]:
        return self._lines(1, self.size_held_out, self.tested)

    def _lines(self, stream: int, count: int, within: range) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of numbers and their lengths. stream: of random numbers; 0 for training, 1 for held out."""
        chance = np.random.default_rng([self.data_seed, stream])
        lengths = chance.integers(within.start, within.stop, count)
        return chance.integers(0, self.symbols, (count, within.stop - 1)), lengths

    @property
    def groups(self) -> tuple[str, ...]:
        of_lengths = dict.fromkeys(map(self._group_of, self.tested))
        return ("all", *of_lengths) if len(of_lengths) > 1 else ("all",)

    def group_of(self, source: str, target: str) -> str:
        return self._group_of(len(source.split()))

    def _group_of(self, length: int) -> str:
        if length in self.trained:
            return "seen_lengths"
        return "shorter" if length < self.trained.start else "longer"

    @cached_property
    def _shared(self) -> tuple[int, int]:
        """Return how many held-out lines are training lines too, and the length of the longest of them."""
        lines, lengths = self._held_out_lines()
        trained = _codes(*self._training_lines())
        known = np.isin(_codes(lines, lengths), trained)
        return int(known.sum()), int(lengths[known].max(initial=0))

    def notices(self) -> list[str]:
        count, longest = self._shared
        if not count:
            return []
        return [
            f"{count:,} of the {self.size_held_out:,} held-out lines are among the training lines too, all of them of "
            f"{longest} numbers or fewer; --lengths from {longest + 1} on leave such short ones out"
        ]

    def expected(self, line: str) -> str | None:
        numbers = [int(word) for word in line.split() if word.isdecimal()]
        (answer,) = self.answers(np.array([numbers]), np.array([len(numbers)]))
        return " ".join(map(str, answer))

    def sample_inputs(self) -> list[str]:
        top = self.symbols - 1
        lines = [f"1 0 {top} 1 0", "0 1 1 0", f"{top} 0 {top} 1 {top}"]
        return [line for line in lines if len(line.split()) <= self._longest]

    def describe(self) -> str:
        count, longest = self._shared
        if not count:
            return self._drawn()
        also = f"of which {count:,}, all of {longest} numbers or fewer, were trained on too"
        return f"{self._drawn()}, {also}"

    def fingerprint(self) -> str:
        return f"{self._drawn()}, seed {self.data_seed}"

    def _drawn(self) -> str:
        trained, tested = self.trained, self.tested
        lengths = f"of up to {tested.stop - 1}"
        if tested.start != trained.start:
            lengths = f"of {tested.start} to {tested.stop - 1}"
        return (
            f"{type(self).__name__.lower()}: {self.size:,} lines of {trained.start} to {trained.stop - 1} numbers "
            f"below {self.symbols}, held out {self.size_held_out:,} {lengths}"
        )


@registry.register("copy")
@final
class Copy(NumberSequences):
    """Repeat the numbers."""

    def purpose(self) -> tuple[str, str]:
        return "Writes the same numbers again.", "같은 수들을 그대로 다시 씁니다."

    def answers(self, lines: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return lines


@registry.register("reverse")
@final
class Reverse(NumberSequences):
    """Write the numbers from the last to the first."""

    def purpose(self) -> tuple[str, str]:
        return "Writes the numbers from the last to the first.", "수들을 끝에서부터 거꾸로 씁니다."

    def answers(self, lines: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        index = lengths[:, None] - 1 - np.arange(lines.shape[1])
        return np.take_along_axis(lines, np.maximum(index, 0), 1)


@registry.register("sort")
@final
class Sort(NumberSequences):
    """Write the numbers from the smallest to the largest. This task needs no positions in the source."""

    def purpose(self) -> tuple[str, str]:
        return (
            "Writes the numbers from the smallest to the largest.",
            "수들을 작은 것부터 큰 순서로 씁니다.",
        )

    def answers(self, lines: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        behind = np.arange(lines.shape[1]) >= lengths[:, None]
        return np.sort(np.where(behind, self.symbols, lines), axis=1)


@final
class _Numbers(ListedVocabulary):
    """A vocabulary with a token for each number, separated by spaces."""

    def __init__(self, symbols: int):
        super().__init__(map(str, range(symbols)))
        self.symbols = symbols

    def encode(self, text: str) -> list[int]:
        words = text.split()
        strange = [word for word in words if not self._has(word)]
        if strange:
            raise UserError(
                f"expected numbers from 0 to {self.symbols - 1}, got {strange[0]!r}; write such as 3 1 4"
            )
        return [len(SPECIAL) + int(word) for word in words]

    def _has(self, word: str) -> bool:
        is_short_number = word.isascii() and word.isdecimal() and len(word) < 10
        return is_short_number and int(word) < self.symbols

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.written(ids))


def _range(option: str, text: str) -> range:
    """Parse `1..20` as the numbers from 1 to 20, and `8` as 8 alone. Raises UserError."""
    match = _RANGE.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last <= MOST_NUMBERS:
        raise UserError(
            f"{option}: expected the fewest and the most numbers of a line, from 1 to {MOST_NUMBERS:,}, such as 1..20; "
            f"got {text!r}"
        )
    return range(first, last + 1)


def _codes(lines: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return a hash of each row; different rows share one with a probability of 1 in 2^64."""
    codes, golden = np.zeros(len(lines), np.uint64), np.uint64(0x9E3779B97F4A7C15)
    for column, numbers in enumerate(lines.T):
        more = (codes + numbers.astype(np.uint64) + np.uint64(1)) * golden
        folded = more ^ (more >> np.uint64(32))
        codes = np.where(column < lengths, folded, codes)
    return codes


def _texts(lines: np.ndarray, lengths: np.ndarray) -> list[str]:
    pairs = zip(lines.tolist(), lengths.tolist(), strict=True)
    return [" ".join(map(str, line[:length])) for line, length in pairs]


def _rows(lines: np.ndarray, lengths: np.ndarray) -> Matrix:
    behind = np.arange(lines.shape[1]) >= lengths[:, None]
    return Matrix(np.where(behind, PADDING, lines + len(SPECIAL)), lengths)
