"""Tokenization as plain data, for a page that runs a model without Python.

Patterns are JavaScript's, with the flags `gu`. `pages/kit/static/spelling.js` applies them; a test compares it with
Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jarilab.data.text.pieces import Kind
from jarilab.data.text.vocabulary import SPECIAL, WHITE_SPACE

Rule = tuple[str, str]
"""A pattern and the replacement of its matches."""

SPACE = r"\p{White_Space}\x1c-\x1f"
"""White space of `str.isspace` and of `\\s` in `re`, for use inside brackets."""
STRIPPED: Rule = (f"^[{SPACE}]+|[{SPACE}]+$", "")
"""`str.strip`."""

UNKNOWN_SIGN = "\ufffd"
"""The text of an unknown token."""

CHARACTERS = "[^]"
PARTED = f"[^{SPACE}]+"
"""`str.split`."""
_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"
WORDS = rf" ?[{_WORD}]+| ?[^{_WORD}\p{{White_Space}}]+|\p{{White_Space}}"
"""Words and the text between them, each with the space before it, and other white space."""
AT_BLANKS = (
    r"<(?=0x[0-9A-F]{2}>)| ?[^\p{White_Space}]+|\p{White_Space}"  # no text is a piece of FALLBACK
)
"""What is between white space, with the space before it, and other white space."""
_INDENT = WHITE_SPACE.replace("\n", "")
_LINE = f"(?:^|(?<=\n)){{}}(?=[{_INDENT}]*[^{WHITE_SPACE}])"
INDENTED: Rule = (_LINE.format(""), " ")
"""Puts a space before each line that is not blank, so that its first word is as others."""
DEDENTED: Rule = (_LINE.format(" "), "")
"""The inverse of INDENTED."""
BYTE_LEVEL = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|"
    r"\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+"
)
"""GPT-2's pieces, which include the space before them."""


@dataclass(frozen=True)
class Reading:
    """Rules that turn a text into tokens.

    The text is put into Unicode's composed form (`nfc`) and into lower case (`lowercase`: the whole `text` before the
    rules, or each of its `characters` after them). The rules then apply in order, and the matches of `cut` are taken. A
    match is a piece, or its bytes are joined to pieces: in `bpe` by `merges` in order, in `unigram` to the highest sum
    of `scores`. byte_fallback: an unknown match is its characters, and an unknown character its bytes.

    pieces: by id, after the `special` ids; None if they are the names of the tokens. unknown: the id of an unknown
    piece; None if that is an error. end: the id after each text.
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
    nfc: bool = False
    byte_fallback: bool = False


@dataclass(frozen=True)
class Writing:
    """Rules that turn tokens into a text: pieces joined by `join`, then the rules.

    skipped: ids that are not written. unknown: the id that is replaced by the source token with the largest weight, or
    by `unknown_text`. over_bytes: whether the letters of pieces stand for bytes. byte_fallback: whether pieces such as
    <0x41> are bytes; runs of them that are not UTF-8 become as many U+FFFD.
    """

    join: str = ""
    rules: tuple[Rule, ...] = ()
    special: int = len(SPECIAL)
    pieces: tuple[str, ...] | None = None
    skipped: tuple[int, ...] = ()
    unknown: int | None = None
    unknown_text: str = UNKNOWN_SIGN
    over_bytes: bool = False
    byte_fallback: bool = False


@dataclass(frozen=True)
class Spelling:
    """The rules of a task in both directions; None where only Python can do it."""

    read: Reading | None = None
    write: Writing | None = None
