"""Examples of a study: lines of a text, pairs of texts, or the files of a folder, each with its origin."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, tee
from pathlib import Path
from typing import Any, Literal

from jarilab.core.errors import UserError
from jarilab.core.storage.files import sha256
from jarilab.data.images.listing import SUFFIXES, natural
from jarilab.data.text.conllu import read_conllu
from jarilab.data.text.text_files import lines, walk_visible
from jarilab.data.text.word_links import read_links

Kind = Literal["text", "pairs", "image", "sound"]
SOUNDS = (".wav",)


@dataclass(frozen=True)
class ExampleRow:
    """One example. origin: `FILE:LINE` or the name of a file. text: the text, or the path of the file.

    second: the second text of a pair, else None. gold: the sentence of a CoNLL-U file, or links of words; else None.
    """

    origin: str
    text: str
    second: str | None = None
    gold: Any = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or both texts of a pair."""
        return (self.text,) if self.second is None else (self.text, self.second)


@dataclass(frozen=True)
class ExampleFile:
    """A file or folder of examples.

    kind: of all its examples. limit: the number that is read; None for all. gold: a file of links between words.
    """

    path: Path
    kind: Kind
    limit: int | None = None
    gold: Path | None = None

    @staticmethod
    def of(
        path: str | Path, limit: int | None = None, gold: str | Path | None = None
    ) -> ExampleFile:
        """Find the kind of a file or folder.

        Raises UserError for a missing file, a folder without examples, and links of images or of CoNLL-U.
        """
        path = Path(path)
        links = None if gold is None else Path(gold)
        if links is not None and (path.is_dir() or is_conllu(path)):
            raise UserError(
                f"--gold expects lines of text or pairs, whose words {gold} links, got {path}; a CoNLL-U file has its "
                "own links, so omit --gold"
            )
        if path.is_dir():
            return ExampleFile(path, _kind_of_folder(path), limit)
        if not path.is_file():
            raise UserError(
                f"{path}: expected a text file or a folder of images or sounds, got no such file; check --data"
            )
        if is_conllu(path):
            return ExampleFile(path, "text", limit)
        first = next((line for line in lines(path) if line.strip()), "")
        return ExampleFile(path, "pairs" if "\t" in first else "text", limit, links)

    def __iter__(self) -> Iterator[ExampleRow]:
        """The examples in order. Raises UserError, with file and line, for an empty line or a missing column."""
        if self.path.is_dir():
            return islice(self._files(), self.limit)
        rows = self._sentences() if is_conllu(self.path) else self._lines()
        if self.gold is not None:
            rows = _linked(rows, self.gold)
        return islice(rows, self.limit)

    @property
    def has_gold(self) -> bool:
        """Whether examples come with links between their words."""
        return self.gold is not None or is_conllu(self.path)

    @property
    def gold_digest(self) -> str | None:
        """The name and a hash of the file of links; None without one."""
        return None if self.gold is None else f"{self.gold.name} {sha256(self.gold)[:16]}"

    @property
    def digest(self) -> str:
        """A hash of the file, or of the names and sizes of a folder's files."""
        if not self.path.is_dir():
            return sha256(self.path)
        hashed = hashlib.sha256()
        for row in self._files():
            size = Path(row.text).stat().st_size
            hashed.update(f"{row.origin}\0{size}\0".encode("utf-8", "surrogateescape"))
        return hashed.hexdigest()

    def _files(self) -> Iterator[ExampleRow]:
        suffixes = SUFFIXES if self.kind == "image" else SOUNDS
        for path in _files_of(self.path):
            if path.suffix.lower() in suffixes:
                yield ExampleRow(str(path.relative_to(self.path)), str(path))

    def _sentences(self) -> Iterator[ExampleRow]:
        for sentence in read_conllu(self.path):
            yield ExampleRow(f"{self.path.name}:{sentence.line}", sentence.text, gold=sentence)

    def _lines(self) -> Iterator[ExampleRow]:
        for number, line in enumerate(lines(self.path), 1):
            origin = f"{self.path.name}:{number}"
            if not line.strip():
                raise UserError(f"{origin}: expected a text, got an empty line; remove the line")
            if self.kind == "text":
                yield ExampleRow(origin, line)
                continue
            columns = line.split("\t")
            if len(columns) < 2 or not (columns[0].strip() and columns[1].strip()):
                raise UserError(
                    f"{origin}: expected two texts with a tab between them, as in the first line, got {line[:60]!r}; "
                    "add the second text, or remove the line"
                )
            yield ExampleRow(origin, columns[0], columns[1])


def is_conllu(path: Path) -> bool:
    """Whether the name is that of a CoNLL-U file, plain or gzip."""
    return path.name.lower().removesuffix(".gz").endswith(".conllu")


def _linked(rows: Iterator[ExampleRow], gold: Path) -> Iterator[ExampleRow]:
    rows, texts = tee(rows)
    links = read_links(gold, (row.texts for row in texts))
    for row, link in zip(rows, links, strict=True):
        yield replace(row, gold=link)


def _files_of(folder: Path) -> list[Path]:
    """The files of a folder and its subfolders in natural order, without hidden ones."""
    names = []
    for parent, _, files in walk_visible(folder):
        names += [str(parent.relative_to(folder) / name) for name in files]
    return [folder / name for name in natural(names)]


def _kind_of_folder(folder: Path) -> Kind:
    suffixes = {path.suffix.lower() for path in _files_of(folder)}
    has_images, has_sounds = not suffixes.isdisjoint(SUFFIXES), not suffixes.isdisjoint(SOUNDS)
    if has_images == has_sounds:
        endings = ", ".join(sorted(suffix or "no ending" for suffix in suffixes)[:5])
        got = "both" if has_images else f"only {endings} files" if suffixes else "an empty folder"
        raise UserError(
            f"{folder}: expected a folder of images or one of sounds (.wav), got {got}; name a folder of one kind"
        )
    return "image" if has_images else "sound"
