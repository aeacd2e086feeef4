"""Where the held-out end of a text begins: at a character, so that it is the same for every tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from jarilab.core.errors import UserError, counted
from jarilab.data.text.text_files import CHUNK_BYTES, documents, no_usable

_LINE_START, _WHITE_SPACE = re.compile(r"(?<=\n)"), re.compile(r"(?=\s)")


@dataclass(frozen=True)
class Cut:
    """The start of the held-out part of a file or folder.

    document: its number, from 0. characters: how many of it are before the cut. line: where the cut is in it, from 1.
    starts_line: whether the line begins there.
    """

    document: int
    characters: int
    line: int
    starts_line: bool = True

    def __str__(self) -> str:
        return f"character {self.characters + 1:,} of document {self.document + 1:,}"


def find_cut(path: Path, share: float) -> Cut:
    """Return the cut that holds out about the last `share` of the characters of a file or folder.

    It is moved to the next start of a document, else of a line, else to white space, if that leaves half of the share
    or more. Raises UserError as `documents` does, and if the text has fewer than two characters.
    """
    sizes = [sum(map(len, document)) for document in documents(path)]
    total = sum(sizes)
    if not total:
        raise no_usable([path])
    if total < 2:
        raise UserError(
            f"{path}: {counted(total, 'characters', 'are')} too few to hold {share:.0%} out; give more, or a text to "
            "measure on with --valid"
        )
    held_out = min(total - 1, max(1, round(share * total)))
    number, before = 0, total - held_out  # the characters of document `number` before the cut
    while before >= sizes[number]:
        before -= sizes[number]
        number += 1
    longest_move = held_out // 2
    if before == 0:
        return Cut(number, 0, 1)
    if sizes[number] - before <= longest_move:
        return Cut(number + 1, 0, 1)
    document = next(islice(documents(path), number, None))
    return _at_line(document, number, before, longest_move)


def _at_line(document: Iterator[str], number: int, before: int, longest_move: int) -> Cut:
    """The cut at the start of a line, else at white space, at most `longest_move` and CHUNK_BYTES after `before`."""
    line, place = 1, 0
    for piece in document:
        if place + len(piece) < before:
            line += piece.count("\n")
            place += len(piece)
            continue
        text, at = piece, before - place
        while len(text) - at < min(longest_move, CHUNK_BYTES) and (more := next(document, "")):
            text += more
        stop = at + longest_move
        start = _LINE_START.search(text, at, stop)
        found = start or _WHITE_SPACE.search(text, at, stop)
        cut = found.start() if found else at
        return Cut(number, place + cut, line + text.count("\n", 0, cut), bool(start))
    return Cut(number, before, line, False)


def parts(path: Path, cut: Cut) -> tuple[Iterator[Iterator[str]], Iterator[Iterator[str]]]:
    """Return the documents of a file or folder before and from the cut, each in pieces."""
    before = islice(documents(path), cut.document + 1)
    after = islice(documents(path), cut.document, None)
    return (
        (
            _slice(text, 0, cut.characters) if n == cut.document else text
            for n, text in enumerate(before)
        ),
        (text if n else _slice(text, cut.characters, None) for n, text in enumerate(after)),
    )


def _slice(pieces: Iterable[str], start: int, stop: int | None) -> Iterator[str]:
    """Yield the characters of a text from `start` to `stop` (excluded), in pieces."""
    place = 0
    for piece in pieces:
        end = None if stop is None else max(0, stop - place)
        if part := piece[max(0, start - place) : end]:
            yield part
        place += len(piece)
