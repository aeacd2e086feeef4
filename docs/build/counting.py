"""A text that can be made anywhere: people count by ones, twos and threes. Its readers look back to count."""

from __future__ import annotations

import random
from pathlib import Path

from jarilab.tasks.number_words import english

LINES, MOST, SEED = 12_000, 99, 1


def line(numbers: random.Random) -> str:
    """Such as `four, six, eight, ten`: a first number and a step by chance, the rest follows."""
    step, count = numbers.choice((1, 2, 3)), numbers.randint(4, 8)
    first = numbers.randint(0, MOST - step * (count - 1))
    return ", ".join(english(first + step * index) for index in range(count))


def write(path: Path) -> None:
    """The text, the same whenever it is made."""
    numbers = random.Random(SEED)
    path.write_text("".join(f"{line(numbers)}\n" for _ in range(LINES)), encoding="utf-8")
