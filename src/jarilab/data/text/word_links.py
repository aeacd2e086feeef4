"""Gold links between words, read from alignments in Pharaoh format and from files of pairs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jarilab.core.errors import UserError
from jarilab.data.text.conllu import Span, WordLink
from jarilab.data.text.text_files import lines

ALIGNMENT, POSSIBLE = "alignment", "possible"
"""The relation of a Pharaoh file's links, and that of possible links in a file of pairs."""

Link = tuple[int, int]
"""The query's word and the key's word, counted from 0."""


@dataclass(frozen=True)
class LinkedWords:
    """The gold links of one example.

    links: sure ones. possible: further links that the alignment error rate accepts.
    cross: whether queries are words of the target and keys of the source; else both are of one text.
    path, line: where the links of this example begin.
    """

    links: tuple[WordLink, ...]
    possible: tuple[Link, ...]
    cross: bool
    path: Path
    line: int

    @property
    def origin(self) -> str:
        return f"{self.path}:{self.line}"


def word_spans(text: str) -> list[Span]:
    """Where the words of a text are: what is between white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def pharaoh(line: str) -> list[Link]:
    """Parse links `0-0 1-2`, source word and target word counted from 0, to (query, key): (target, source).

    Raises UserError for anything else.
    """
    links = []
    for number, text in enumerate(line.split()):
        match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", text)
        if match is None:
            raise UserError(
                f"expected links such as 0-0 1-2, source word and target word counted from 0, got {text!r} as link "
                f"{number + 1}; leave out possible links"
            )
        source, target = (int(word) for word in match.groups())
        links.append((target, source))
    return links


def read_links(path: Path, texts: Iterable[Sequence[str]]) -> Iterator[LinkedWords]:
    """Yield the gold links of each text or pair of texts. Words are separated by white space and counted from 0.

    path: a line for each example in Pharaoh format, source-target, or, named *.tsv, a line for each link: example
    counted from 1, query word, key word, and a relation (`link` by default). texts: (text,) or (source, target), whose
    words links are checked against.

    Raises UserError, with file and line, for a line of another format, a link out of range, and another number of
    examples than texts. Read it once before a long computation, to find these.
    """
    if path.name.lower().removesuffix(".gz").endswith(".tsv"):
        return _pairs(path, texts)
    return _aligned(path, texts)


def _aligned(path: Path, texts: Iterable[Sequence[str]]) -> Iterator[LinkedWords]:
    reader = lines(path)
    count = 0
    for number, example in enumerate(texts, 1):
        sizes, line = _sizes(example), next(reader, None)
        if line is None:
            raise _other_count(path, count, f"at least {number}")
        links = (WordLink(ALIGNMENT, *link) for link in _links(path, number, line, sizes))
        yield LinkedWords(tuple(links), (), len(sizes) == 2, path, number)
        count = number
    if rest := sum(1 for _ in reader):
        raise _other_count(path, count + rest, str(count))


def _links(path: Path, number: int, line: str, sizes: list[int]) -> list[Link]:
    """The links of a line in Pharaoh format."""
    try:
        links = pharaoh(line)
    except UserError as error:
        raise UserError(f"{path}:{number}: {error}") from None
    for link in links:
        _check_range(path, number, link, sizes)
    return links


def _other_count(path: Path, got: int, expected: str) -> UserError:
    return UserError(
        f"{path}: expected a line of links for each example, {expected}; got {got}; name the file of these "
        "texts, with an empty line for an example without links"
    )


class _Row(NamedTuple):
    line: int
    example: int
    link: WordLink


def _pairs(path: Path, texts: Iterable[Sequence[str]]) -> Iterator[LinkedWords]:
    rows = _rows(path)
    row = next(rows, None)
    count = 0
    for number, example in enumerate(texts, 1):
        sizes = _sizes(example)
        line = row.line if row is not None else 1
        links, possible = [], []
        while row is not None and row.example == number:
            _check_range(path, row.line, row.link[1:], sizes)
            is_possible = row.link.relation == POSSIBLE
            (possible if is_possible else links).append(row.link)
            row = next(rows, None)
        accepted = tuple((link.query, link.key) for link in possible)
        yield LinkedWords(tuple(links), accepted, len(sizes) == 2, path, line)
        count = number
    if row is not None:
        raise UserError(
            f"{path}:{row.line}: expected one of the examples 1 to {count} in column 1; got {row.example}; name the "
            "file that belongs to these texts"
        )


def _rows(path: Path) -> Iterator[_Row]:
    """The links of a file of pairs. Raises UserError for a line of another format."""
    last = 1
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        columns = line.split("\t")
        numbers = [int(text) for text in columns[:3] if re.fullmatch(r"[0-9]{1,9}", text)]
        if len(columns) not in (3, 4) or len(numbers) != 3 or not columns[-1]:
            raise UserError(
                f"{path}:{number}: expected example, query word, key word and, if you like, a relation, with a tab "
                f"between; got {line[:80]!r}; correct the line"
            )
        if numbers[0] < last:
            raise UserError(
                f"{path}:{number}: expected examples in order, counted from 1; got {numbers[0]} after {last}; sort the "
                "file by its first column"
            )
        last = numbers[0]
        relation = columns[3] if len(columns) == 4 else "link"
        yield _Row(number, last, WordLink(relation, numbers[1], numbers[2]))


def _sizes(example: Sequence[str]) -> list[int]:
    """The number of words of each text of an example, the source first."""
    return [len(word_spans(text)) for text in example]


def _check_range(path: Path, number: int, link: Link, sizes: list[int]) -> None:
    query, key = link
    if query >= sizes[-1] or key >= sizes[0]:
        raise UserError(
            f"{path}:{number}: expected words counted from 0, below {sizes[-1]} for queries (the target) and below "
            f"{sizes[0]} for keys (the source); got query {query} and key {key}; check that the links are of these "
            "texts, and that words are separated by white space"
        )
