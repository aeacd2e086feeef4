"""The data of a tokenizer: its pieces, merges and scores, validated when they come from a file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from jarilab.core.errors import UserError
from jarilab.data.text.vocabulary import SPECIAL, WHITE_SPACE

Trained = Literal["bpe", "unigram", "words", "characters"]
Kind = Trained | Literal["file"]

KINDS: tuple[Trained, ...] = get_args(Trained)

MAX_VOCABULARY = 1_000_000
FORMAT = "jari tokenizer 2"


def byte_letters() -> dict[str, int]:
    """Map each letter of GPT-2's alphabet to its byte: printable bytes to themselves, others from U+0100 on."""
    # Printable bytes of Latin-1 without the spaces U+0020 and U+00A0 and the soft hyphen U+00AD.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    shifted = {chr(256 + n): byte for n, byte in enumerate(others)}
    return {chr(byte): byte for byte in plain} | shifted


BYTE = byte_letters()
FALLBACK = {f"<0x{byte:02X}>": byte for byte in range(256)}
"""The pieces that spell unknown characters in bytes, as Hugging Face names them."""


@dataclass(frozen=True)
class Form:
    """How a text is prepared and cut before its pieces are looked up.

    lowercase: in lower case. nfc: in Unicode's composed form. at_blanks: words are cut at white space alone.
    byte_fallback: characters that the vocabulary lacks are spelled in bytes, which bpe and unigram always do.
    """

    lowercase: bool = False
    nfc: bool = True
    at_blanks: bool = False
    byte_fallback: bool = False


@dataclass(frozen=True)
class TokenizerData:
    """The data of a tokenizer. Pieces are in the order of their ids, which start after the special tokens.

    With `byte_fallback`, the first 256 pieces of words and characters are FALLBACK. library: of the kind `file`, whose
    pieces are the tokens of another program: its tokenizer.json, or its SentencePiece model in base64.
    """

    kind: Kind
    form: Form
    pieces: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()
    scores: tuple[float, ...] = ()
    library: str = ""

    @property
    def special(self) -> tuple[str, ...]:
        return SPECIAL if over_bytes(self.kind) else (*SPECIAL, "<unk>")

    @property
    def spells_bytes(self) -> bool:
        """Whether FALLBACK is among the pieces."""
        return self.form.byte_fallback and not over_bytes(self.kind)

    @property
    def required(self) -> tuple[str, ...]:
        """Pieces that the vocabulary has whatever its text."""
        return tuple(BYTE) if over_bytes(self.kind) else tuple(FALLBACK) * self.spells_bytes


def over_bytes(kind: Kind) -> bool:
    """Whether pieces are made of bytes, so no text is unknown."""
    return kind in ("bpe", "unigram")


def checked_vocabulary(data: Any) -> TokenizerData:
    """Return the vocabulary in untrusted data. Raises UserError for data that `to_json` cannot have written."""
    names = {"format", "kind", "form", "pieces", "merges", "scores"}
    is_file = isinstance(data, dict) and data.get("kind") == "file"
    names |= {"library"} if is_file else set()
    if not isinstance(data, dict) or set(data) != names or data["format"] != FORMAT:
        refuse(f"no {FORMAT!r}")
    kind, form = data["kind"], data["form"]
    is_form = isinstance(form, dict) and form.keys() == vars(Form()).keys()
    if not (is_file or kind in KINDS) or not is_form:
        refuse(f"the kind {kind!r:.40} of the form {form!r:.80}")
    if not all(isinstance(value, bool) for value in form.values()):
        refuse(f"the form {form!r:.80}")
    if not isinstance(data.get("library", ""), str):
        refuse("a file of another program that is not text")
    form = Form(**form)
    pieces = _checked_pieces(TokenizerData(kind, form, ()), data["pieces"])
    merges, scores = data["merges"], data["scores"]
    merges = _checked_merges(merges, set(pieces)) if kind == "bpe" else _none(merges)
    scores = _checked_scores(scores, len(pieces)) if kind == "unigram" else _none(scores)
    return TokenizerData(kind, form, pieces, merges, scores, data.get("library", ""))


def _checked_pieces(empty: TokenizerData, pieces: Any) -> tuple[str, ...]:
    if not _are_texts(pieces) or "" in pieces:
        refuse("pieces that are not text")
    unique = set(pieces)
    if not 0 < len(unique) == len(pieces) <= MAX_VOCABULARY:
        refuse("no pieces, too many, or a duplicate")
    letters = set().union(*pieces)
    if any("\ud800" <= letter <= "\udfff" for letter in letters):
        refuse("half a surrogate pair in a piece")
    if over_bytes(empty.kind) and not BYTE.keys() == letters <= unique:
        refuse("pieces that are not made of all 256 bytes")
    if empty.spells_bytes and tuple(pieces[:256]) != empty.required:
        refuse("pieces that do not begin with all 256 bytes")
    learned = pieces[256:] if empty.spells_bytes else pieces
    if empty.kind == "words" and any(set(piece[1:]) & set(WHITE_SPACE) for piece in learned):
        refuse("a word with a space")
    if empty.kind == "characters" and any(len(piece) != 1 for piece in learned):
        refuse("a piece of several characters")
    return tuple(pieces)


def _checked_merges(merges: Any, pieces: set[str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(merges, list) or not all(_is_merge(merge, pieces) for merge in merges):
        refuse("merges that do not fit the pieces")
    return tuple((one, two) for one, two in merges)


def _is_merge(merge: Any, pieces: set[str]) -> bool:
    if not _are_texts(merge) or len(merge) != 2:
        return False
    return {*merge, "".join(merge)} <= pieces


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _checked_scores(scores: Any, count: int) -> tuple[float, ...]:
    fits = isinstance(scores, list) and len(scores) == count
    if not fits or not all(isinstance(score, float) and math.isfinite(score) for score in scores):
        refuse("scores that do not fit the pieces")
    return tuple(scores)


def _none(values: Any) -> tuple[()]:
    if values != []:
        refuse("merges or scores that the kind does not have")
    return ()


def surrogate() -> UserError:
    """Return the error for half a surrogate pair, which is not text."""
    return UserError(
        "expected text; got half a surrogate pair, which UTF-8 cannot encode; read the text as UTF-8"
    )


def refuse(got: str) -> NoReturn:
    """Raise UserError for a file that is not a tokenizer's."""
    raise UserError(f"expected a tokenizer written by jarilab; got {got}; train it again") from None
