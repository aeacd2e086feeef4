"""Training of tokenizers with Hugging Face's `tokenizers`, reproducible for the same text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jarilab.core.errors import UserError, import_optional
from jarilab.data.text.pieces import BYTE, Kind, TokenizerData, over_bytes, surrogate

# Memory grows with the text that a trainer has seen.
TRAINING_BYTES = 16_000_000
"""A tokenizer is trained on the first 16 MB of text."""

_MAX_PIECE_LENGTH = 24
# The library needs time with the square of a word's length.
_LONG_WORD = re.compile(r"\S{1000}(?=\S)")


def training_sample(texts: Iterable[str]) -> Iterator[str]:
    """Yield the first TRAINING_BYTES of the texts, with words cut after 1,000 characters.

    Raises UserError if they are white space only.
    """
    left, usable = TRAINING_BYTES, False
    for text in texts:
        try:
            text = text.encode()[:left].decode(errors="ignore")
        except UnicodeEncodeError:
            raise surrogate() from None
        usable = usable or bool(text.strip())
        yield from _cut(text)
        left -= len(text.encode())
        # A character has at most 4 bytes, so nothing more fits.
        if left < 4:
            break
    if not usable:
        raise UserError(
            "expected text to train a tokenizer on; got only white space; add some text"
        )


def _cut(text: str) -> Iterator[str]:
    start = 0
    for match in _LONG_WORD.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def tokenizers_library() -> Any:
    """Import `tokenizers`. Raises UserError if it is not installed."""
    return import_optional("tokenizers", "text")


def with_pre_tokenizer(model: Any, kind: Kind, lowercase: bool) -> Any:
    """Return the library's tokenizer for a model, with lower case and the first cut of its kind."""
    hf = tokenizers_library()
    library = hf.Tokenizer(model)
    if lowercase:
        library.normalizer = hf.normalizers.Lowercase()
    if over_bytes(kind):
        library.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "words":
        library.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    return library


def _trained(
    model: Any,
    trainer: Any,
    kind: Kind,
    texts: Iterator[str],
    lowercase: bool,
) -> Any:
    library = with_pre_tokenizer(model, kind, lowercase)
    library.train_from_iterator(texts, trainer=trainer)
    return json.loads(library.to_str())["model"]


def _bpe(texts: Iterator[str], size: int, lowercase: bool) -> TokenizerData:
    hf = tokenizers_library()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=list(BYTE)
    )
    model = _trained(hf.models.BPE(), trainer, "bpe", texts, lowercase)
    pieces = tuple(sorted(model["vocab"], key=model["vocab"].get))
    merges = tuple((left, right) for left, right in model["merges"])
    return TokenizerData("bpe", lowercase, pieces, merges=merges)


def _unigram(texts: Iterator[str], size: int, lowercase: bool) -> TokenizerData:
    hf = tokenizers_library()
    trainer = hf.trainers.UnigramTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=list(BYTE),
        max_piece_length=_MAX_PIECE_LENGTH,
    )
    vocabulary = _trained(hf.models.Unigram(), trainer, "unigram", texts, lowercase)["vocab"]
    # The library adds missing bytes just above the lowest score, 0.0001 apart, in the order of a hash map that differs
    # from run to run. The last bits of all scores depend on the order of its sums. So scores are rounded, and added
    # bytes get the lowest score.
    floor = min(score for _, score in vocabulary)
    added = floor + 1e-4 * (len(BYTE) + 1)
    scores = {}
    for piece, score in vocabulary:
        was_added = len(piece) == 1 and score < added
        scores[piece] = round(floor if was_added else score, 6)
    ranked = sorted(scores, key=lambda piece: (-scores[piece], piece))
    # Near the size of its alphabet the library returns more pieces than requested.
    longer = [piece for piece in ranked if len(piece) > 1]
    chosen = {*BYTE, *longer[: size - len(BYTE)]}
    pieces = tuple(piece for piece in ranked if piece in chosen)
    of_pieces = tuple(scores[piece] for piece in pieces)
    return TokenizerData("unigram", lowercase, pieces, scores=of_pieces)


def _words(texts: Iterator[str], size: int, lowercase: bool) -> TokenizerData:
    hf = tokenizers_library()
    trainer = hf.trainers.WordLevelTrainer(vocab_size=size, show_progress=False)
    vocabulary = _trained(hf.models.WordLevel(), trainer, "words", texts, lowercase)["vocab"]
    return TokenizerData("words", lowercase, tuple(sorted(vocabulary, key=vocabulary.get)))


def _characters(texts: Iterator[str], size: int, lowercase: bool) -> TokenizerData:
    lower = tokenizers_library().normalizers.Lowercase().normalize_str
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(lower(text) if lowercase else text)
    pieces = sorted(counts, key=lambda character: (-counts[character], character))
    return TokenizerData("characters", lowercase, tuple(pieces[:size]))


TRAINERS: dict[str, Callable[[Iterator[str], int, bool], TokenizerData]] = {
    "bpe": _bpe,
    "unigram": _unigram,
    "words": _words,
    "characters": _characters,
}
