"""All that makes a tokenizer: the pieces it knows, and how a text is cut into them; checked where a file says so."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from jarilab.core.errors import UserError
from jarilab.data.text.vocabulary import SPECIAL

Kind = Literal["bpe", "unigram", "words", "characters"]

KINDS: tuple[Kind, ...] = get_args(Kind)

LARGEST_VOCABULARY = 1_000_000
FORMAT = "jari tokenizer 1"


def byte_letters() -> dict[str, int]:
    """The byte that each letter of GPT-2's alphabet stands for: printable ones themselves, others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    moved = {chr(256 + n): byte for n, byte in enumerate(others)}
    return {chr(byte): byte for byte in plain} | moved


BYTE = byte_letters()


@dataclass(frozen=True)
class Vocabulary:
    """All that makes a tokenizer: the pieces in the order of their numbers, and how a text is cut into them."""

    kind: Kind
    lowercase: bool
    pieces: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()
    scores: tuple[float, ...] = ()

    @property
    def special(self) -> tuple[str, ...]:
        return SPECIAL if over_bytes(self.kind) else (*SPECIAL, "<unk>")


def over_bytes(kind: Kind) -> bool:
    """Whether its pieces are made of bytes, so that nothing is unknown."""
    return kind in ("bpe", "unigram")


def checked_vocabulary(data: Any) -> Vocabulary:
    """The vocabulary in data that may be anybody's. Raises UserError for what `to_json` cannot have written."""
    names = {"format", "kind", "lowercase", "pieces", "merges", "scores"}
    if not isinstance(data, dict) or set(data) != names or data["format"] != FORMAT:
        foreign(f"no {FORMAT!r}")
    kind, lowercase = data["kind"], data["lowercase"]
    if kind not in KINDS or not isinstance(lowercase, bool):
        foreign(f"the kind {kind!r:.40}")
    pieces = _checked_pieces(kind, data["pieces"])
    merges, scores = data["merges"], data["scores"]
    merges = _checked_merges(merges, set(pieces)) if kind == "bpe" else _none(merges)
    scores = _checked_scores(scores, len(pieces)) if kind == "unigram" else _none(scores)
    return Vocabulary(kind, lowercase, pieces, merges, scores)


def _checked_pieces(kind: Kind, pieces: Any) -> tuple[str, ...]:
    if not _are_texts(pieces) or "" in pieces:
        foreign("pieces that are no texts")
    every = set(pieces)
    if not 0 < len(every) == len(pieces) <= LARGEST_VOCABULARY:
        foreign("no pieces, too many, or one twice")
    letters = set().union(*pieces)
    if any("\ud800" <= letter <= "\udfff" for letter in letters):
        foreign("half a surrogate pair in a piece")
    if over_bytes(kind) and not BYTE.keys() == letters <= every:
        foreign("pieces that are not made of all 256 bytes")
    if kind == "words" and any(" " in piece for piece in pieces):
        foreign("a word with a space")
    if kind == "characters" and any(len(piece) != 1 for piece in pieces):
        foreign("a piece of several characters")
    return tuple(pieces)


def _checked_merges(merges: Any, pieces: set[str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(merges, list) or not all(_is_merge(merge, pieces) for merge in merges):
        foreign("merges that do not fit the pieces")
    return tuple((one, two) for one, two in merges)


def _is_merge(merge: Any, pieces: set[str]) -> bool:
    if not _are_texts(merge) or len(merge) != 2:
        return False
    return {*merge, "".join(merge)} <= pieces


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _checked_scores(scores: Any, count: int) -> tuple[float, ...]:
    fits = isinstance(scores, list) and len(scores) == count
    if not fits or not all(map(_is_finite, scores)):
        foreign("scores that do not fit the pieces")
    return tuple(scores)


def _is_finite(score: Any) -> bool:
    return isinstance(score, float) and math.isfinite(score)


def _none(values: Any) -> tuple[()]:
    if values != []:
        foreign("merges or scores that the kind does not have")
    return ()


def surrogate() -> UserError:
    """The error for half a surrogate pair, which is no text."""
    return UserError(
        "expected text; got half a surrogate pair, which no UTF-8 can hold; read the text as UTF-8"
    )


def foreign(got: str) -> NoReturn:
    """Raises UserError for a file that is no tokenizer's."""
    raise UserError(f"expected a tokenizer as jari writes it; got {got}; train it again") from None
