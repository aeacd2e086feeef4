"""How pages read: `python docs/build/prose.py [PAGE ...]`. Figures to look at; no test depends on them.

Words a sentence (aim: at most 16), share of sentences above 30 words (at most 6 %), and how often "you" stands in
1,000 words (at least 12 in the README), of prose alone: no code, tables, headings or comments.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from places import ROOT
from tables import table

FENCED = re.compile(r"^ *```.*?^ *```$|<!--.*?-->", re.M | re.S)
UNREAD = re.compile(r"^(?:\||    |\t|#|<|\{\{|!\[).*$", re.M)
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
END = re.compile(r"(?<=[.!?])\s+|\n\s*\n|^\s*(?:[-*]|\d+\.) ", re.M)
GROUPS = {
    "README": ("README.md",),
    "tutorials": ("docs/tutorials/*.md",),
    "how-to": ("docs/how-to/*.md",),
    "reference": ("docs/reference/*.md",),
    "explanation": ("docs/explanation/*.md",),
    "lessons": ("docs/site/en/lessons/*.md",),
    "the site": ("docs/site/en/*.md", "docs/site/en/encodings/*.md", "docs/site/en/how-to/*.md"),
    "results": ("docs/results/*.md",),
    "decisions": ("docs/explanation/decisions/*.md",),
}


def prose(page: str) -> str:
    """What of a page is prose."""
    return LINK.sub(r"\1", UNREAD.sub("", FENCED.sub("", page)))


def sentences(page: str) -> list[list[str]]:
    """The words of each sentence of at least three words."""
    return [words for words in map(str.split, END.split(prose(page))) if len(words) > 2]


def row(name: str, pages: Iterable[Path]) -> list[str]:
    """The figures of some pages together."""
    texts = [page.read_text(encoding="utf-8") for page in pages]
    lengths = [len(words) for text in texts for words in sentences(text)] or [0]
    count = sum(lengths)
    readers = sum(len(re.findall(r"\byou(?:r|rs|rself)?\b", prose(text), re.I)) for text in texts)
    long = sum(length > 30 for length in lengths) / len(lengths)
    return [
        name,
        f"{count:,}",
        f"{count / len(lengths):.1f}",
        f"{long:.0%}",
        f"{1000 * readers / max(count, 1):.1f}",
    ]


def rows(named: Iterable[str]) -> Iterator[list[str]]:
    """Of the pages that are named, or of all: a row for each group, then for each page."""
    if named:
        yield from (row(name, [Path(name)]) for name in named)
        return
    groups = {
        name: sorted(page for pattern in patterns for page in ROOT.glob(pattern))
        for name, patterns in GROUPS.items()
    }
    yield from (row(f"**{name}**", pages) for name, pages in groups.items())
    for pages in groups.values():
        yield from (row(str(page.relative_to(ROOT)), [page]) for page in pages)


def main() -> None:
    """Print the table."""
    head = ["page", "words", "words a sentence", "above 30 words", '"you" in 1,000']
    print(table(head, list(rows(sys.argv[1:]))))


if __name__ == "__main__":
    main()
