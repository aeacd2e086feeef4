"""Pairs of texts: the lines of two files, or two columns of a TSV or CSV file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from jarilab.core.errors import UserError
from jarilab.data.text.columns import SOURCE, TARGET, Table, open_table
from jarilab.data.text.text_files import lines, no_usable


@dataclass
class PairCounts:
    """Counts of usable pairs, of pairs with a blank side, and of pairs omitted for their length.

    ends: the number of usable pairs up to the end of each corpus, of any length.
    """

    pairs: int = 0
    blank: int = 0
    too_long: int = 0
    ends: list[int] = field(default_factory=list, compare=False)


def pair_table(paths: Sequence[Path], columns: Sequence[str] = ()) -> Table | None:
    """How to read the columns of one file; None for two. Raises UserError for another number of files.

    columns: as in `columns.open_table`; two files have none.
    """
    if len(paths) == 1:
        return open_table(paths[0], (SOURCE, TARGET), columns)
    if len(paths) != 2:
        raise UserError(
            f"expected two files, or one of tab-separated values; got {len(paths)}; name one or two files"
        )
    return None


def table_facts(corpora: Sequence[Sequence[Path]], columns: Sequence[str]) -> list[Any]:
    """How the files of each corpus are read, for the cache."""
    tables = [pair_table(paths, columns) for paths in corpora]
    return [
        table and [table.delimiter, table.quoted, table.has_title, table.width, *table.columns]
        for table in tables
    ]


def numbered_pairs(
    paths: Sequence[Path], columns: Sequence[str] = ()
) -> Iterator[tuple[int, str, str]]:
    """Yield the line number and both texts of every pair, blank ones too. Raises as `pairs` does."""
    table = pair_table(paths, columns)
    if table is None:
        yield from _parallel(*paths)
    else:
        for number, (one, other) in table.rows():
            yield number, one, other


def pairs(
    corpora: Sequence[Sequence[Path]], counts: PairCounts, columns: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of several corpora: lines of two files each, or two columns of one (see `pair_table`).

    Pairs with a blank side are skipped. `counts` is updated while you iterate. Raises UserError if the files differ in
    length, a line has another number of columns, or a corpus has no usable pair.
    """
    usable = 0
    for paths in corpora:
        for _, one, other in numbered_pairs(paths, columns):
            if one.strip() and other.strip():
                counts.pairs += 1
                usable += 1
                yield one, other
            else:
                counts.blank += 1
        if usable == (counts.ends[-1] if counts.ends else 0):
            raise no_usable(paths)
        counts.ends.append(usable)


def _parallel(source: Path, target: Path) -> Iterator[tuple[int, str, str]]:
    left, right = lines(source), lines(target)
    for number, (one, other) in enumerate(zip_longest(left, right), 1):
        if one is None or other is None:
            rest = right if one is None else left
            shorter, longer = number - 1, number + sum(1 for _ in rest)
            counts = (shorter, longer) if one is None else (longer, shorter)
            raise UserError(
                f"expected as many lines in both files; got {counts[0]} in {source} and {counts[1]} in {target}; "
                f"line {number} is the first without a partner; align the files line by line"
            )
        yield number, one, other
