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
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import tokenizers as hf
from tokenizers import models, normalizers, pre_tokenizers, trainers

from jarilab.errors import UserError, unknown
from jarilab.text.vocabulary import END, FIRST, PADDING, SPECIAL

Kind = Literal["bpe", "unigram", "words", "characters"]

KINDS: tuple[Kind, ...] = get_args(Kind)

UNKNOWN = 3
"""The number of what a vocabulary of words or characters does not hold."""

UNKNOWN_SIGN = "\ufffd"
"""How it is written."""

TRAINING_BYTES = 16_000_000
"""A tokenizer is trained on the first 16 MB of text: what is held in memory grows with the text it has seen."""

LARGEST_VOCABULARY = 1_000_000
LARGEST_JSON = 64_000_000

_FORMAT = "jari tokenizer 1"
_LONGEST_PIECE = 24


def _byte_letters() -> dict[str, int]:
    """The byte that each letter of GPT-2's alphabet stands for: printable ones themselves, others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


_BYTE = _byte_letters()


@dataclass(frozen=True)
class _Vocabulary:
    """All that makes a tokenizer: the pieces in the order of their numbers, and how a text is cut into them."""

    kind: Kind
    lowercase: bool
    pieces: tuple[str, ...]
    merges: tuple[tuple[str, str], ...] = ()
    scores: tuple[float, ...] = ()

    @property
    def special(self) -> tuple[str, ...]:
        return SPECIAL if _over_bytes(self.kind) else (*SPECIAL, "<unk>")


class Tokenizer:
    """Text to token numbers and back. PADDING, FIRST and END are 0, 1 and 2; UNKNOWN is 3 where there is one.

    Made by `train`, `Tokenizer.from_json` or `Tokenizer.read`.
    """

    def __init__(self, vocabulary: _Vocabulary):
        self._vocabulary = vocabulary
        self._special = len(vocabulary.special)
        self._library = _library(vocabulary)

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
        return (
            f"Tokenizer({self.kind}, {len(self):,} tokens{', lowercase' if self.lowercase else ''})"
        )

    def encode(self, text: str) -> list[int]:
        """The numbers of a text, without FIRST or END. Raises UserError for half a surrogate pair, which is no text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The numbers of several texts, worked out on all cores. Raises as `encode`."""
        try:
            return [
                encoding.ids
                for encoding in self._library.encode_batch_fast(texts, add_special_tokens=False)
            ]
        except TypeError:
            raise _surrogate() from None

    def unknown(self, text: str) -> list[str]:
        """The pieces of a text that the vocabulary does not hold, each once, in the order of the text."""
        if _over_bytes(self.kind):
            return []
        pieces = zip(self.encode(text), self.pieces(text), strict=True)
        return list(dict.fromkeys(piece for number, piece in pieces if number == UNKNOWN))

    def pieces(self, text: str) -> list[str]:
        """What stands in the text for each of its tokens. Raises as `encode`."""
        try:
            encoding = self._library.encode(text, add_special_tokens=False)
        except TypeError:
            raise _surrogate() from None
        return [text[start:end] for start, end in encoding.offsets]

    def knows_not(self, ids: Sequence[int]) -> bool:
        """Whether one of these tokens is the unknown one, which bpe and unigram do not have."""
        return not _over_bytes(self.kind) and UNKNOWN in ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first END or PADDING.

        Exactly the text that was encoded for bpe and unigram, and for characters where all are known; an unknown one,
        and bytes that are no UTF-8, become U+FFFD. Words are put together with spaces.
        """
        pieces, special = self._vocabulary.pieces, self._special
        numbers = [
            n
            for n in takewhile(lambda number: number not in (PADDING, END), self._checked(ids))
            if n != FIRST
        ]
        parts = [
            pieces[number - special] if number >= special else UNKNOWN_SIGN for number in numbers
        ]
        if _over_bytes(self.kind):
            return bytes(_BYTE[letter] for part in parts for letter in part).decode(
                errors="replace"
            )
        return (" " if self.kind == "words" else "").join(parts)

    def names(self, ids: Sequence[int]) -> list[str]:
        r"""What a person sees for each token: its text, `\xed` for a byte that is no whole character, or <eos>."""
        return [self._names[number] for number in self._checked(ids)]

    def to_json(self) -> str:
        """All of the tokenizer as JSON, equal for equal tokenizers."""
        made = self._vocabulary
        data = {
            "format": _FORMAT,
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
            _foreign(f"{len(text):,} characters, beyond {LARGEST_JSON:,}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            _foreign("no JSON")
        return Tokenizer(_checked_vocabulary(data))

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
        if _over_bytes(self.kind):
            pieces = [
                bytes(_BYTE[letter] for letter in p).decode(errors="backslashreplace")
                for p in pieces
            ]
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
    empty = _Vocabulary(kind, lowercase, ())
    least = len(empty.special) + (len(_BYTE) if _over_bytes(kind) else 1)
    if not least <= size <= LARGEST_VOCABULARY:
        raise UserError(
            f"{kind} needs a size from {least} to {LARGEST_VOCABULARY:,}; got {size}; choose one between"
        )
    return Tokenizer(_TRAINERS[kind](_beginning(texts), size - len(empty.special), lowercase))


def _over_bytes(kind: Kind) -> bool:
    return kind in ("bpe", "unigram")


def _library(made: _Vocabulary) -> hf.Tokenizer:
    """The library's tokenizer for a vocabulary; nothing but its model, since names and decoding are done here."""
    names = [f" {name}" for name in made.special] + list(made.pieces)
    numbers = {name: number for number, name in enumerate(names)}
    match made.kind:
        case "bpe":
            model = models.BPE(numbers, list(made.merges))
        case "unigram":
            model = models.Unigram([(name, 0.0) for name in names[: len(SPECIAL)]] + _scored(made))
        case "words":
            model = models.WordLevel(numbers, unk_token=names[UNKNOWN])
        case "characters":
            model = models.BPE(numbers, [], unk_token=names[UNKNOWN])
    return _around(model, made.kind, made.lowercase)


def _scored(made: _Vocabulary) -> list[tuple[str, float]]:
    return list(zip(made.pieces, made.scores, strict=True))


def _around(model: models.Model, kind: Kind, lowercase: bool) -> hf.Tokenizer:
    """The library's tokenizer for a model, with what comes before it: lower case, and the cut at spaces."""
    library = hf.Tokenizer(model)
    if lowercase:
        library.normalizer = normalizers.Lowercase()
    if _over_bytes(kind):
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "words":
        library.pre_tokenizer = pre_tokenizers.Whitespace()
    return library


def _beginning(texts: Iterable[str]) -> Iterator[str]:
    """The texts up to TRAINING_BYTES. Raises UserError where they hold nothing but white space."""
    left, usable = TRAINING_BYTES, False
    for text in texts:
        try:
            text = text.encode()[:left].decode(errors="ignore")
        except UnicodeEncodeError:
            raise _surrogate() from None
        usable = usable or bool(text.strip())
        yield text
        left -= len(text.encode())
        # Less than the longest character: a cut inside it leaves nothing more to take.
        if left < 4:
            break
    if not usable:
        raise UserError(
            "expected text to train a tokenizer on; got none but white space; give it some text"
        )


def _trained(
    model: models.Model,
    trainer: trainers.Trainer,
    kind: Kind,
    texts: Iterator[str],
    lowercase: bool,
) -> Any:
    library = _around(model, kind, lowercase)
    library.train_from_iterator(texts, trainer=trainer)
    return json.loads(library.to_str())["model"]


def _bpe(texts: Iterator[str], size: int, lowercase: bool) -> _Vocabulary:
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=list(_BYTE)
    )
    found = _trained(models.BPE(), trainer, "bpe", texts, lowercase)
    pieces = tuple(sorted(found["vocab"], key=found["vocab"].get))
    return _Vocabulary(
        "bpe", lowercase, pieces, merges=tuple((one, two) for one, two in found["merges"])
    )


def _unigram(texts: Iterator[str], size: int, lowercase: bool) -> _Vocabulary:
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=list(_BYTE),
        max_piece_length=_LONGEST_PIECE,
    )
    found = _trained(models.Unigram(), trainer, "unigram", texts, lowercase)["vocab"]
    # The library adds the bytes it would have dropped just above the lowest score, 0.0001 apart and in the order of a
    # hash map, which differs from run to run; and the last bits of all scores depend on the order of its sums.
    floor = min(score for _, score in found)
    added = floor + 1e-4 * (len(_BYTE) + 1)
    scores = {p: round(floor if len(p) == 1 and score < added else score, 6) for p, score in found}
    ranked = sorted(scores, key=lambda piece: (-scores[piece], piece))
    # Near its alphabet's size the library keeps more than it was asked for.
    kept = {*_BYTE, *[piece for piece in ranked if len(piece) > 1][: size - len(_BYTE)]}
    pieces = tuple(piece for piece in ranked if piece in kept)
    return _Vocabulary(
        "unigram", lowercase, pieces, scores=tuple(scores[piece] for piece in pieces)
    )


def _words(texts: Iterator[str], size: int, lowercase: bool) -> _Vocabulary:
    trainer = trainers.WordLevelTrainer(vocab_size=size, show_progress=False)
    found = _trained(models.WordLevel(), trainer, "words", texts, lowercase)["vocab"]
    return _Vocabulary("words", lowercase, tuple(sorted(found, key=found.get)))


def _characters(texts: Iterator[str], size: int, lowercase: bool) -> _Vocabulary:
    lower = normalizers.Lowercase().normalize_str
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(lower(text) if lowercase else text)
    pieces = sorted(counts, key=lambda character: (-counts[character], character))
    return _Vocabulary("characters", lowercase, tuple(pieces[:size]))


_TRAINERS: dict[str, Callable[[Iterator[str], int, bool], _Vocabulary]] = {
    "bpe": _bpe,
    "unigram": _unigram,
    "words": _words,
    "characters": _characters,
}


def _checked_vocabulary(data: Any) -> _Vocabulary:
    """The vocabulary in data that may be anybody's. Raises UserError for what `to_json` cannot have written."""
    names = {"format", "kind", "lowercase", "pieces", "merges", "scores"}
    if not isinstance(data, dict) or set(data) != names or data["format"] != _FORMAT:
        _foreign(f"no {_FORMAT!r}")
    kind, lowercase = data["kind"], data["lowercase"]
    if kind not in KINDS or not isinstance(lowercase, bool):
        _foreign(f"the kind {kind!r:.40}")
    pieces = _checked_pieces(kind, data["pieces"])
    merges = (
        _checked_merges(data["merges"], set(pieces)) if kind == "bpe" else _none(data["merges"])
    )
    scores = (
        _checked_scores(data["scores"], len(pieces)) if kind == "unigram" else _none(data["scores"])
    )
    return _Vocabulary(kind, lowercase, pieces, merges, scores)


def _checked_pieces(kind: Kind, pieces: Any) -> tuple[str, ...]:
    if not isinstance(pieces, list) or not all(
        isinstance(piece, str) and piece for piece in pieces
    ):
        _foreign("pieces that are no texts")
    if not 0 < len(set(pieces)) == len(pieces) <= LARGEST_VOCABULARY:
        _foreign("no pieces, too many, or one twice")
    if any("\ud800" <= letter <= "\udfff" for piece in pieces for letter in piece):
        _foreign("half a surrogate pair in a piece")
    if _over_bytes(kind) and not _BYTE.keys() == {
        letter for piece in pieces for letter in piece
    } <= set(pieces):
        _foreign("pieces that are not made of all 256 bytes")
    if kind == "words" and any(" " in piece for piece in pieces):
        _foreign("a word with a space")
    if kind == "characters" and any(len(piece) != 1 for piece in pieces):
        _foreign("a piece of several characters")
    return tuple(pieces)


def _checked_merges(merges: Any, pieces: set[str]) -> tuple[tuple[str, str], ...]:
    if not isinstance(merges, list) or not all(_is_merge(merge, pieces) for merge in merges):
        _foreign("merges that do not fit the pieces")
    return tuple((one, two) for one, two in merges)


def _is_merge(merge: Any, pieces: set[str]) -> bool:
    if (
        not isinstance(merge, list)
        or len(merge) != 2
        or not all(isinstance(side, str) for side in merge)
    ):
        return False
    return {*merge, "".join(merge)} <= pieces


def _checked_scores(scores: Any, count: int) -> tuple[float, ...]:
    ok = isinstance(scores, list) and len(scores) == count
    if not ok or not all(isinstance(score, float) and math.isfinite(score) for score in scores):
        _foreign("scores that do not fit the pieces")
    return tuple(scores)


def _none(values: Any) -> tuple[()]:
    if values != []:
        _foreign("merges or scores that the kind does not have")
    return ()


def _surrogate() -> UserError:
    return UserError(
        "expected text; got half a surrogate pair, which no UTF-8 can hold; read the text as UTF-8"
    )


def _foreign(got: str) -> NoReturn:
    raise UserError(f"expected a tokenizer as jari writes it; got {got}; train it again") from None
