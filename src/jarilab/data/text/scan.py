"""What a check needs to know of each text: 8 bytes of its normalised form, its length, its script and its marks.

A scan is kept in the cache and mapped into memory, so it takes few bytes a line, and time grows with the lines.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jarilab.core.storage.content_cache import cached
from jarilab.core.storage.mapped import release
from jarilab.data.text.pairs import numbered_pairs, table_facts
from jarilab.data.text.text_files import CHUNK_BYTES, content_hash, document_files, documents

SCRIPTS = (
    "no", "Latin", "Hangul", "Chinese or Japanese", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari", "Thai",
    "Georgian", "Armenian", "Bengali", "Tamil", "Telugu", "another",
)  # fmt: skip
"""Scripts by their number in `Scan.marks`."""
SCRIPT, QUESTION, EXCLAMATION, DIGIT = 15, 16, 32, 64
"""Bits of `Scan.marks`."""
MIN_LETTERS = 20
"""Shorter lines of a document are not compared: they repeat by chance."""
MAX_PARTS = 64
"""Keys are compared in at most so many parts. Each part reads all keys again."""

_NAMES = {"CJK": 3, "HIRAGANA": 3, "KATAKANA": 3} | {
    name.upper(): number for number, name in enumerate(SCRIPTS) if number != 3
}
_MARKS_END = 0x10000
"""Marks from here on, of rare scripts, are left out: with them a search takes eight times as long."""
_DIGIT = re.compile(r"\d")
_SCRIPT_LETTERS = 8
_ROWS_AT_ONCE = 1 << 16
_PART_ROWS = 1 << 18
_ROW = np.dtype([("key", "<u8"), ("line", "<u4"), ("length", "<u2"), ("marks", "u1")])


@cache
def _others() -> re.Pattern[str]:
    """What is neither a letter, a digit nor a mark. Many scripts write vowels and tones as marks, which `\\w` lacks."""
    marks = (sign for sign in map(chr, range(_MARKS_END)) if unicodedata.category(sign)[0] == "M")
    # Variation selectors only choose between a black and a coloured sign.
    spoken = "".join(sign for sign in marks if not "\ufe00" <= sign <= "\ufe0f")
    return re.compile(rf"[^\w{spoken}]+")


def normal(text: str) -> str:
    """Return the letters and digits of a text, small and in Unicode's form NFKC, or the text itself if it has none."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("_", "")
    return _others().sub("", folded) or text.strip()


@cache
def _script(letter: str) -> int:
    if not letter.isalpha():
        return 0
    return _NAMES.get(unicodedata.name(letter, "").partition(" ")[0], len(SCRIPTS) - 1)


def _row(text: str, line: int) -> tuple[int, int, int, int]:
    form = normal(text)
    key = int.from_bytes(blake2b(form.encode(errors="replace"), digest_size=8).digest(), "little")
    scripts = [script for script in map(_script, form[:_SCRIPT_LETTERS]) if script]
    end = text[-4:]
    marks = max(scripts, key=scripts.count, default=0)
    marks |= QUESTION * ("?" in end or "？" in end) | EXCLAMATION * ("!" in end or "！" in end)
    marks |= DIGIT * (_DIGIT.search(form) is not None)
    return key, min(line, 2**32 - 1), min(len(text), 2**16 - 1), marks


class Place(NamedTuple):
    """Where a text is."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class Scan:
    """The texts of some files in order; blank ones are left out.

    rows: `(N,)` for documents, `(N, 2)` for pairs, with the fields key, line, length in characters and marks. files:
    the file or files of each part; ends: the number of rows up to the end of each. blank: the number and the first line
    of blank texts, of each side; documents: the key of each document.
    """

    rows: np.ndarray
    files: list[tuple[Path, ...]]
    ends: list[int]
    blank: list[tuple[int, int]]
    documents: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def keys(self) -> Keys:
        """Keys of all rows; those of pairs count both sides."""
        return Keys(self.rows["key"])

    def keys_of(self, side: int = 0, chosen: np.ndarray | None = None) -> Keys:
        """Keys of one side of pairs, or of documents. chosen: which rows count, `(N,)`; all by default."""
        keys = self.rows["key"]
        return Keys(keys if keys.ndim == 1 else keys[:, side], chosen)

    def place(self, row: int, side: int = 0) -> Place:
        """Return where a row is. side: 0 for the source, 1 for the target."""
        files = self.files[int(np.searchsorted(self.ends, row, side="right"))]
        return Place(files[side % len(files)], int(np.atleast_1d(self.rows["line"][row])[0]))


def scan_pairs(corpora: Sequence[Sequence[Path]], columns: Sequence[str] = ()) -> Scan:
    """Scan the usable pairs of corpora, in the order of `pairs.pairs`. Raises UserError as that does."""
    facts = {
        "what": "scan of pairs with marks",
        "contents": content_hash(list(chain(*corpora))),
        "tables": table_facts(corpora, columns),
    }
    blank = [[0, 0], [0, 0]]
    ends: list[int] = []

    def rows() -> Iterator[tuple[int, int, int, int]]:
        count = 0
        for paths in corpora:
            for line, *sides in numbered_pairs(paths, columns):
                empty = [not side.strip() for side in sides]
                for of_side, is_empty in zip(blank, empty, strict=True):
                    of_side[1] = of_side[1] or line * is_empty
                    of_side[0] += is_empty
                if not any(empty):
                    count += 1
                    yield from (_row(side, line) for side in sides)
            ends.append(count)

    return _scanned(facts, rows(), [tuple(paths) for paths in corpora], ends, blank, 2)


def scan_documents(paths: Sequence[Path]) -> Scan:
    """Scan the lines of documents with MIN_LETTERS letters and digits or more. Raises UserError as `documents` does."""
    files = [document_files(path) for path in paths]
    every = list(chain(*files))
    facts = {
        "what": "scan of documents with marks",
        "contents": content_hash(every),
        "files": len(every),
    }
    ends: list[int] = []
    whole: list[int] = []

    def rows() -> Iterator[tuple[int, int, int, int]]:
        count = 0
        for pieces in chain.from_iterable(map(documents, paths)):
            digest = blake2b(digest_size=8)
            for number, line in enumerate(_lines(pieces), 1):
                form = normal(line)
                digest.update(form.encode(errors="replace"))
                if len(form) >= MIN_LETTERS:
                    count += 1
                    yield _row(line, number)
            ends.append(count)
            whole.append(int.from_bytes(digest.digest(), "little"))

    return _scanned(facts, rows(), [(file,) for file in every], ends, [], 1, whole)


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """The lines of a document; a longer one than CHUNK_BYTES characters is cut."""
    rest = ""
    for piece in pieces:
        *complete, rest = (rest + piece).split("\n")
        yield from complete
        if len(rest) > CHUNK_BYTES:
            yield rest
            rest = ""
    if rest:
        yield rest


def _scanned(
    facts: dict[str, Any],
    rows: Iterator[tuple[int, int, int, int]],
    files: list[tuple[Path, ...]],
    ends: list[int],
    blank: Sequence[Sequence[int]],
    sides: int,
    whole: Sequence[int] = (),
) -> Scan:
    """Write the rows to the cache, and map them into memory. ends, blank, whole: filled while rows are read."""

    def make(folder: Path) -> dict[str, Any]:
        with (folder / "rows").open("wb") as stream:
            while some := list(islice(rows, _ROWS_AT_ONCE)):
                stream.write(np.array(some, _ROW).tobytes())
        (folder / "documents").write_bytes(np.array(whole, "<u8").tobytes())
        return {"ends": ends, "blank": blank}

    def load(folder: Path, record: Any) -> Scan:
        is_empty = not record["ends"][-1]
        read = np.zeros(0, _ROW) if is_empty else np.memmap(folder / "rows", _ROW, "r")
        shaped = read if sides == 1 else read.reshape(-1, sides)
        keys = np.fromfile(folder / "documents", "<u8")
        counted = [(count, line) for count, line in record["blank"]]
        return Scan(shaped, files, record["ends"], counted, keys)

    return cached(facts, make, load)


# Texts that are equal -------------------------------------------------------------------------------------------------


class Equal(NamedTuple):
    """How many texts equal another one; the first of them, and that other one."""

    examples: int
    row: int
    other: int


@dataclass(frozen=True, eq=False)
class Keys:
    """8 bytes for each text, equal for equal normalised texts. They are read in blocks, to keep memory small.

    values: `(N,)`, or `(N, 2)` for pairs. chosen: which texts count, `(N,)`; all by default.
    """

    values: np.ndarray
    chosen: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values) if self.chosen is None else int(np.count_nonzero(self.chosen))

    @property
    def parts(self) -> int:
        """Into how many parts to divide them: of _PART_ROWS each, as far as MAX_PARTS reaches."""
        return min(MAX_PARTS, 1 + len(self.values) // _PART_ROWS)

    def part(self, number: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys with this remainder by `parts`, and their rows, in order."""
        keys, rows = [], []
        for start in range(0, len(self.values), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            block = np.asarray(self.values[some])
            if block.ndim == 2:
                # An odd factor loses nothing, and swapped sides differ.
                block = block[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ block[:, 1]
            is_in = block % parts == number
            if self.chosen is not None:
                is_in &= self.chosen[some]
            keys.append(block[is_in])
            rows.append(start + np.flatnonzero(is_in))
        release(self.values)
        return np.concatenate(keys), np.concatenate(rows)


def repeated(keys: Keys) -> Equal | None:
    """Return how many of these texts repeat an earlier one; None if none does."""
    count, first, other = 0, len(keys.values), 0
    for number in range(keys.parts if len(keys.values) else 0):
        values, rows = keys.part(number, keys.parts)
        order = np.argsort(values, kind="stable")
        is_same = values[order[1:]] == values[order[:-1]]
        later = rows[order[1:][is_same]]
        count += len(later)
        if len(later) and later.min() < first:
            first, other = int(later.min()), int(rows[order[:-1][is_same][later.argmin()]])
    return Equal(count, first, other) if count else None


def shared(keys: Keys, known: Keys) -> Equal | None:
    """Return how many of these texts are among the known; None if none is."""
    count, first, other = 0, len(keys.values), 0
    parts = max(keys.parts, known.parts)
    for number in range(parts if len(keys.values) and len(known.values) else 0):
        values, rows = keys.part(number, parts)
        known_values, known_rows = known.part(number, parts)
        is_known = np.isin(values, known_values)
        count += int(is_known.sum())
        if is_known.any() and rows[is_known.argmax()] < first:
            first = int(rows[is_known.argmax()])
            other = int(known_rows[np.argmax(known_values == values[is_known.argmax()])])
    return Equal(count, first, other) if count else None
