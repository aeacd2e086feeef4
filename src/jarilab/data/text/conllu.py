"""Sentences with dependencies, read from CoNLL-U files (https://universaldependencies.org/format.html)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

from jarilab.core.errors import UserError
from jarilab.data.text.text_files import lines

COLUMNS = 10
NUMBER = re.compile(r"[0-9]{1,6}")
RANGE = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")
EMPTY_NODE = re.compile(r"[0-9]{1,6}\.[0-9]{1,6}")
TEXT = re.compile(r"# ?text ?= ?(.*)")
HOW_TO_CHECK = "correct the line, or validate the file with the UD tools (validate.py)"

Span = tuple[int, int]
"""First character, and the one after the last."""


class WordLink(NamedTuple):
    """A gold link between two words, counted from 0; of a dependency, the dependent is the query."""

    relation: str
    query: int
    key: int


@dataclass(frozen=True)
class Sentence:
    """A sentence with its dependencies.

    text: as its words stand in it. forms: the words; the parts of a multiword token such as `don't` are words of their
    own if they spell it, else the token is one word. spans: where each word is in `text`. links: from dependent to
    head, without roots and without links inside a word. path, line: the file, and the line of its first word.
    """

    text: str
    forms: tuple[str, ...]
    spans: tuple[Span, ...]
    links: tuple[WordLink, ...]
    path: Path
    line: int

    directions: ClassVar[tuple[str, str]] = ("dependent to head", "head to dependent")
    possible: ClassVar[tuple[Span, ...]] = ()
    cross: ClassVar[bool] = False
    """Whether queries and keys are words of two texts."""

    @property
    def origin(self) -> str:
        return f"{self.path}:{self.line}"


def read_conllu(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL-U file, plain or gzip. Empty nodes (`1.1`) are skipped.

    Raises UserError, with file and line, for a line that is not CoNLL-U, for words that differ from `# text`, and for a
    file without sentences.
    """
    block: list[tuple[int, str]] = []
    is_empty = True
    # The last sentence may end without a blank line.
    for number, line in enumerate(chain(lines(path), [""]), 1):
        if line.strip():
            block.append((number, line))
            continue
        sentence = _sentence(path, block)
        block = []
        if sentence is not None:
            is_empty = False
            yield sentence
    if is_empty:
        raise UserError(
            f"{path}: expected sentences in CoNLL-U, got none; fill the file or name another"
        )


def word_indices(offsets: Sequence[Span], spans: Sequence[Span]) -> list[int | None]:
    """The word of each token, by its first character that is in a word; None for tokens outside of words.

    offsets: where each token is in the text, empty for special tokens. spans: the words, in order.
    """
    ends = [end for _, end in spans]
    indices: list[int | None] = []
    for start, end in offsets:
        word = bisect_right(ends, start)
        is_inside = start < end and word < len(spans) and spans[word][0] < end
        indices.append(word if is_inside else None)
    return indices


# One sentence ---------------------------------------------------------------------------------------------------------


class _Word(NamedTuple):
    line: int
    form: str
    head: int
    relation: str
    has_space_after: bool


class _Token(NamedTuple):
    """A token as it stands in the text. first, last: the indices of its words."""

    line: int
    form: str
    first: int
    last: int
    has_space_after: bool


def _sentence(path: Path, block: list[tuple[int, str]]) -> Sentence | None:
    """The sentence of these lines; None for lines without words."""
    rows = [(number, line) for number, line in block if not line.startswith("#")]
    if not rows:
        return None
    words, ranges = _words(path, rows)
    tokens = _tokens(path, words, ranges)
    comments = [(number, TEXT.fullmatch(line)) for number, line in block if line.startswith("#")]
    texts = [(number, match[1]) for number, match in comments if match is not None]
    number, text = texts[0] if texts else (0, _joined(tokens))
    forms, spans, form_of_word = [], [], []
    for token, start in zip(tokens, _starts(path, number, text, tokens), strict=True):
        parts = [word.form for word in words[token.first : token.last + 1]]
        is_spelled = "".join(parts) == token.form
        for form in parts if is_spelled else [token.form]:
            form_of_word += [len(forms)] * (1 if is_spelled else len(parts))
            forms.append(form)
            spans.append((start, start + len(form)))
            start += len(form)
    links = [
        WordLink(word.relation, form_of_word[index], form_of_word[word.head - 1])
        for index, word in enumerate(words)
        if word.head
    ]
    apart = [link for link in links if link.query != link.key]
    return Sentence(text, tuple(forms), tuple(spans), tuple(apart), path, rows[0][0])


def _words(
    path: Path, rows: list[tuple[int, str]]
) -> tuple[list[_Word], list[tuple[int, list[str]]]]:
    """The words of a sentence, and the lines of its multiword tokens."""
    words, ranges = [], []
    for number, line in rows:
        columns = line.split("\t")
        if len(columns) != COLUMNS or not all(columns):
            raise _broken(path, number, f"{COLUMNS} columns with a tab between, none empty", line)
        name = columns[0]
        if RANGE.fullmatch(name):
            ranges.append((number, columns))
        elif NUMBER.fullmatch(name):
            words.append(_word(path, number, columns, len(words) + 1))
        elif not EMPTY_NODE.fullmatch(name):
            raise _broken(path, number, "an ID such as 1, 1-2 or 1.1 in column 1", name)
    for index, word in enumerate(words):
        if word.head > len(words) or word.head == index + 1:
            expected = f"another word of the sentence, 0 to {len(words)}, as HEAD in column 7"
            raise _broken(path, word.line, expected, str(word.head))
    return words, ranges


def _word(path: Path, number: int, columns: list[str], expected: int) -> _Word:
    name, form, head, relation, misc = (columns[index] for index in (0, 1, 6, 7, 9))
    if int(name) != expected:
        raise _broken(path, number, f"word {expected}, with a blank line between sentences", name)
    if not NUMBER.fullmatch(head):
        raise _broken(
            path, number, "the ID of a word, or 0 for the root, as HEAD in column 7", head
        )
    if relation == "_":
        raise _broken(path, number, "a relation such as nsubj in column 8", relation)
    return _Word(number, form, int(head), relation, not _has_no_space(misc))


def _has_no_space(misc: str) -> bool:
    return "SpaceAfter=No" in misc.split("|")


def _tokens(path: Path, words: list[_Word], ranges: list[tuple[int, list[str]]]) -> list[_Token]:
    """The tokens as they stand in the text, in order."""
    multiword = []
    for number, columns in ranges:
        first, last = map(int, columns[0].split("-"))
        if not 1 <= first < last <= len(words):
            raise _broken(path, number, f"a range within the words 1 to {len(words)}", columns[0])
        token = _Token(number, columns[1], first - 1, last - 1, not _has_no_space(columns[9]))
        multiword.append(token)
    for token, following in pairwise(multiword):
        if following.first <= token.last:
            got = f"{following.first + 1}-{following.last + 1} after {token.first + 1}-{token.last + 1}"
            raise _broken(path, following.line, "ranges in order that do not overlap", got)
    inside = {index for token in multiword for index in range(token.first, token.last + 1)}
    single = [
        _Token(word.line, word.form, index, index, word.has_space_after)
        for index, word in enumerate(words)
        if index not in inside
    ]
    return sorted([*multiword, *single], key=lambda token: token.first)


def _joined(tokens: list[_Token]) -> str:
    """The text of tokens by their SpaceAfter=No."""
    return "".join(token.form + " " * token.has_space_after for token in tokens).rstrip()


def _starts(path: Path, number: int, text: str, tokens: list[_Token]) -> Iterator[int]:
    """The first character of each token in the text."""
    end = 0
    for token in tokens:
        start = end + len(text[end:]) - len(text[end:].lstrip())
        end = start + len(token.form)
        if text[start:end] != token.form:
            got = f"{text[start : start + 40]!r} in # text (line {number})"
            raise _broken(path, token.line, f"{token.form!r} as in column 2", got)
        yield start


def _broken(path: Path, number: int, expected: str, got: str) -> UserError:
    shown = got if len(got) <= 80 else f"{got[:80]}..."
    return UserError(f"{path}:{number}: expected {expected}; got {shown}; {HOW_TO_CHECK}")
