"""How a tokenizer of transformers joins tokens, as rules for a page; compared with the tokenizer on random tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

from jarilab.data.text.pieces import BYTE, FALLBACK
from jarilab.data.text.spelling import UNKNOWN_SIGN, Rule, Writing

COMPARED = 100
LONGEST = 12
"""Random sequences of tokens of a comparison, and their tokens."""
WORD_PIECES: Rule = (" ##", "")
BEFORE_MARKS: Rule = (" (?=[.?!,])", "")
"""Removes the spaces that a WordPiece tokenizer cleans up."""
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
    for _ in range(COMPARED):
        rows.append(generator.choices(plain, k=generator.randint(1, LONGEST)))
    expected = [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    best, most = Writing(), -1
    for writing in _candidates(pieces, skipped):
        agreeing = sum(
            _written(writing, row) == text for row, text in zip(rows, expected, strict=True)
        )
        if agreeing > most:
            best, most = writing, agreeing
    return best, most == len(rows)


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
    for rules in ((), (BEFORE_MARKS,), (WORD_PIECES,), (WORD_PIECES, BEFORE_MARKS)):
        yield Writing(**shared, join=" ", rules=rules)


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
