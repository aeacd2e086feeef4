"""The pieces of a tokenizer, found in text by Hugging Face's `tokenizers`: the same for the same text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jarilab.core.errors import UserError, needs
from jarilab.data.text.pieces import BYTE, Kind, Vocabulary, over_bytes, surrogate

TRAINING_BYTES = 16_000_000
"""A tokenizer is trained on the first 16 MB of text: what is held in memory grows with the text it has seen."""

_LONGEST_PIECE = 24


def beginning(texts: Iterable[str]) -> Iterator[str]:
    """The texts up to TRAINING_BYTES. Raises UserError where they hold nothing but white space."""
    left, usable = TRAINING_BYTES, False
    for text in texts:
        try:
            text = text.encode()[:left].decode(errors="ignore")
        except UnicodeEncodeError:
            raise surrogate() from None
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


def hugging_face() -> Any:
    """Raises UserError where `tokenizers` is not installed."""
    return needs("tokenizers", "text")


def around(model: Any, kind: Kind, lowercase: bool) -> Any:
    """The library's tokenizer for a model, with what comes before it: lower case, and the cut at spaces."""
    hf = hugging_face()
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
    library = around(model, kind, lowercase)
    library.train_from_iterator(texts, trainer=trainer)
    return json.loads(library.to_str())["model"]


def _bpe(texts: Iterator[str], size: int, lowercase: bool) -> Vocabulary:
    hf = hugging_face()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=list(BYTE)
    )
    found = _trained(hf.models.BPE(), trainer, "bpe", texts, lowercase)
    pieces = tuple(sorted(found["vocab"], key=found["vocab"].get))
    merges = tuple((one, two) for one, two in found["merges"])
    return Vocabulary("bpe", lowercase, pieces, merges=merges)


def _unigram(texts: Iterator[str], size: int, lowercase: bool) -> Vocabulary:
    hf = hugging_face()
    trainer = hf.trainers.UnigramTrainer(
        vocab_size=size,
        show_progress=False,
        initial_alphabet=list(BYTE),
        max_piece_length=_LONGEST_PIECE,
    )
    found = _trained(hf.models.Unigram(), trainer, "unigram", texts, lowercase)["vocab"]
    # The library adds the bytes it would have dropped just above the lowest score, 0.0001 apart and in the order of a
    # hash map, which differs from run to run; and the last bits of all scores depend on the order of its sums.
    floor = min(score for _, score in found)
    added = floor + 1e-4 * (len(BYTE) + 1)
    scores = {}
    for piece, score in found:
        was_added = len(piece) == 1 and score < added
        scores[piece] = round(floor if was_added else score, 6)
    ranked = sorted(scores, key=lambda piece: (-scores[piece], piece))
    # Near its alphabet's size the library keeps more than it was asked for.
    longer = [piece for piece in ranked if len(piece) > 1]
    chosen = {*BYTE, *longer[: size - len(BYTE)]}
    pieces = tuple(piece for piece in ranked if piece in chosen)
    of_pieces = tuple(scores[piece] for piece in pieces)
    return Vocabulary("unigram", lowercase, pieces, scores=of_pieces)


def _words(texts: Iterator[str], size: int, lowercase: bool) -> Vocabulary:
    hf = hugging_face()
    trainer = hf.trainers.WordLevelTrainer(vocab_size=size, show_progress=False)
    found = _trained(hf.models.WordLevel(), trainer, "words", texts, lowercase)["vocab"]
    return Vocabulary("words", lowercase, tuple(sorted(found, key=found.get)))


def _characters(texts: Iterator[str], size: int, lowercase: bool) -> Vocabulary:
    lower = hugging_face().normalizers.Lowercase().normalize_str
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(lower(text) if lowercase else text)
    pieces = sorted(counts, key=lambda character: (-counts[character], character))
    return Vocabulary("characters", lowercase, tuple(pieces[:size]))


TRAINERS: dict[str, Callable[[Iterator[str], int, bool], Vocabulary]] = {
    "bpe": _bpe,
    "unigram": _unigram,
    "words": _words,
    "characters": _characters,
}
