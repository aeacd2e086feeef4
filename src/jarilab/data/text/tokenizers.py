"""Tokenizers of four kinds behind one interface.

`bpe` is byte-level byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909; over bytes as in GPT-2). `unigram` is
the language model of Kudo 2018 (arXiv:1804.10959) over the same bytes. Both encode any text and have no unknown token.
`words` splits at white space and punctuation, `characters` at each code point. They map unseen pieces to UNKNOWN, or
spell them in bytes. A word includes the space before it, so no kind loses spacing.

Hugging Face's `tokenizers` trains and encodes. Special tokens are not registered with it. Their internal names begin
with a line end, which no piece contains beside other characters, so no input text can become a special token.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from jarilab.core.bounds import run_bounded
from jarilab.core.errors import UserError, as_user_error, unknown
from jarilab.core.storage.mapped import release
from jarilab.data.text import tokenizer_files
from jarilab.data.text.pieces import (
    BYTE,
    FALLBACK,
    FORMAT,
    KINDS,
    MAX_VOCABULARY,
    Form,
    Kind,
    TokenizerData,
    checked_vocabulary,
    over_bytes,
    refuse,
    surrogate,
)
from jarilab.data.text.spelling import (
    AT_BLANKS,
    BYTE_LEVEL,
    CHARACTERS,
    DEDENTED,
    INDENTED,
    UNKNOWN_SIGN,
    WORDS,
    Reading,
    Writing,
)
from jarilab.data.text.training import (
    TRAINERS,
    tokenizers_library,
    training_sample,
    with_pre_tokenizer,
)
from jarilab.data.text.vocabulary import END, FIRST, PADDING, SPECIAL

UNKNOWN = 3
"""The id of pieces that a vocabulary of words or characters lacks."""

MAX_JSON_CHARACTERS = 64_000_000
COUNTED_CHARACTERS = 1_000_000
_IDS_AT_ONCE = 1 << 18
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
    def form(self) -> Form:
        return self._vocabulary.form

    @property
    def knows_all(self) -> bool:
        """Whether no text has unknown tokens."""
        if self.kind == "file":
            return tokenizer_files.unknown_id(self._library) is None
        return over_bytes(self.kind) or self.form.byte_fallback

    @property
    def merged_from(self) -> dict[int, tuple[int, int]]:
        """The ids of the two tokens that BPE merged into a token, by its id."""
        ids = {piece: id_ for id_, piece in enumerate(self._vocabulary.pieces, self._special)}
        merges = reversed(self._vocabulary.merges)  # the first merge into a piece counts
        return {ids[left + right]: (ids[left], ids[right]) for left, right in merges}

    def __len__(self) -> int:
        return self._special + len(self._vocabulary.pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self._vocabulary == other._vocabulary

    def __hash__(self) -> int:
        return hash(self._vocabulary)

    def __repr__(self) -> str:
        lowercase = ", lowercase" if self.form.lowercase else ""
        return f"Tokenizer({self.kind}, {len(self):,} tokens{lowercase})"

    def normalized(self, text: str) -> str:
        """Return a text in the form in which `decode` returns it, if none of its tokens is unknown."""
        if self.kind == "file":
            return text.lower() if self.form.lowercase else text
        text = unicodedata.normalize("NFC", text) if self.form.nfc else text
        return self._library.normalizer.normalize_str(text) if self.form.lowercase else text

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without FIRST or END. Raises UserError for half a surrogate pair."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str], *, inside: int | None = None) -> list[list[int]]:
        """Return the ids of several texts, computed on all cores. Raises as `encode` does.

        inside: texts from this index on continue the text before them; None if all are whole.
        """
        prepared = [_prepared(text, self._vocabulary) for text in texts]
        for place in range(len(texts) if inside is None else inside, len(texts)):
            if self.kind == "words" and _INDENT.match(texts[place]):
                prepared[place] = prepared[place][1:]
        with as_user_error("expected a tokenizer that reads any text, got one that fails"):
            try:
                encodings = self._library.encode_batch_fast(prepared, add_special_tokens=False)
            except (
                TypeError,
                UnicodeEncodeError,
            ):  # errors of the libraries for half a surrogate pair
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
        pairs = () if self.knows_all else zip(self.encode(text), self.pieces(text), strict=True)
        pieces = [piece.strip() or piece for number, piece in pairs if number == UNKNOWN]
        return list(dict.fromkeys(pieces))

    def encode_known(self, text: str) -> list[int]:
        """Return the ids of a text to answer.

        Raises UserError if `refused` has pieces, and as `encode` does.
        """
        if missing := self.refused(text):
            raise UserError(
                f"expected {self.kind} of the training text, got {', '.join(map(repr, missing[:5]))}; leave them out, "
                "or train with --byte-fallback or --tokenizer bpe, which know every text"
            )
        return self.encode(text)

    def refused(self, text: str) -> list[str]:
        """Return the unknown pieces that make a text no input: any character, or words if none is known.

        Unknown words of letters that the vocabulary has are an input, since a model copies them.
        """
        ids = self.encode(text)
        if not self.has_unknown(ids) or (self.kind != "characters" and set(ids) != {UNKNOWN}):
            return []
        pieces = self.unknown(self.normalized(text))
        is_foreign = self.kind == "characters" or not set("".join(pieces)) <= self._letters
        return pieces if is_foreign else []

    def pieces(self, text: str) -> list[str]:
        """Return the part of the text that each token stands for, with a space before the first word of a line.

        Raises as `encode` does.
        """
        text = _prepared(text, self._vocabulary)
        try:
            encoding = self._library.encode(text, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            raise surrogate() from None
        return [text[start:end] for start, end in encoding.offsets]

    def has_unknown(self, ids: Sequence[int] | np.ndarray) -> bool:
        """Whether one of these ids is UNKNOWN, which bpe and unigram lack."""
        return not self.knows_all and any(UNKNOWN in part for part in _parts(ids))

    def count_unknown(self, ids: Sequence[int] | np.ndarray) -> int:
        """Return how many of these ids are UNKNOWN."""
        if self.knows_all:
            return 0
        return sum(int(np.count_nonzero(np.asarray(part) == UNKNOWN)) for part in _parts(ids))

    def decode(self, ids: Sequence[int], copies: Sequence[str] | None = None) -> str:
        """Return the text up to the first END or PADDING.

        Without unknown tokens this is exactly the text that was encoded, `normalized`. Bytes that are not UTF-8 become
        U+FFFD. copies: for each id, the text to write if it is unknown; U+FFFD by default.
        """
        pieces, special = self._vocabulary.pieces, self._special
        checked = self._checked(ids)
        ends = (place for place, number in enumerate(checked) if number in (PADDING, END))
        signs = [self._unknown_text] * len(checked) if copies is None else copies
        both = zip(checked[: next(ends, None)], signs, strict=False)
        written = [(number, sign) for number, sign in both if number != FIRST]
        if self.kind == "file":
            return tokenizer_files.decode(self._library, written, special)
        parts = []
        for number, sign in written:
            parts.append(pieces[number - special] if number >= special else sign)
        if over_bytes(self.kind):
            return _bytes_of("".join(parts)).decode(errors="replace")
        if self.form.byte_fallback:
            runs = groupby(parts, FALLBACK.__contains__)
            parts = [_spelled(run) if in_bytes else "".join(run) for in_bytes, run in runs]
        text = "".join(parts)
        return _DEDENT.sub("", text) if self.kind == "words" else text

    def names(self, ids: Sequence[int]) -> list[str]:
        r"""Return each token as text for people; `\xed` for a byte that is not a whole character, or <eos>."""
        return [self._names[number] for number in self._checked(ids)]

    def reading(self) -> Reading | None:
        """Return the rules of `encode` as data; None for the file of another program."""
        vocabulary = self._vocabulary
        if vocabulary.kind == "file":
            return None
        form, is_words = vocabulary.form, vocabulary.kind == "words"
        return Reading(
            AT_BLANKS if is_words and form.at_blanks else CUTS[vocabulary.kind],
            nfc=form.nfc,
            byte_fallback=vocabulary.spells_bytes,
            lowercase="characters" if form.lowercase else "",
            rules=(INDENTED,) if is_words else (),
            kind=vocabulary.kind,
            special=self._special,
            pieces=vocabulary.pieces,
            merges=vocabulary.merges,
            scores=vocabulary.scores,
            unknown=None if self.knows_all else UNKNOWN,
        )

    def writing(self) -> Writing | None:
        """Return the rules of `decode` as data; None for the file of another program."""
        if self.kind == "file":
            return None
        bytewise = over_bytes(self.kind)
        return Writing(
            rules=(DEDENTED,) if self.kind == "words" else (),
            special=self._special,
            pieces=self._vocabulary.pieces,
            skipped=(FIRST,),
            unknown=None if bytewise else UNKNOWN,
            unknown_text=self._unknown_text,
            over_bytes=bytewise,
            byte_fallback=self._vocabulary.spells_bytes,
        )

    def to_json(self) -> str:
        """Return the tokenizer as JSON, equal for equal tokenizers."""
        data = {"format": FORMAT, **vars(self._vocabulary), "form": asdict(self.form)}
        if self.kind != "file":
            del data["library"]
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
            with path.open(encoding="utf-8") as file:
                text = file.read(MAX_JSON_CHARACTERS + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} cannot be read: {error}; the run needs it to answer; restore the file"
            ) from None
        try:
            tokenizer = Tokenizer.from_json(text)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        if tokenizer.kind == "file":
            run_bounded(path.parent, path.name, lambda: library(tokenizer._vocabulary))
        return tokenizer

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of `to_json`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def _unknown_text(self) -> str:
        return f" {UNKNOWN_SIGN}" if self.kind == "words" else UNKNOWN_SIGN

    @cached_property
    def _letters(self) -> set[str]:
        return set().union(*self._vocabulary.pieces)

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
    def of(documents: Iterable[Iterable[str]], tokenizer: Tokenizer) -> UnknownPieces:
        """Count in the first million characters of documents, each in parts."""
        tokens, missing, left = 0, [], COUNTED_CHARACTERS
        for document in documents if not tokenizer.knows_all else ():
            text = "".join(_first(document, left))
            left -= len(text)
            before = "\n"
            for number, piece in zip(tokenizer.encode(text), tokenizer.pieces(text), strict=True):
                tokens += 1
                if number == UNKNOWN:
                    # The first word of a line has no space in the text.
                    is_indented = tokenizer.kind == "words" and before == "\n"
                    missing.append(piece[1:] if is_indented else piece)
                before = piece
            if left <= 0:
                break
        if not missing:
            return UnknownPieces(0.0, 0.0, 0.0)
        count, joined = len(missing), "".join(missing)
        return UnknownPieces(count / tokens, len(joined) / count, len(joined.encode()) / count)


def _parts(ids: Sequence[int] | np.ndarray) -> Iterator[Sequence[int] | np.ndarray]:
    """Yield ids in parts, since they may be a corpus on disk, and to compare one takes a byte of memory."""
    for start in range(0, len(ids), _IDS_AT_ONCE):
        part = ids[start : start + _IDS_AT_ONCE]
        yield part
        if isinstance(part, np.ndarray):
            release(part)


def _first(parts: Iterable[str], characters: int) -> Iterator[str]:
    """Yield parts until they have this many characters."""
    for part in parts:
        yield part
        characters -= len(part)
        if characters <= 0:
            return


def unknown_notice(where: str, share: float) -> list[str]:
    """Return what to print about a share of unknown tokens; nothing if there are none."""
    if not share:
        return []
    return [
        f"{where}: {share:.2%} of the tokens are unknown to the vocabulary; loss and perplexity count each as one "
        "token, so do not compare them with another vocabulary; --byte-fallback and --tokenizer bpe know every text"
    ]


def train(kind: str, texts: Iterable[str], *, size: int, **form: bool) -> Tokenizer:
    """Train a tokenizer of at most `size` tokens, special ones included, on the first TRAINING_BYTES of `texts`.

    The same texts give the same tokenizer with any number of threads. form: fields of `Form`. Raises UserError for an
    unknown kind, an impossible size, or texts of white space only.
    """
    if kind not in KINDS:
        raise unknown("tokenizer", kind, KINDS)
    empty = TokenizerData(kind, Form(**form), ())
    min_size = len(empty.special) + len(empty.required) + (not over_bytes(kind))
    if not min_size <= size <= MAX_VOCABULARY:
        raise UserError(
            f"{kind} needs a size from {min_size} to {MAX_VOCABULARY:,}; got {size}; choose a size in this range"
        )
    sample = (_prepared(text, empty) for text in training_sample(texts))
    return Tokenizer(TRAINERS[kind](sample, size - len(empty.special), empty))


_INDENT, _DEDENT = re.compile(INDENTED[0]), re.compile(DEDENTED[0])


def _prepared(text: str, vocabulary: TokenizerData) -> str:
    """Return a text as the library reads it, which puts it into lower case itself."""
    text = unicodedata.normalize("NFC", text) if vocabulary.form.nfc else text
    return _INDENT.sub(" ", text) if vocabulary.kind == "words" else text


def _spelled(run: Iterable[str]) -> str:
    """Return the text of a run of bytes, or a sign for each if they are not UTF-8, as Hugging Face does."""
    spelled = bytes([FALLBACK[piece] for piece in run])
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return UNKNOWN_SIGN * len(spelled)


def from_file(path: str, side: str = "source") -> Tokenizer:
    """The tokenizer in a tokenizer.json, a SentencePiece model, or the folder of a run or of transformers.

    side: `source` or `target`, where a folder has one for each. Raises UserError for any other file.
    """
    file = tokenizer_files.locate(Path(path), side)
    if file.name.startswith("vocabulary"):
        return Tokenizer.read(file)
    text, pieces, lowercase = tokenizer_files.read(file)
    form = asdict(Form(lowercase, nfc=False))
    data: dict[str, Any] = {"format": FORMAT, "kind": "file", "form": form, "pieces": pieces}
    data |= {"merges": [], "scores": [], "library": text}
    return Tokenizer(checked_vocabulary(data))


def _bytes_of(letters: str) -> bytes:
    # Special tokens of another program may have letters beyond those of bytes.
    return b"".join(bytes([BYTE[each]]) if each in BYTE else each.encode() for each in letters)


def library(vocabulary: TokenizerData, before: str = "\n") -> Any:
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
        case "words" if not vocabulary.spells_bytes:
            model = models.WordLevel(numbers, unk_token=names[UNKNOWN])
        case "words" | "characters":
            # BPE without merges: every character is a piece. An unknown word is its characters, or their bytes.
            is_spelled, is_words = vocabulary.spells_bytes, vocabulary.kind == "words"
            model = models.BPE(
                numbers,
                [],
                unk_token=names[UNKNOWN],
                byte_fallback=is_spelled,
                ignore_merges=is_words,
            )
    return with_pre_tokenizer(model, vocabulary)
