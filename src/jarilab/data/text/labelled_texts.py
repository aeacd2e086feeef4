"""Texts with a class each: of a TSV or CSV, or of a folder for each class."""

from __future__ import annotations

import random
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from jarilab.core.errors import UserError, counted
from jarilab.data.finding import Finding, overlap_severity, share
from jarilab.data.text import text_files
from jarilab.data.text.columns import LABEL, TEXT, TEXT_A, TEXT_B, open_table
from jarilab.data.text.scan import normal

Texts = tuple[str, ...]
"""One text, or two."""


@dataclass
class LabelledTexts:
    """Texts and their labels, in the order of the file. findings: what was recognised and left out."""

    texts: list[Texts]
    labels: list[str]
    findings: list[Finding] = field(default_factory=list)

    def split(self, share: float) -> tuple[LabelledTexts, LabelledTexts]:
        """All but about `share` of the texts, and these; chosen by content, so equal texts stay together."""
        parts = LabelledTexts([], [], self.findings), LabelledTexts([], [], [])
        for texts, label in zip(self.texts, self.labels, strict=True):
            number = zlib.crc32("\t".join(sorted(map(normal, texts))).encode())
            part = parts[number < share * 2**32]
            part.texts.append(texts)
            part.labels.append(label)
        return parts


def read_labelled_texts(path: Path, columns: tuple[str, ...], *, pairs: bool) -> LabelledTexts:
    """The texts of a file or folder. pairs: two texts for each label. Raises UserError."""
    if path.is_dir():
        if pairs:
            raise UserError(
                f"--pairs expects a TSV or CSV of labels and two texts, got the folder {path}"
            )
        rows, findings = _of_folders(path), []
    else:
        table = open_table(path, (LABEL, TEXT_A, TEXT_B) if pairs else (LABEL, TEXT), columns)
        rows = (cells for _, cells in table.rows())
        findings = [Finding("note", "columns", table.notice)] if table.notice else []
    found, blank = LabelledTexts([], [], findings), 0
    for label, *texts in rows:
        stripped = tuple(text.strip() for text in texts)
        if label.strip() and all(stripped):
            found.texts.append(stripped)
            found.labels.append(label.strip())
        else:
            blank += any([label.strip(), *stripped])
    if blank:
        text = f"{path}: {counted(blank, 'rows', 'have')} no label or no text"
        findings.append(
            Finding("warning", "blank", text, f"{'it is' if blank == 1 else 'they are'} left out")
        )
    if not found.texts:
        raise text_files.no_usable([path])
    meanings: dict[Texts, set[str]] = {}
    for each, label in zip(found.texts, found.labels, strict=True):
        meanings.setdefault(tuple(map(_alike, each)), set()).add(label)
    total = len(found.texts)
    if several := sum(len(labels) > 1 for labels in meanings.values()):
        text = f"{path}: {share(several, len(meanings), 'different texts', 'have')} several labels"
        severity = overlap_severity(several, len(meanings))
        findings.append(Finding(severity, "labels", text, "keep the right one of each"))
    if twice := total - len(meanings):
        text = f"{path}: {share(twice, total, 'texts', 'repeat')} an earlier one"
        findings.append(Finding("warning", "repeats", text, "remove them if that is not meant"))
    return found


def _alike(text: str) -> str:
    """A text in small letters, with single blanks. Signs count: `:)` and `:(` may be all that decides."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _of_folders(path: Path) -> Iterator[tuple[str, str]]:
    """The class and the text of each file, from a folder for each class."""
    folders = sorted(each for each in path.iterdir() if each.is_dir() and each.name[0] != ".")
    if not folders:
        raise UserError(
            f"{path}: expected a folder of .txt files for each class; got none; name such a folder, or a TSV or CSV of "
            "labels and texts"
        )
    for folder in folders:
        for file in text_files.document_files(folder):
            yield folder.name, " ".join(text_files.lines(file))


# Who did what to whom ------------------------------------------------------------------------------------------------

NOUNS = [
    "cat", "dog", "horse", "bear", "mouse", "wolf", "goat", "fox", "duck", "sheep", "lion", "owl",
]  # fmt: skip
VERBS = [
    "followed", "pushed", "chased", "called", "watched", "kicked", "licked", "helped", "found", "caught",
]  # fmt: skip
SAME, OTHER = "same", "other"


def role_pairs(share: float) -> tuple[LabelledTexts, LabelledTexts]:
    """Pairs of sentences that say the same or not: `the cat followed the dog`, `the dog was followed by the cat`.

    The words of a pair never decide: each bag of words occurs as often with either label. So every pair of nouns and
    verb is trained or held out as a whole, about `share` of them held out.
    """
    parts = LabelledTexts([], []), LabelledTexts([], [])
    triples = [(*nouns, verb) for nouns in product(NOUNS, NOUNS) for verb in VERBS]
    triples = [triple for triple in triples if triple[0] < triple[1]]
    random.Random(1).shuffle(triples)
    held_out = max(1, round(share * len(triples)))
    for number, (one, other, verb) in enumerate(triples):
        part = parts[number < held_out]
        roles = ((one, other), (other, one))
        for who, whom, first, second in product(roles, roles, (False, True), (False, True)):
            part.texts.append((_sentence(who, verb, first), _sentence(whom, verb, second)))
            part.labels.append(SAME if who == whom else OTHER)
    return parts


def _sentence(roles: tuple[str, str], verb: str, passive: bool) -> str:
    agent, patient = roles
    if passive:
        return f"the {patient} was {verb} by the {agent}"
    return f"the {agent} {verb} the {patient}"
