"""How text becomes tokens and tokens text, as plain data: for a page that runs a model where there is no Python.

Patterns are JavaScript's, with the flags `gu`: `pages/kit/static/spelling.js` follows them, and a test holds it against
Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jarilab.data.text.pieces import Kind
from jarilab.data.text.vocabulary import SPECIAL

Rule = tuple[str, str]
"""A pattern, and what stands in the place of each of its matches."""

SPACE = r"\p{White_Space}\x1c-\x1f"
"""What `str.isspace` and `\\s` of `re` call white space, for the inside of brackets."""
STRIPPED: Rule = (f"^[{SPACE}]+|[{SPACE}]+$", "")
"""`str.strip`."""

CHARACTERS = "[^]"
PARTED = f"[^{SPACE}]+"
"""`str.split`."""
_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"
WORDS = rf"[{_WORD}]+|[^{_WORD}\p{{White_Space}}]+"
"""Words, and what stands between them but white space."""
BYTE_LEVEL = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|"
    r"\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+"
)
"""GPT-2's pieces, which hold the space before them."""


@dataclass(frozen=True)
class Reading:
    """How a text becomes tokens.

    It is put into lower case (`lowercase`: the whole `text`, before the rules, or afterwards each of its `characters`
    by itself), changed by the rules in their order, and cut into the matches of `cut`. A match is a piece; or its bytes
    are joined to pieces, in `bpe` by `merges`, the first of them first, in `unigram` to the highest sum of `scores`.

    pieces: by number, behind `special` numbers that no text has; None where they are the names of the tokens.
    unknown: the number of what is no piece; None where that is an error. end: what stands behind each text.
    """

    cut: str
    lowercase: Literal["", "text", "characters"] = ""
    rules: tuple[Rule, ...] = ()
    kind: Kind = "words"
    special: int = len(SPECIAL)
    pieces: tuple[str, ...] | None = None
    merges: tuple[tuple[str, str], ...] = ()
    scores: tuple[float, ...] = ()
    unknown: int | None = None
    end: int | None = None


@dataclass(frozen=True)
class Writing:
    """How tokens become a text: those behind `special` are pieces, or have their names; `join` stands between them, and
    the rules change the whole.

    skipped: numbers that are not written. unknown: the number of what is copied from where was looked most. over_bytes:
    the letters of pieces stand for bytes.
    """

    join: str = ""
    rules: tuple[Rule, ...] = ()
    special: int = len(SPECIAL)
    pieces: tuple[str, ...] | None = None
    skipped: tuple[int, ...] = ()
    unknown: int | None = None
    over_bytes: bool = False


@dataclass(frozen=True)
class Spelling:
    """Both of them, of a task; None for what only Python can do."""

    read: Reading | None = None
    write: Writing | None = None
