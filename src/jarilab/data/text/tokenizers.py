"""Tokenizers of four kinds behind one interface.

`bpe` is byte-level byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909; over bytes as in GPT-2). `unigram` is
the language model of Kudo 2018 (arXiv:1804.10959) over the same bytes. Both encode any text and have no unknown token.
`words` splits at white space and punctuation, `characters` at each code point. They map unseen pieces to UNKNOWN.

Hugging Face's `tokenizers` trains and encodes. Special tokens are not registered with it. Their internal names contain
a space, which no piece contains beside other characters, so no input text can become a special token.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jarilab.core.errors import UserError, unknown
from jarilab.data.text import tokenizer_files
from jarilab.data.text.pieces import (
    BYTE,
    FORMAT,
    KINDS,
    MAX_VOCABULARY,
    Kind,
    TokenizerData,
    checked_vocabulary,
    over_bytes,
    refuse,
    surrogate,
)
from jarilab.data.text.spelling import BYTE_LEVEL, CHARACTERS, WORDS, Reading, Writing
from jarilab.data.text.training import (
    TRAINERS,
    tokenizers_library,
    training_sample,
    with_pre_tokenizer,
)
from jarilab.data.text.vocabulary import END, FIRST, PADDING, SPECIAL

UNKNOWN = 3
"""The id of pieces that a vocabulary of words or characters lacks."""

UNKNOWN_SIGN = "\ufffd"
"""The text of an unknown token."""

MAX_JSON_CHARACTERS = 64_000_000
COUNTED_CHARACTERS = 1_000_000
"""Characters of a text in which unknown pieces are counted."""

CUTS = {"bpe": BYTE_LEVEL, "unigram": BYTE_LEVEL, "words": WORDS, "characters": CHARACTERS}
"""The pattern that cuts a text before its pieces are found, in JavaScript: see `jarilab.data.text.spelling`."""


class Tokenizer:
    """Turns text into token ids and back. PADDING, FIRST and END are 0, 1 and 2; UNKNOWN, if any, is 3.

    Create one with `train`, `Tokenizer.from_json`, `Tokenizer.read` or `from_file`.
    """

    def __init__(self, vocabulary: TokenizerData):
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
        """Return the ids of a text, without FIRST or END. Raises UserError for half a surrogate pair."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of several texts, computed on all cores. Raises as `encode` does."""
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):  # errors of the libraries for half a surrogate pair
            raise surrogate() from None
        if self.kind != "file":
            return [encoding.ids for encoding in encodings]
        return [self._from_file(encoding.ids) for encoding in encodings]

    def _from_file(self, ids: list[int]) -> list[int]:
        """The ids of tokens that another program numbers."""
        unknown = tokenizer_files.unknown_id(self._library)
        return [UNKNOWN if number == unknown else number + self._special for number in ids]

    def unknown(self, text: str) -> list[str]:
        """Return the pieces of a text that the vocabulary lacks, each once, in order."""
        if over_bytes(self.kind):
            return []
        pairs = zip(self.encode(text), self.pieces(text), strict=True)
        pieces = [piece for number, piece in pairs if number == UNKNOWN]
        return list(dict.fromkeys(pieces))

    def known_form(self, text: str) -> str:
        """Return the Unicode form of a text, NFC or NFD, in which the vocabulary lacks fewest pieces.

        The text itself, if it lacks none. Korean of a Mac is often decomposed (NFD).
        """
        forms = [text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))]
        return min(forms, key=lambda form: len(self.unknown(form)))

    def pieces(self, text: str) -> list[str]:
        """Return the part of the text that each token stands for. Raises as `encode` does."""
        try:
            encoding = self._library.encode(text, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            raise surrogate() from None
        return [text[start:end] for start, end in encoding.offsets]

    def has_unknown(self, ids: Sequence[int] | np.ndarray) -> bool:
        """Whether one of these ids is UNKNOWN, which bpe and unigram lack."""
        return not over_bytes(self.kind) and UNKNOWN in ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text up to the first END or PADDING.

        For bpe and unigram, and for known characters, this is exactly the encoded text. Unknown pieces and bytes that
        are not UTF-8 become U+FFFD. Words are joined with spaces.
        """
        pieces, special = self._vocabulary.pieces, self._special
        checked = self._checked(ids)
        ends = (place for place, number in enumerate(checked) if number in (PADDING, END))
        written = [number for number in checked[: next(ends, None)] if number != FIRST]
        if self.kind == "file":
            return tokenizer_files.decode(self._library, written, special)
        parts = []
        for number in written:
            parts.append(pieces[number - special] if number >= special else UNKNOWN_SIGN)
        if over_bytes(self.kind):
            return _bytes_of("".join(parts)).decode(errors="replace")
        return (" " if self.kind == "words" else "").join(parts)

    def names(self, ids: Sequence[int]) -> list[str]:
        r"""Return each token as text for people; `\xed` for a byte that is not a whole character, or <eos>."""
        return [self._names[number] for number in self._checked(ids)]

    def reading(self) -> Reading | None:
        """Return the rules of `encode` as data; None for the file of another program."""
        vocabulary = self._vocabulary
        if vocabulary.kind == "file":
            return None
        unknown = None if over_bytes(vocabulary.kind) else UNKNOWN
        lowercase = "characters" if vocabulary.lowercase else ""
        return Reading(
            CUTS[vocabulary.kind],
            lowercase,
            kind=vocabulary.kind,
            special=self._special,
            pieces=vocabulary.pieces,
            merges=vocabulary.merges,
            scores=vocabulary.scores,
            unknown=unknown,
        )

    def writing(self) -> Writing | None:
        """Return the rules of `decode` as data; None for the file of another program."""
        if self.kind == "file":
            return None
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
        """Return the tokenizer as JSON, equal for equal tokenizers."""
        vocabulary = self._vocabulary
        data = {
            "format": FORMAT,
            "kind": vocabulary.kind,
            "lowercase": vocabulary.lowercase,
            "pieces": vocabulary.pieces,
            "merges": vocabulary.merges,
            "scores": vocabulary.scores,
            **({"library": vocabulary.library} if vocabulary.kind == "file" else {}),
        }
        return json.dumps(data, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Tokenizer:
        """Return the tokenizer that `to_json` wrote. Raises UserError for anything else."""
        if len(text) > MAX_JSON_CHARACTERS:
            refuse(f"{len(text):,} characters, beyond {MAX_JSON_CHARACTERS:,}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            refuse("no JSON")
        return Tokenizer(checked_vocabulary(data))

    @staticmethod
    def read(path: Path) -> Tokenizer:
        """Read the tokenizer of a run from a file. Raises UserError."""
        try:
            return Tokenizer.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} cannot be read: {error}; the run needs it to answer; restore the file"
            ) from None

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of `to_json`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def _names(self) -> list[str]:
        pieces = self._vocabulary.pieces
        if over_bytes(self.kind) or tokenizer_files.is_over_bytes(self._library):
            pieces = [_bytes_of(piece).decode(errors="backslashreplace") for piece in pieces]
        return [*self._vocabulary.special, *pieces]

    def _checked(self, ids: Sequence[int]) -> Sequence[int]:
        out_of_range = next((number for number in ids if not 0 <= number < len(self)), None)
        if out_of_range is not None:
            raise UserError(
                f"expected token ids from 0 to {len(self) - 1}; got {out_of_range}; use the tokenizer that encoded them"
            )
        return ids


@dataclass(frozen=True)
class UnknownPieces:
    """Pieces of a text that a vocabulary lacks: their share of all, and their mean length."""

    share: float
    characters: float
    bytes: float

    @staticmethod
    def of(texts: Iterable[str], tokenizer: Tokenizer) -> UnknownPieces:
        """Count in the first million characters of the texts."""
        tokens, missing, seen = 0, [], 0
        for text in texts if not over_bytes(tokenizer.kind) else ():
            pieces = zip(tokenizer.encode(text), tokenizer.pieces(text), strict=True)
            for number, piece in pieces:
                tokens += 1
                if number == UNKNOWN:
                    missing.append(piece)
            seen += len(text)
            if seen > COUNTED_CHARACTERS:
                break
        if not missing:
            return UnknownPieces(0.0, 0.0, 0.0)
        count, joined = len(missing), "".join(missing)
        return UnknownPieces(count / tokens, len(joined) / count, len(joined.encode()) / count)

    def notice(self, where: str) -> list[str]:
        """What to print about them; nothing if there are none."""
        if not self.share:
            return []
        return [
            f"{where}: {self.share:.2%} of the tokens are unknown to the vocabulary; loss and perplexity count each as "
            "one token, so do not compare them with another vocabulary; --tokenizer bpe knows every text"
        ]


def train(kind: str, texts: Iterable[str], *, size: int, lowercase: bool = False) -> Tokenizer:
    """Train a tokenizer of at most `size` tokens, special ones included, on the first TRAINING_BYTES of `texts`.

    The same texts give the same tokenizer with any number of threads. Raises UserError for an unknown kind, an
    impossible size, or texts of white space only.
    """
    if kind not in KINDS:
        raise unknown("tokenizer", kind, KINDS)
    empty = TokenizerData(kind, lowercase, ())
    min_size = len(empty.special) + (len(BYTE) if over_bytes(kind) else 1)
    if not min_size <= size <= MAX_VOCABULARY:
        raise UserError(
            f"{kind} needs a size from {min_size} to {MAX_VOCABULARY:,}; got {size}; choose a size in this range"
        )
    trainer = TRAINERS[kind]
    return Tokenizer(trainer(training_sample(texts), size - len(empty.special), lowercase))


def from_file(path: str, side: str = "source") -> Tokenizer:
    """The tokenizer in a tokenizer.json, a SentencePiece model, or the folder of a run or of transformers.

    side: `source` or `target`, where a folder has one for each. Raises UserError for any other file.
    """
    file = tokenizer_files.locate(Path(path), side)
    if file.name.startswith("vocabulary"):
        return Tokenizer.read(file)
    text, pieces, lowercase = tokenizer_files.read(file)
    data = {"format": FORMAT, "kind": "file", "lowercase": lowercase, "pieces": pieces}
    data |= {"merges": [], "scores": [], "library": text}
    return Tokenizer(checked_vocabulary(data))


def _bytes_of(letters: str) -> bytes:
    # Special tokens of another program may have letters beyond those of bytes.
    return b"".join(bytes([BYTE[each]]) if each in BYTE else each.encode() for each in letters)


def library(vocabulary: TokenizerData, before: str = " ") -> Any:
    """Return the library's tokenizer for a vocabulary, for encoding. before: prefix of special tokens' names."""
    names = [f"{before}{name}" for name in vocabulary.special] + list(vocabulary.pieces)
    numbers = {name: number for number, name in enumerate(names)}
    models = tokenizers_library().models
    match vocabulary.kind:
        case "file":
            return tokenizer_files.library(vocabulary.library)
        case "bpe":
            model = models.BPE(numbers, list(vocabulary.merges))
        case "unigram":
            special = [(name, 0.0) for name in names[: len(SPECIAL)]]
            scored = list(zip(vocabulary.pieces, vocabulary.scores, strict=True))
            model = models.Unigram(special + scored)
        case "words":
            model = models.WordLevel(numbers, unk_token=names[UNKNOWN])
        case "characters":
            # BPE without merges: every character is a piece.
            model = models.BPE(numbers, [], unk_token=names[UNKNOWN])
    return with_pre_tokenizer(model, vocabulary.kind, vocabulary.lowercase)
