"""Columns of a terminal."""

from __future__ import annotations

import unicodedata

import pytest

from jarilab.cli.terminal import table
from jarilab.core.columns import left, right, terminal_width


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("", 0),
        ("head", 4),
        ("자리", 4),
        (unicodedata.normalize("NFD", "한글"), 4),
        ("e\u0301", 1),
        ("漢字 ｱ", 6),
        ("→·", 2),
    ],
)
def test_a_text_takes_the_columns_of_its_letters(text: str, width: int) -> None:
    assert terminal_width(text) == width


def test_columns_of_korean_names_are_aligned() -> None:
    lines = table([["run", "task", "seed"], ["runs/자리", "text", "1"], ["runs/long-name", "text", "2"]]).splitlines()
    starts = [
        terminal_width(line.partition(task)[0]) for line, task in zip(lines, ("task", "text", "text"), strict=True)
    ]
    assert starts == [16, 16, 16]


def test_a_text_that_is_too_long_is_kept() -> None:
    assert (left("자리", 3), right("자리", 3), left("자", 3), right("자", 3)) == ("자리", "자리", "자 ", " 자")
