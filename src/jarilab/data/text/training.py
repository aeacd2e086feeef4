"""Training of tokenizers with Hugging Face's `tokenizers`, reproducible for the same text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from jarilab.core.errors import UserError, import_optional
from jarilab.data.text.pieces import BYTE, TokenizerData, over_bytes, surrogate
from jarilab.data.text.spelling import AT_BLANKS, WORDS

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


def with_pre_tokenizer(model: Any, data: TokenizerData) -> Any:
    """Return the library's tokenizer for a model, with lower case and the first cut of its kind."""
    hf = tokenizers_library()
    library = hf.Tokenizer(model)
    if data.form.lowercase:
        library.normalizer = hf.normalizers.Lowercase()
    if over_bytes(data.kind):
        library.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif data.kind == "words":
        cut = hf.Regex(AT_BLANKS if data.form.at_blanks else WORDS)
        library.pre_tokenizer = hf.pre_tokenizers.Split(cut, "isolated")
    return library


def _trained(model: Any, trainer: Any, texts: Iterator[str], empty: TokenizerData) -> Any:
    library = with_pre_tokenizer(model, empty)
    library.train_from_iterator(texts, trainer=trainer)
    return json.loads(library.to_str())["model"]


def _bpe(texts: Iterator[str], size: int, empty: TokenizerData) -> TokenizerData:
    hf = tokenizers_library()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=list(BYTE)
    )
    model = _trained(hf.models.BPE(), trainer, texts, empty)
    pieces = tuple(sorted(model["vocab"], key=model["vocab"].get))
    merges = tuple((left, right) for left, right in model["merges"])
    return replace(empty, pieces=pieces, merges=merges)


def _unigram(texts: Iterator[str], size: int, empty: TokenizerData) -> TokenizerData:
    hf = tokenizers_library()
    trainer = hf.trainers.UnigramTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=list(BYTE),
        max_piece_length=_MAX_PIECE_LENGTH,
    )
    vocabulary = _trained(hf.models.Unigram(), trainer, texts, empty)["vocab"]
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
    return replace(empty, pieces=pieces, scores=of_pieces)


def _words(texts: Iterator[str], size: int, empty: TokenizerData) -> TokenizerData:
    hf = tokenizers_library()
    trainer = hf.trainers.WordLevelTrainer(
        vocab_size=size - len(empty.required), show_progress=False
    )
    vocabulary = _trained(hf.models.WordLevel(), trainer, texts, empty)["vocab"]
    return replace(empty, pieces=(*empty.required, *sorted(vocabulary, key=vocabulary.get)))


def _characters(texts: Iterator[str], size: int, empty: TokenizerData) -> TokenizerData:
    lower = tokenizers_library().normalizers.Lowercase().normalize_str
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(lower(text) if empty.form.lowercase else text)
    learned = sorted(counts, key=lambda character: (-counts[character], character))
    return replace(empty, pieces=(*empty.required, *learned)[:size])


TRAINERS: dict[str, Callable[[Iterator[str], int, TokenizerData], TokenizerData]] = {
    "bpe": _bpe,
    "unigram": _unigram,
    "words": _words,
    "characters": _characters,
}
