"""A page of drawings side by side, as one HTML file that needs no network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from jarilab.core.errors import UserError
from jarilab.core.storage.files import write_text
from jarilab.pages.encodings.figures import Column
from jarilab.pages.encodings.svg import PACKAGE, STYLES, Drawing, Words
from jarilab.pages.kit.page import bundle, document, escape_text, frame, read

PAGE_STYLES = (STYLES[0], "kit/base.css", STYLES[1], "show.css")


@dataclass(frozen=True, eq=False)
class Drawings:
    """Columns of drawings. A notebook displays them.

    title: of the page. settings: length, sizes and heads, in words. record: the settings for `--json`.
    """

    title: str
    settings: Words
    record: dict[str, Any]
    columns: Sequence[Column]

    @property
    def html(self) -> str:
        """The page as one HTML document."""
        script = bundle(PACKAGE, "show.js")
        names = iter(self.files())
        body = Template(read(PACKAGE, "show.html")).substitute(
            heading=_breakable(self.title),
            settings=_spoken(self.settings),
            columns="\n".join(_section(column, names) for column in self.columns),
            script=script,
        )
        return document(PACKAGE, body, PAGE_STYLES, f"jari: {self.title}", scripts=[script])

    def save(self, path: str | Path) -> Path:
        """Write the page and return its path. Raises UserError for a folder and for a file that cannot be written."""
        path = Path(path)
        if path.is_dir():
            raise UserError(
                f"{path} is a folder; expected the name of a file, such as {path / 'encodings.html'}"
            )
        if not path.parent.is_dir():
            raise UserError(f"{path}: its folder is not there; make it first")
        write_text(path, self.html)
        return path

    def save_svgs(self, folder: str | Path) -> list[Path]:
        """Write each drawing as an SVG file, named by its encoding and content, and return the paths.

        Raises UserError if `folder` is a file.
        """
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file; expected a folder to write SVG files into")
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, drawing in self.files().items():
            write_text(folder / name, drawing.file())
            paths.append(folder / name)
        return paths

    def files(self) -> dict[str, Drawing]:
        """Every drawing by its file name."""
        drawings: dict[str, Drawing] = {}
        for column in self.columns:
            start = re.sub(r"\W+", "-", column.name).strip("-")
            for drawing in column.drawings:
                name, number = f"{start}-{drawing.name}.svg", 1
                while name in drawings:
                    number += 1
                    name = f"{start}-{drawing.name}-{number}.svg"
                drawings[name] = drawing
        return drawings

    def as_dict(self) -> dict[str, Any]:
        return {**self.record, "columns": [column.as_dict() for column in self.columns]}

    def _repr_html_(self) -> str:
        return frame(self.html)


def _section(column: Column, names: Iterator[str]) -> str:
    """A column; each drawing takes the next of the names of all files."""
    name = _breakable(column.name)
    sentences = "".join(
        f'<p class="lede" lang="en">{_marked(one)}.</p>' for one in column.sentences
    )
    facts = "".join(f"<li>{_spoken(words)}</li>" for words in column.facts)
    figures = "\n".join(_figure(next(names), drawing) for drawing in column.drawings)
    return (
        f"<section><div><h2>{name}</h2>\n{sentences}<ul>{facts}</ul></div>\n"
        f'<div class="figures">{figures}</div></section>'
    )


def _figure(file: str, drawing: Drawing) -> str:
    title, caption = _spoken(drawing.title), _spoken(drawing.caption)
    inside = f"<h3>{title}</h3>{drawing.markup()}<figcaption>{caption}</figcaption>"
    return f'<figure id="{Path(file).stem}">{inside}</figure>'


def _breakable(name: str) -> str:
    """A spec that may wrap after a colon or comma."""
    return re.sub("([:,])", r"\1<wbr>", escape_text(name))


def _spoken(words: Words) -> str:
    """Text in both languages, of which the page shows one."""
    both = zip(("en", "ko"), words, strict=True)
    return "".join(
        f'<span class="{lang}" lang="{lang}">{_marked(one)}</span>' for lang, one in both
    )


def _marked(sentence: str) -> str:
    """A sentence whose parts in backticks are code."""
    parts = sentence.split("`")
    return "".join(
        f"<code>{escape_text(part)}</code>" if number % 2 else escape_text(part)
        for number, part in enumerate(parts)
    )
