"""Tokenizers: text of any language to numbers and back, of four kinds behind one interface.

`bpe` is byte-level byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909; over bytes as in GPT-2), `unigram` the
language model of Kudo 2018 (arXiv:1804.10959), over the same bytes: both write any text and know no unknown. `words`
splits at white space and punctuation, `characters` at each code point; what they never saw is UNKNOWN.

Training and encoding are done by Hugging Face's `tokenizers`. The special tokens are never registered with it, and
their inner names hold a space, which no piece of any kind can hold beside other characters: so no text a person types
becomes one of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError, unknown
from jarilab.data.text.pieces import (
    BYTE,
    FORMAT,
    KINDS,
    LARGEST_VOCABULARY,
    Kind,
    Vocabulary,
    checked_vocabulary,
    foreign,
    over_bytes,
    surrogate,
)
from jarilab.data.text.spelling import BYTE_LEVEL, CHARACTERS, WORDS, Reading, Writing
from jarilab.data.text.training import TRAINERS, around, beginning, hugging_face
from jarilab.data.text.vocabulary import END, FIRST, PADDING, SPECIAL

UNKNOWN = 3
"""The number of what a vocabulary of words or characters does not hold."""

UNKNOWN_SIGN = "\ufffd"
"""How it is written."""

LARGEST_JSON = 64_000_000

CUTS = {"bpe": BYTE_LEVEL, "unigram": BYTE_LEVEL, "words": WORDS, "characters": CHARACTERS}
"""What the library cuts a text into first, as a page does it: see `jarilab.data.text.spelling`."""


class Tokenizer:
    """Text to token numbers and back. PADDING, FIRST and END are 0, 1 and 2; UNKNOWN is 3 where there is one.

    Made by `train`, `Tokenizer.from_json` or `Tokenizer.read`.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._special = len(vocabulary.special)
        self._library = library(vocabulary)

    @property
    def kind(self) -> Kind:
        return self._vocabulary.kind

    @property
    def lowercase(self) -> bool:
        return self._vocabulary.lowercase

    def __len__(self) -> int:
        return self._special + len(self._vocabulary.pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self._vocabulary == other._vocabulary

    def __hash__(self) -> int:
        return hash(self._vocabulary)

    def __repr__(self) -> str:
        lowercase = ", lowercase" if self.lowercase else ""
        return f"Tokenizer({self.kind}, {len(self):,} tokens{lowercase})"

    def encode(self, text: str) -> list[int]:
        """The numbers of a text, without FIRST or END. Raises UserError for half a surrogate pair, which is no text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The numbers of several texts, worked out on all cores. Raises as `encode`."""
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            raise surrogate() from None
        return [encoding.ids for encoding in encodings]

    def unknown(self, text: str) -> list[str]:
        """The pieces of a text that the vocabulary does not hold, each once, in the order of the text."""
        if over_bytes(self.kind):
            return []
        pairs = zip(self.encode(text), self.pieces(text), strict=True)
        pieces = [piece for number, piece in pairs if number == UNKNOWN]
        return list(dict.fromkeys(pieces))

    def pieces(self, text: str) -> list[str]:
        """What stands in the text for each of its tokens. Raises as `encode`."""
        try:
            encoding = self._library.encode(text, add_special_tokens=False)
        except TypeError:
            raise surrogate() from None
        return [text[start:end] for start, end in encoding.offsets]

    def knows_not(self, ids: Sequence[int]) -> bool:
        """Whether one of these tokens is the unknown one, which bpe and unigram do not have."""
        return not over_bytes(self.kind) and UNKNOWN in ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first END or PADDING.

        Exactly the text that was encoded for bpe and unigram, and for characters where all are known; an unknown one,
        and bytes that are no UTF-8, become U+FFFD. Words are put together with spaces.
        """
        pieces, special = self._vocabulary.pieces, self._special
        parts = []
        for number in self._checked(ids):
            if number in (PADDING, END):
                break
            if number != FIRST:
                parts.append(pieces[number - special] if number >= special else UNKNOWN_SIGN)
        if over_bytes(self.kind):
            return _bytes_of("".join(parts)).decode(errors="replace")
        return (" " if self.kind == "words" else "").join(parts)

    def names(self, ids: Sequence[int]) -> list[str]:
        r"""How a person reads each token: its text, `\xed` for a byte that is no whole character, or <eos>."""
        return [self._names[number] for number in self._checked(ids)]

    def reading(self) -> Reading:
        """What `encode` does."""
        made = self._vocabulary
        unknown = None if over_bytes(made.kind) else UNKNOWN
        lowercase = "characters" if made.lowercase else ""
        return Reading(
            CUTS[made.kind],
            lowercase,
            kind=made.kind,
            special=self._special,
            pieces=made.pieces,
            merges=made.merges,
            scores=made.scores,
            unknown=unknown,
        )

    def writing(self) -> Writing:
        """What `decode` does."""
        bytewise = over_bytes(self.kind)
        return Writing(
            join=" " if self.kind == "words" else "",
            special=self._special,
            pieces=self._vocabulary.pieces,
            skipped=(FIRST,),
            unknown=None if bytewise else UNKNOWN,
            over_bytes=bytewise,
        )

    def to_json(self) -> str:
        """All of the tokenizer as JSON, equal for equal tokenizers."""
        made = self._vocabulary
        data = {
            "format": FORMAT,
            "kind": made.kind,
            "lowercase": made.lowercase,
            "pieces": made.pieces,
            "merges": made.merges,
            "scores": made.scores,
        }
        return json.dumps(data, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Tokenizer:
        """The tokenizer that `to_json` wrote. Raises UserError for anything else."""
        if len(text) > LARGEST_JSON:
            foreign(f"{len(text):,} characters, beyond {LARGEST_JSON:,}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            foreign("no JSON")
        return Tokenizer(checked_vocabulary(data))

    @staticmethod
    def read(path: Path) -> Tokenizer:
        """The tokenizer in a file that a run keeps. Raises UserError."""
        try:
            return Tokenizer.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} cannot be read: {error}; the run cannot answer without it"
            ) from None

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of `to_json`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def _names(self) -> list[str]:
        pieces = self._vocabulary.pieces
        if over_bytes(self.kind):
            pieces = [_bytes_of(piece).decode(errors="backslashreplace") for piece in pieces]
        return [*self._vocabulary.special, *pieces]

    def _checked(self, ids: Sequence[int]) -> Sequence[int]:
        strange = next((number for number in ids if not 0 <= number < len(self)), None)
        if strange is not None:
            raise UserError(
                f"expected token numbers from 0 to {len(self) - 1}; got {strange}; use the tokenizer they are of"
            )
        return ids


def train(kind: str, texts: Iterable[str], *, size: int, lowercase: bool = False) -> Tokenizer:
    """A tokenizer of at most `size` tokens, special ones included, from the first 16 MB (TRAINING_BYTES) of `texts`.

    The same texts give the same tokenizer, on any number of threads. Raises UserError for an unknown kind, a size that
    cannot be, or texts without anything but white space.
    """
    if kind not in KINDS:
        raise unknown("tokenizer", kind, KINDS)
    empty = Vocabulary(kind, lowercase, ())
    least = len(empty.special) + (len(BYTE) if over_bytes(kind) else 1)
    if not least <= size <= LARGEST_VOCABULARY:
        raise UserError(
            f"{kind} needs a size from {least} to {LARGEST_VOCABULARY:,}; got {size}; choose one between"
        )
    trainer = TRAINERS[kind]
    return Tokenizer(trainer(beginning(texts), size - len(empty.special), lowercase))


def _bytes_of(letters: str) -> bytes:
    return bytes([BYTE[letter] for letter in letters])


def library(made: Vocabulary, before: str = " ") -> Any:
    """The library's tokenizer for a vocabulary; nothing but its model, since names and decoding are done here. before:
    what stands before the names of special tokens."""
    names = [f"{before}{name}" for name in made.special] + list(made.pieces)
    numbers = {name: number for number, name in enumerate(names)}
    models = hugging_face().models
    match made.kind:
        case "bpe":
            model = models.BPE(numbers, list(made.merges))
        case "unigram":
            special = [(name, 0.0) for name in names[: len(SPECIAL)]]
            scored = list(zip(made.pieces, made.scores, strict=True))
            model = models.Unigram(special + scored)
        case "words":
            model = models.WordLevel(numbers, unk_token=names[UNKNOWN])
        case "characters":
            model = models.BPE(numbers, [], unk_token=names[UNKNOWN])
    return around(model, made.kind, made.lowercase)
