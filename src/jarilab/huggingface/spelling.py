"""How a tokenizer of transformers joins tokens, as rules for a page; compared with the tokenizer on random tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, product
from typing import Any

from jarilab.data.text.pieces import BYTE, FALLBACK
from jarilab.data.text.spelling import UNKNOWN_SIGN, Rule, Writing

COMPARED = 100
LONGEST = 12
"""Random sequences of tokens of a comparison, for each kind of tokens, and their tokens."""
WORD_PART = "##"
WORD_PIECES: Rule = (f" {WORD_PART}", "")
BEFORE_MARKS: Rule = (" (?=[.?!,])", "")
APOSTROPHES: Rule = (" ' ", "'")
CONTRACTIONS: Rule = (" (?=n't|'m|'s|'ve|'re)", "")
DECODERS = ((), (WORD_PIECES,), (BEFORE_MARKS, CONTRACTIONS, WORD_PIECES))
"""Nothing, and the WordPiece decoder without and with its cleanup, which is of each token."""
CLEANUPS = ((), (BEFORE_MARKS, APOSTROPHES, CONTRACTIONS))
"""Nothing, and `clean_up_tokenization_spaces`, which is of the whole text."""
ENDS: Rule = ("^ +| +$", "")


def writing_of(tokenizer: Any, count: int, answer: Sequence[int]) -> tuple[Writing, bool]:
    """The rules that agree with the tokenizer most often, and whether they do on `answer` and all random tokens.

    count: of the ids that the model knows.
    """
    pieces = [piece or "" for piece in tokenizer.convert_ids_to_tokens(list(range(count)))]
    special = [number for number in tokenizer.all_special_ids if number < count]
    skipped = {*special, *(number for number, piece in enumerate(pieces) if not piece)}
    generator = random.Random(0)
    plain = [number for number in range(count) if number not in skipped] or special
    rows = [list(answer)]
    # Random rows of a large vocabulary hardly have punctuation or parts of words, which have rules of their own.
    marks = [number for number in plain if re.search(r"[^\w#▁]", pieces[number])]
    parts = [number for number in plain if pieces[number].startswith(WORD_PART)]
    marks, parts = marks or plain, parts or plain
    for pair in ((plain, plain), (plain, marks), (plain, parts), (marks, parts)):
        for _ in range(COMPARED):
            length = generator.randint(1, LONGEST)
            rows.append([generator.choice(pair[place % 2]) for place in range(length)])
    expected = [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    agreeing: dict[Writing, int] = {}
    for writing in _candidates(pieces, skipped):
        texts = [_written(writing, row) for row in rows]
        agreeing[writing] = sum(map(str.__eq__, texts, expected))
    best = max(agreeing, key=lambda writing: agreeing[writing])
    return best, agreeing[best] == len(rows)


def _candidates(pieces: Sequence[str], skipped: Collection[int]) -> Iterator[Writing]:
    shared: dict[str, Any] = {
        "special": 0,
        "pieces": tuple(pieces),
        "skipped": tuple(sorted(skipped)),
    }
    plain = (piece for number, piece in enumerate(pieces) if number not in skipped)
    if all(BYTE.keys() >= set(piece) for piece in plain):
        yield Writing(**shared, over_bytes=True)
    blank: Rule = ("▁", " ")
    fallback = not FALLBACK.keys().isdisjoint(pieces)
    for last in (("^ ", ""), ENDS):
        yield Writing(**shared, rules=(blank, last), byte_fallback=fallback)
    for decoder, cleanup in product(DECODERS, CLEANUPS):
        yield Writing(**shared, join=" ", rules=(*decoder, *cleanup))


def _written(writing: Writing, ids: Sequence[int]) -> str:
    """As `written` of `pages/kit/static/spelling.js`."""
    assert writing.pieces is not None
    parts = [writing.pieces[number] for number in ids if number not in writing.skipped]
    if writing.over_bytes:
        return bytes(BYTE[letter] for letter in "".join(parts)).decode(errors="replace")
    if writing.byte_fallback:
        parts = _without_bytes(parts)
    text = writing.join.join(parts)
    for pattern, by in writing.rules:
        text = re.sub(pattern, by, text)
    return text


def _without_bytes(parts: Sequence[str]) -> list[str]:
    texts: list[str] = []
    for is_byte, run in groupby(parts, FALLBACK.__contains__):
        pieces = list(run)
        if not is_byte:
            texts += pieces
            continue
        try:
            texts.append(bytes(FALLBACK[piece] for piece in pieces).decode())
        except UnicodeDecodeError:
            texts.append(UNKNOWN_SIGN * len(pieces))
    return texts
