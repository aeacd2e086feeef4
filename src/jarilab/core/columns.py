"""Text in columns of a terminal, where a Korean, Chinese or Japanese letter takes two and a combining mark none."""

from __future__ import annotations

import unicodedata


def terminal_width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return sum(map(_columns, text))


def left(text: str, width: int) -> str:
    """The text with spaces behind it, up to this many columns."""
    return text + " " * (width - terminal_width(text))


def right(text: str, width: int) -> str:
    """The text with spaces before it, up to this many columns."""
    return " " * (width - terminal_width(text)) + text


def _columns(letter: str) -> int:
    # Vowels and final consonants of decomposed Hangul are drawn in the square of the first consonant.
    if unicodedata.category(letter) in ("Mn", "Me", "Cf") or "\u1160" <= letter <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
