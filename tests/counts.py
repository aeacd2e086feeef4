"""Counts of size, names and prose: `python tests/counts.py`. Figures to look at; no test depends on them."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs" / "build"))

from prose import sentences  # pyright: ignore[reportMissingImports]  # noqa: E402

SOURCE = ROOT / "src" / "jarilab"
EMPTY_NAMES = re.compile(r"\b(?:found|told|own|given|said|heard|kept)\b *=")
# Left column of the table of names that the package no longer uses, as far as they are names of its own.
FORMER_NAMES = """
    conformance Way material Door Heard hear unheard Opening Passage above_chance
    homes spots HeadOfLink Room Fit Added added_by Opened Met lowered Attend Lines Saying
    Says Explored remembering unscripted onlooker unasked together beat keep_kernels leftovers
    former Telling kept_facts place_by proven
"""


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def twice(names: Iterable[str]) -> list[str]:
    """Names that occur more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def prose_row(name: str, texts: Iterable[str]) -> str:
    """Mean words a sentence and the share of sentences above 30 words."""
    lengths = [len(words) for text in texts for words in sentences(text)]
    long = sum(length > 30 for length in lengths)
    return f"{name}: {sum(lengths) / len(lengths):.1f} words a sentence, {long / len(lengths):.1%} above 30 words"


def docstrings() -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for _, tree in trees():
        yield from (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds))


def main() -> None:
    files = dict(trees())
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    counts = {path: len(text.splitlines()) for path, text in texts.items()}
    entries = [path for path in SOURCE.iterdir() if path.suffix == ".py" or (path.is_dir() and path.name[0] != "_")]
    nodes = [node for tree in files.values() for node in ast.walk(tree)]
    classes = [node.name for tree in files.values() for node in tree.body if isinstance(node, ast.ClassDef)]
    modules = [path.stem for path in files if path.stem not in ("__init__", "__main__", "base")]
    empty = sum(len(EMPTY_NAMES.findall(text)) for text in texts.values())
    comments = sum(line.lstrip().startswith("#") for text in texts.values() for line in text.splitlines())
    named = {*classes, *modules, *(node.name for node in nodes if isinstance(node, ast.FunctionDef))}
    print(f"entries at the package root: {len(entries)}")
    print(f"lines of Python in src: {sum(counts.values()):,}; comment lines {comments / sum(counts.values()):.1%}")
    print(f"modules under 60 lines: {sum(n < 60 for p, n in counts.items() if p.stem != '__init__')}")
    print(f"files of 295 to 300 lines: {sum(295 <= n <= 300 for n in counts.values())}")
    print(f"assignments to names that say nothing: {empty}")
    print(f"former names: {sorted(named & set(FORMER_NAMES.split()))}")
    print(f"class names that stand twice: {len(twice(classes))} {twice(classes)}")
    print(f"module names that stand twice: {len(twice(modules))} {twice(modules)}")
    print(prose_row("docstrings", docstrings()))


if __name__ == "__main__":
    main()
