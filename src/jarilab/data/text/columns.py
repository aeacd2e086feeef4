"""Columns of TSV and CSV files: which are read, whether the first line is a title, whether cells are quoted.

What is recognised is said in `Table.notice`. What is ambiguous is refused, with the first lines and the option to give.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from jarilab.core.errors import UserError, printable
from jarilab.data.text.text_files import MAX_LINE_BYTES, PACKED, lines, no_usable

SAMPLE_ROWS = 1000
"""Rows by which a file is recognised."""

_DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
_SHOWN_ROWS, _SHOWN_CHARACTERS, _MAX_TITLE = 3, 100, 30
_MIN_LABELLED = 20
"""Labels that show whether the first one is a title."""
_CELL = re.compile(r'(?:^|\t)("(?:[^"]|"")*"|[^\t"][^\t]*|)(?=\t|$)')
_STARTS_QUOTED = re.compile('"').match
_DIGIT = re.compile(r"\d").search
_NUMBER = re.compile(r"[^\s\d]*\d\S*")
_REFERENCE = re.compile(r"CC[- ]BY|https?://|tatoeba")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGES = _names(
    "ar cs da de deu el en eng es fa fi fr fra he hi hu it ja jpn ko kor nl no pl pt ro ru sv th tr uk vi zh zho "
    "arabic chinese czech danish dutch english finnish french german greek hebrew hindi hungarian italian japanese "
    "korean norwegian persian polish portuguese romanian russian spanish swedish thai turkish ukrainian vietnamese "
    "영어 한국어 독일어 프랑스어 일본어 중국어"
)
_OTHER_TITLES = _names(
    "id ids idx index no number nr sid key lang language score domain split license licence attribution origin mt "
    "sentences translation 번호 출처"
)

Content = Literal["numbers", "few values", "references", "text"]


@dataclass(frozen=True)
class Role:
    """A column that a task needs. titles: usual titles in small letters. repeats: whether values repeat, as labels."""

    name: str
    titles: frozenset[str]
    repeats: bool = False


SOURCE = Role("source", _names("source src input question 원문"))
TARGET = Role("target", _names("target tgt trg output answer reference 번역 번역문"))
LABEL = Role("label", _names("label labels class category target 라벨 분류"), True)
TEXT = Role("text", _names("text sentence document review comment 문장"))
TEXT_A = Role("text_a", _names("premise first"))
TEXT_B = Role("text_b", _names("hypothesis second"))
_TITLES = _OTHER_TITLES.union(
    LANGUAGES, *(role.titles for role in (SOURCE, TARGET, LABEL, TEXT, TEXT_A, TEXT_B))
)


@dataclass(frozen=True)
class Table:
    """How to read a file of columns; `open_table` makes one.

    columns: indices of the columns of each role. width: columns of a row. quoted: whether quotes enclose cells.
    notice: what was recognised or chosen, in words; empty if the file has exactly the expected columns.
    """

    path: Path
    delimiter: str
    quoted: bool
    has_title: bool
    width: int
    columns: tuple[int, ...]
    notice: str

    def rows(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield the line number and the chosen cells of each row without the title; blank cells for a blank line.

        A line break in a quoted cell becomes a blank. Raises UserError for a row of another number of columns.
        """
        awaits_title = self.has_title
        for number, cells in read_rows(self.path, self.delimiter, self.quoted):
            if not any(map(str.strip, cells)):
                yield number, ("",) * len(self.columns)
            elif len(cells) != self.width:
                raise _other_width(self, number, cells)
            elif awaits_title:
                awaits_title = False
            else:
                yield number, tuple(cells[column] for column in self.columns)


def read_rows(path: Path, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the cells of each row, blank ones included. Raises UserError, as `lines` does."""
    if not quoted:
        for number, line in enumerate(lines(path), 1):
            yield number, line.split(delimiter)
        return
    texts = (f"{line}\n" for line in lines(path))  # so that csv sees line breaks in cells
    reader = _csv_reader(texts, delimiter=delimiter, strict=True, skipinitialspace=True)
    number = 1
    try:
        for row in reader:
            yield number, [cell.replace("\n", " ") for cell in row]
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}:{number}: expected cells in the quotes of CSV from this line on; got: {error}; close the quote, "
            'and write "" for a quote in a cell'
        ) from None


def _csv_reader(texts: Iterable[str], **form: Any) -> Any:
    """`csv.reader` for cells as long as a line may be; its own limit is 128 KiB."""
    csv.field_size_limit(MAX_LINE_BYTES)
    return csv.reader(texts, **form)


def open_table(path: Path, roles: Sequence[Role], columns: Sequence[str] = ()) -> Table:
    """Recognise how to read a file of columns, from its first SAMPLE_ROWS rows.

    roles: the columns to find. columns: their numbers from 1, or their titles in the first line; several in one text
    are separated by commas. Raises UserError, with the first lines, if the columns are missing or ambiguous.
    """
    _refuse_json(path, len(roles))
    delimiter, quoted = _form(path)
    reader = (row for _, row in read_rows(path, delimiter, quoted))
    rows = list(islice((row for row in reader if any(map(str.strip, row))), SAMPLE_ROWS))
    chosen = [name.strip() for text in columns for name in text.split(",")]
    width = _width(rows, len(roles))
    regular = [row for row in rows if len(row) == width]
    has_title = rows[:1] == regular[:1] and _is_title(regular)
    if chosen:
        column_numbers, named = _named(path, rows, width, chosen, roles)
        has_title = has_title or named
    else:
        column_numbers = _recognised(regular, has_title, roles)
    if column_numbers is None:
        raise _ambiguous(path, rows, roles, "is ambiguous")
    if rows[:1] == regular[:1]:
        has_title = has_title or _names_labels(regular, column_numbers, roles)
    titles = [rows[0][column].strip() for column in column_numbers] if has_title else []
    form = ["cells are in quotes"] if quoted and not _is_csv(path) else []
    if _is_csv(path) and delimiter != ",":
        form = [f"{_DELIMITERS[delimiter]} separates the cells"]
    notice = _notice(path, column_numbers, width, titles, form)
    return Table(path, delimiter, quoted, has_title, width, column_numbers, notice)


def _refuse_json(path: Path, needed: int) -> None:
    """Raises UserError for a file with an object of JSON in each line."""
    try:
        record = json.loads(next(lines(path), ""))
    except (ValueError, RecursionError):
        return
    if isinstance(record, dict):
        cells = ", ".join(f".{key}" for key in list(record)[:needed])
        convert = shlex.quote(f"[{cells}] | @tsv")
        raise UserError(
            f"{path}: expected a TSV or CSV; got JSON in each line; convert it, such as: jq -r {convert} "
            f"{shlex.quote(path.name)} > {shlex.quote(path.stem)}.tsv"
        )


def _is_csv(path: Path) -> bool:
    return path.name.lower().endswith((".csv", *(f".csv{ending}" for ending in PACKED)))


def _form(path: Path) -> tuple[str, bool]:
    """The delimiter of a file, and whether quotes enclose its cells."""
    sample = list(islice(lines(path), SAMPLE_ROWS))
    if _is_csv(path):
        return max(_DELIMITERS, key=lambda delimiter: _regular_rows(sample, delimiter)), True
    texts = [line for line in sample[1:] or sample if line.strip()]
    cells = list(map(_CELL.findall, texts))
    lengths = [sum(map(len, row)) + len(row) - 1 for row in cells]
    is_quoted = [all(map(_STARTS_QUOTED, column)) for column in zip(*cells, strict=False)]
    every = [cell for row in cells for cell in row]
    # Many programs quote only those cells that have a quote, and double it there.
    is_doubled = any('""' in cell[1:-1] for cell in every if _STARTS_QUOTED(cell))
    is_minimal = is_doubled and not any('"' in cell for cell in every if not _STARTS_QUOTED(cell))
    return "\t", lengths == list(map(len, texts)) and (any(is_quoted) or is_minimal)


def _regular_rows(sample: list[str], delimiter: str) -> int:
    """The largest number of rows with equally many columns, two or more."""
    try:
        counts = Counter(map(len, _csv_reader(sample, delimiter=delimiter)))
    except csv.Error:  # reported with its line when the rows are read
        return 0
    return max((count for width, count in counts.items() if width > 1), default=0)


def _width(rows: Sequence[Sequence[str]], needed: int) -> int:
    """The number of columns of most rows; at least `needed`, which also wins a tie."""
    counts = Counter(map(len, rows))
    usual = max(counts, key=lambda width: (counts[width], width == needed), default=needed)
    return max(usual, needed)


def _is_title(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: by usual words, or a word above a column of numbers."""
    first, rest = rows[0] if rows else [], rows[1:]
    cells = [cell.strip() for cell in first]
    are_short = [0 < len(cell) <= _MAX_TITLE and cell[-1] not in ".?!" for cell in cells]
    if not cells or len(set(cells)) < len(cells) or not all(are_short):
        return False
    usual = [c for c, cell in enumerate(cells) if _words(cell) and _words(cell) <= _TITLES]
    if any(row[column].strip() == cells[column] for row in rest for column in usual):
        return False
    known = len(usual)
    if known == len(cells) or (len(cells) > 2 and known >= 2):
        return True
    contents = map(_content, zip(*rest, strict=True))
    return len(rest) >= 3 and any(
        content == "numbers" and not _DIGIT(cell)
        for cell, content in zip(cells, contents, strict=True)
    )


def _names_labels(
    rows: Sequence[Sequence[str]], column_numbers: Sequence[int], roles: Sequence[Role]
) -> bool:
    """Whether the first row alone has its label, a word, while all others repeat: it is a title such as `sentiment`."""
    for column, role in zip(column_numbers, roles, strict=True):
        if role.repeats:
            first, *rest = (row[column].strip() for row in rows)
            counts = Counter(filter(None, rest))
            is_word = 0 < len(first) <= _MAX_TITLE and not _DIGIT(first)
            if (
                is_word
                and first not in counts
                and len(rest) >= _MIN_LABELLED
                and min(counts.values(), default=0) > 1
            ):
                return True
    return False


def _words(title: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]+", title.casefold()))


def _content(cells: Sequence[str]) -> Content:
    """What a column holds, by its values in the sample."""
    values = [cell.strip() for cell in cells if cell.strip()]
    # Of a few rows fewer are equal.
    if len(values) > 1 and len(set(values)) * (2 if len(values) < 40 else 4) <= len(values):
        return "few values"
    if all(_NUMBER.fullmatch(value) for value in values):
        return "numbers"
    return "references" if all(map(_REFERENCE.search, values)) else "text"


def _recognised(
    rows: Sequence[Sequence[str]], has_title: bool, roles: Sequence[Role]
) -> tuple[int, ...] | None:
    """The columns of the roles by titles, languages or contents; None if they are ambiguous."""
    width = len(rows[0]) if rows else len(roles)
    titles = [_words(cell) for cell in rows[0]] if has_title else []
    by_title = [_titled(titles, role) for role in roles]
    if all(len(columns) == 1 for columns in by_title):
        column_numbers = tuple(column for (column,) in by_title)
        if len(set(column_numbers)) == len(roles):
            return column_numbers
    languages = [column for column, title in enumerate(titles) if title and title <= LANGUAGES]
    in_order = not any(role.repeats for role in roles)
    if in_order and len(languages) == len(roles):
        return tuple(languages)
    if in_order and width == len(roles):
        return tuple(range(width))
    contents: list[Content] = [_content(column) for column in zip(*rows[has_title:], strict=True)]
    few = _having(contents, "few values")
    repeated = [role for role in roles if role.repeats]
    others = [role for role in roles if not role.repeats]
    texts = _having(contents, "text")
    if len(texts) != len(others) or (repeated and len(few) != len(repeated)):
        return None
    column_of = dict(zip([*repeated, *others], [*few[: len(repeated)], *texts], strict=True))
    return tuple(column_of[role] for role in roles)


def _titled(titles: Sequence[set[str]], role: Role) -> list[int]:
    return [column for column, title in enumerate(titles) if title & role.titles]


def _having(contents: Sequence[Content], wanted: Content) -> list[int]:
    return [column for column, content in enumerate(contents) if content == wanted]


def _named(
    path: Path,
    rows: Sequence[Sequence[str]],
    width: int,
    chosen: Sequence[str],
    roles: Sequence[Role],
) -> tuple[tuple[int, ...], bool]:
    """The indices of columns by their numbers or titles, and whether titles were given. Raises UserError."""
    titles = [cell.strip().casefold() for cell in rows[0][:width]] if rows else []
    column_numbers = []
    for name in chosen:
        if name.isascii() and name.isdecimal() and 1 <= int(name[:9]) <= width:
            column_numbers.append(int(name) - 1)
        elif titles.count(name.casefold()) == 1:
            column_numbers.append(titles.index(name.casefold()))
        else:
            raise _ambiguous(path, rows, roles, f"does not have the column {name!r}")
    if len(set(column_numbers)) < len(column_numbers):
        raise _ambiguous(path, rows, roles, f"has {' and '.join(chosen)} in one column")
    if len(column_numbers) != len(roles):
        raise _ambiguous(path, rows, roles, f"is not read by {len(column_numbers)} columns")
    return tuple(column_numbers), not all(map(str.isdecimal, chosen))


def _notice(
    path: Path,
    column_numbers: Sequence[int],
    width: int,
    titles: Sequence[str],
    form: Sequence[str],
) -> str:
    notes = []
    if width > len(column_numbers) or list(column_numbers) != sorted(column_numbers):
        numbers = " and ".join(str(column + 1) for column in column_numbers)
        notes.append(f"columns {numbers} of {width}")
    if titles:
        notes.append(f"first line is a title ({', '.join(titles)})")
    notes += form
    return f"{path}: {printable('; '.join(notes))}" if notes else ""


def _ambiguous(
    path: Path, rows: Sequence[Sequence[str]], roles: Sequence[Role], problem: str
) -> UserError:
    """The error for columns that cannot be chosen, with the first rows."""
    if not rows:
        return no_usable([path])
    names = " and ".join(role.name for role in roles)
    shown = "".join(map(_shown, rows[:_SHOWN_ROWS]))
    numbers = ",".join(str(n) for n in range(1, len(roles) + 1))
    has_more = TEXT in roles and len(rows[0]) > len(roles)
    other = "; of two texts in each row, also pass --pairs" if has_more else ""
    return UserError(
        f"{path}: expected columns for {names}; got a file that {problem}, which begins:{shown}\ngive their numbers or "
        f"the titles of the first line, in this order, such as --columns {numbers}{other}"
    )


def _shown(row: Sequence[str]) -> str:
    cells = " | ".join(f"{number}: {printable(cell)}" for number, cell in enumerate(row, 1))
    return f"\n  {cells[:_SHOWN_CHARACTERS]}"


def _other_width(table: Table, number: int, cells: Sequence[str]) -> UserError:
    needed = {2: "two"}.get(table.width, str(table.width))
    got = "one" if len(cells) == 1 else str(len(cells))
    between = _DELIMITERS[table.delimiter]
    shown = printable(table.delimiter.join(cells)[:60])
    return UserError(
        f"{table.path}:{number}: expected {needed} columns with {between} between; got {got}: {shown!r}; fix the line, "
        "or give a file for each side"
    )
