"""Numbers in words, Korean and English: 이백이십이 <-> two hundred twenty-two.

A word occurs several times in a phrase with different meanings, as digits do in `arithmetic`.
이백이십이 contains 이 three times, as 200, 20 and 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, final

import numpy as np
import torch
from annotated_types import Ge, Le

from jarilab.core.errors import UserError
from jarilab.data.text import END, PADDING, SPECIAL, ListedVocabulary
from jarilab.data.text.spelling import SPACE, STRIPPED, Reading, Spelling, Writing
from jarilab.tasks.base import registry
from jarilab.tasks.ceiling import bag_ceiling
from jarilab.tasks.seq2seq import Matrix, PairsTask, Rows, Vocabulary, padding_last, scattered

HELD_OUT = 100  # one number in a hundred
LARGEST = 999_999
NAME = 16  # tokens of the longest name


@registry.register("number-words")
@final
class NumberWords(PairsTask):
    """Translate the names of 0 ... maximum between the languages. One number in a hundred is held out, in both
    directions.

    direction: both (by the source's script), ko-en or en-ko. maximum: the largest number.
    """

    words = None

    def __init__(
        self,
        *,
        direction: Literal["both", "ko-en", "en-ko"] = "both",
        maximum: Annotated[int, Ge(99), Le(LARGEST)] = LARGEST,
    ):
        self.direction, self.maximum = direction, maximum
        self.directions = ("ko-en", "en-ko") if direction == "both" else (direction,)
        super().__init__(NAME)

    @classmethod
    def defaults(cls, model: str) -> Mapping[str, Any]:
        return {
            "training.examples": 600_000,
            "training.batch_size": 512,
            "training.evaluation_examples": 1000,
        }

    @property
    def tokenizers(self) -> tuple[Vocabulary, Vocabulary]:
        return _vocabulary(), _vocabulary()

    @property
    def groups(self) -> tuple[str, ...]:
        return ("all", *self.directions) if len(self.directions) > 1 else ("all",)

    def group_of(self, source: str, target: str) -> str:
        return "en-ko" if source.isascii() else "ko-en"

    def _read_data(self) -> tuple[Rows, Rows]:
        numbers = np.arange(self.maximum + 1)
        return self._sides(numbers[~_held_out(numbers)])

    def _sides(self, numbers: np.ndarray) -> tuple[Matrix, Matrix]:
        """Return source and target of these numbers, direction after direction."""
        names = _names_of(numbers)
        ways = [direction.split("-") for direction in self.directions]
        sources = np.concatenate([names[source] for source, _ in ways])
        return Matrix.of(sources), Matrix.of(np.concatenate([names[target] for _, target in ways]))

    def _read_held_out(self) -> list[tuple[str, str]]:
        numbers = np.arange(self.maximum + 1)
        source, target = self._sides(numbers[_held_out(numbers)])
        return list(zip(_decoded(source), _decoded(target), strict=True))

    def ceiling(self) -> dict[str, float] | None:
        """Return the ceiling over all numbers. Without positions an encoder knows the words and their counts."""
        if self.one_sequence:  # the causal mask gives the order, too
            return None
        numbers = np.arange(self.maximum + 1)
        names = _names_of(numbers)
        shares = {}
        for direction in self.directions:
            source, target = direction.split("-")
            shares[direction] = bag_ceiling(names[source], names[target])
        mean = {"all": sum(shares.values()) / len(shares)}
        return mean | shares if len(shares) > 1 else mean

    def ceiling_sentence(self) -> str:
        return (
            "Without positions the encoder sees only which words a name holds, not in which order. Numbers of the same "
            "words get the same answer, and at best the commonest one: counted over all numbers, this is the share "
            "of exact answers that no such model can pass on average."
        )

    @property
    def spelling(self) -> Spelling:
        return Spelling(_vocabulary().reading(), _vocabulary().writing())

    def read(self, line: str) -> list[int]:
        text = re.sub(r"\band\b|[,\s-]+", " ", line.lower()).strip()
        return super().read(text)

    def sample_inputs(self) -> list[str]:
        return [
            "이백이십이",
            "two hundred twenty-two",
            "이만 이천이백이",
            "thirty thousand three hundred three",
        ]

    def describe(self) -> str:
        return f"names of 0 ... {self.maximum:,}, {' and '.join(self.directions)}, one number in {HELD_OUT} held out"

    def purpose(self) -> tuple[str, str]:
        if self.direction == "both":
            return (
                "Writes the name of a number in the other language, Korean or English.",
                "수의 이름을 한국어는 영어로, 영어는 한국어로 옮깁니다.",
            )
        if self.direction == "ko-en":
            english = "Writes the Korean name of a number in English."
            return english, "한국어로 쓴 수의 이름을 영어로 옮깁니다."
        english = "Writes the English name of a number in Korean."
        return english, "영어로 쓴 수의 이름을 한국어로 옮깁니다."


# The names -----------------------------------------------------------------------------------------------------------


@final
class _Names(ListedVocabulary):
    """A vocabulary with a token for each Korean syllable and each English word. A space stands only after 만."""

    def __init__(self) -> None:
        super().__init__([*"영일이삼사오육칠팔구십백천만 ", *SMALL, *TENS, "hundred", "thousand"])
        self._ones = set(ONES[1:])

    def encode(self, text: str) -> list[int]:
        words, before = [], ""
        for piece in re.findall(r"[a-z]+|.", text):
            # Between English words a space means nothing.
            if piece not in " -" or (piece == " " and before == "만"):
                words.append(piece)
            before = piece
        strange = [word for word in words if word not in self.number or word in SPECIAL]
        if strange:
            raise UserError(
                f"{strange[0]!r} is no word for a number; write such as 이백이십이 or two hundred twenty-two"
            )
        return [self.number[word] for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        text = before = ""
        for word in self.written(ids):
            if _is_english(before) and _is_english(word):
                text += "-" if before.endswith("ty") and word in self._ones else " "
            text, before = text + word, word
        return text

    def reading(self) -> Reading:
        """Return the rules of `NumberWords.read` and `encode` as data."""
        word = r"[\p{L}\p{N}_]"
        between = rf"(?<!{word})and(?!{word})|[,{SPACE}-]+"
        rules = ((between, " "), STRIPPED)
        return Reading("[a-z]+|(?<=만) |[^ ]", "text", rules, end=END)

    def writing(self) -> Writing:
        """Return the rules of `decode` as data."""
        ones = "|".join(sorted(self._ones))
        hyphened = rf"(?<=ty)\n(?=(?:{ones})(?:\n|$))"
        english = r"(?<=[!-~])\n(?=[!-~])"
        return Writing(join="\n", rules=((hyphened, "-"), (english, " "), (r"\n", "")))


def _is_english(word: str) -> bool:
    return word.isascii() and bool(word.strip())


@cache
def _vocabulary() -> _Names:
    return _Names()


def _names_of(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Return the tokens of each language, `(N, L)`, in English without `and`."""
    hundreds = ["", *(f"{english(n)} hundred " for n in range(1, 10))]
    ones = ["", *(english(n) for n in range(1, 100))]
    below_1000 = ["zero", *(hundreds[n // 100] + ones[n % 100] for n in range(1, 1000))]
    below_10000 = [korean(n) for n in range(10_000)]
    return {
        "ko": _joined(numbers, below_10000, "만", blank=True),
        "en": _joined(numbers, below_1000, "thousand"),
    }


def _decoded(rows: Matrix) -> list[str]:
    every = torch.arange(len(rows))
    return [_vocabulary().decode(ids) for ids in rows.padded(every).tolist()]


def _joined(
    numbers: np.ndarray, names: Sequence[str], unit: str, *, blank: bool = False
) -> np.ndarray:
    """Return tokens `(N, NAME)`: how many units there are, the unit's name, then the rest.

    names: of the numbers below the unit. blank: as in Korean, where one unit is not counted, and a blank follows it.
    """
    vocabulary = _vocabulary()
    rows = [vocabulary.encode(name) for name in names]
    table = np.full((len(rows), max(map(len, rows))), PADDING, dtype=np.uint8)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    high, low = numbers // len(names), numbers % len(names)
    blank_id = vocabulary.number[" "] if blank else PADDING
    parts = [
        np.where((high > int(blank))[:, None], table[high], PADDING),
        np.where(high > 0, vocabulary.number[unit], PADDING)[:, None],
        np.where((high > 0) & (low > 0), blank_id, PADDING)[:, None],
        np.where(((low > 0) | (high == 0))[:, None], table[low], PADDING),
        np.full((len(numbers), NAME), PADDING),
    ]
    return padding_last(np.concatenate(parts, axis=1).astype(np.uint8))[:, :NAME]


def _held_out(numbers: np.ndarray) -> np.ndarray:
    return scattered(numbers) % np.uint64(HELD_OUT) == 0


ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
SMALL = [*ONES, "ten", "eleven", "twelve", *TEENS]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
DIGITS = "영일이삼사오육칠팔구"
PLACES = {1000: "천", 100: "백", 10: "십"}


def english(number: int) -> str:
    """Return the name of 0 ... 99, such as forty-two."""
    if number < len(SMALL):
        return SMALL[number]
    tens, ones = divmod(number, 10)
    name = TENS[tens - 2]
    return f"{name}-{SMALL[ones]}" if ones else name


def korean(number: int) -> str:
    """Return the name of 0 ... 9,999, such as 이백이십이. A one is written in the last place only."""
    name = ""
    for place, sign in PLACES.items():
        digit = number // place % 10
        if digit > 1:
            name += DIGITS[digit]
        if digit:
            name += sign
    ones = number % 10
    return name + DIGITS[ones] if ones or not name else name
