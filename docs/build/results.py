"""Write the tables of docs/results from kept files of measurements.

    python docs/build/results.py                            # write all tables
    python docs/build/results.py measure PAGE KEY [KEY ...] --folder FOLDER -- python experiments/prefix.py --out runs

`docs/results/PAGE.json` holds the tables of a page by key: heads, rows, and the command, processor and date of the
measurement. `measure` runs a command in FOLDER, where its files are, and keeps the Markdown tables that it prints.
On a page, a table follows its mark, `<!-- table: PAGE/KEY -->`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from places import DOCS, ROOT

sys.path += [str(ROOT / "experiments"), str(ROOT / "benchmarks")]

RESULTS = DOCS / "results"
MARK = re.compile(r"<!-- table: (\S+) -->")
OTHER_WRITERS = {
    "architectures": "architecture_page",
    "circuits": "circuits.page",
    "comparison": "comparison_page",
}
"""Whole pages, and the module in benchmarks/ that writes each from its kept file."""
Kept = Mapping[str, Any]


def kept_tables(folder: Path) -> dict[str, str]:
    """Every kept table in Markdown, by `PAGE/KEY`."""
    files = sorted(
        path for path in folder.glob("*.json") if path.stem not in {*OTHER_WRITERS, "longer_text"}
    )
    tables = {
        f"{path.stem}/{key}": table(kept) for path in files for key, kept in _read(path).items()
    }
    return tables | _longer_text(folder / "longer_text.json")


def _longer_text(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    from longer_text import tables_of  # pyright: ignore[reportMissingImports]

    names = ("longer_text/losses", "longer_text/stretched")
    return dict(
        zip(names, (text.strip() for text in tables_of(_read(path)).split("\n\n")), strict=True)
    )


def table(kept: Kept) -> str:
    """A kept table in Markdown."""
    rule = {"l": ":---", "r": "---:"}
    lines = [kept["heads"], [rule[letter] for letter in kept["align"]], *kept["rows"]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def parsed(text: str) -> Iterator[tuple[int, list[str]]]:
    """The Markdown tables of a text: the number of the first line, from 1, and the lines."""
    block: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("|"):
            block.append(line.strip())
        elif block:
            yield number - len(block), block
            block = []


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def kept(lines: Sequence[str], **facts: Any) -> dict[str, Any]:
    """A table of Markdown as it is kept."""
    heads, rule, *rows = (_cells(line) for line in lines)
    align = "".join("r" if cell.endswith(":") else "l" for cell in rule)
    return {**facts, "heads": heads, "align": align, "rows": rows}


def written(text: str, tables: Mapping[str, str]) -> str:
    """A page with the tables that its marks name. Raises KeyError if one was not kept."""
    return (
        re.sub(
            rf"({MARK.pattern})\n\n(?:(?:\|.*\n)+\n?)?",
            lambda mark: f"{mark[1]}\n\n{tables[mark[2]]}\n\n",
            text,
        ).rstrip("\n")
        + "\n"
    )


def differences(page: Path, tables: Mapping[str, str]) -> Iterator[str]:
    """File and line of each table that no kept file has, or that differs from it."""
    text = page.read_text(encoding="utf-8")
    if page.stem in OTHER_WRITERS:
        yield from _first_difference(page, text, _whole(page))
        return
    lines = text.splitlines()
    for number, block in parsed(text):
        mark = MARK.fullmatch(lines[number - 3]) if number > 2 else None
        if mark is None:
            yield f"{page.name}:{number}: a table without the mark <!-- table: PAGE/KEY --> and an empty line above"
        elif mark[1] not in tables:
            yield f"{page.name}:{number}: no kept file has the table {mark[1]}"
        else:
            yield from _first_difference(page, "\n".join(block), tables[mark[1]], number)


def _first_difference(page: Path, text: str, expected: str, first: int = 1) -> Iterator[str]:
    has, wants = text.splitlines(), expected.splitlines()
    for number in range(max(len(has), len(wants))):
        pair = [lines[number] if number < len(lines) else "nothing" for lines in (has, wants)]
        if pair[0] != pair[1]:
            yield f"{page.name}:{first + number}: has {pair[0]}, its kept file {pair[1]}"
            return


def _whole(page: Path) -> str:
    measured = _read(page.with_suffix(".json"))
    parts = measured.values() if page.stem == "circuits" else (measured,)
    return import_module(OTHER_WRITERS[page.stem]).page(*parts)


def measure(page: str, keys: Sequence[str], command: Sequence[str], folder: Path) -> None:
    """Run a command and keep the tables that it prints, in their order."""
    words = [sys.executable if word == "python" else word for word in command]
    words = [str(ROOT / word) if (ROOT / word).is_file() else word for word in words]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    blocks = [lines for _, lines in parsed(done.stdout)]
    if len(blocks) != len(keys):
        raise SystemExit(
            f"expected {len(keys)} tables, {', '.join(keys)}, got {len(blocks)} in:\n{done.stdout}"
        )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    facts = {
        "kept_from": "script",
        "command": shlex.join(command),
        "processor": _processor(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "cpu_seconds": round(used.ru_utime + used.ru_stime),
    }
    keep(
        RESULTS / f"{page}.json",
        {key: kept(lines, **facts) for key, lines in zip(keys, blocks, strict=True)},
    )


def _processor() -> str:
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return names[0] if names else "unknown"


def keep(path: Path, tables: Mapping[str, Kept]) -> None:
    """Add tables to a kept file: a line a row, so that a change can be read."""
    merged = {**(_read(path) if path.exists() else {}), **tables}
    text = ",\n".join(f" {json.dumps(key)}: {_text(one)}" for key, one in merged.items())
    path.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def _text(one: Kept) -> str:
    def line(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    rows = ",\n".join(f"   {line(row)}" for row in one["rows"])
    facts = [f"  {line(name)}: {line(value)}" for name, value in one.items() if name != "rows"]
    return "{\n" + ",\n".join([*facts, f'  "rows": [\n{rows}\n  ]']) + "\n }"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(pages: Iterable[Path]) -> None:
    tables = kept_tables(RESULTS)
    for page in pages:
        if page.stem not in OTHER_WRITERS:
            page.write_text(written(page.read_text(encoding="utf-8"), tables), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables, after a measurement if one is asked for."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    words, command = (
        (words[: words.index("--")], words[words.index("--") + 1 :])
        if "--" in words
        else (words, [])
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action")
    action = actions.add_parser("measure")
    action.add_argument("page")
    action.add_argument("keys", nargs="+")
    action.add_argument("--folder", type=Path, default=Path())
    given = parser.parse_args(words)
    if given.action == "measure":
        measure(given.page, given.keys, command, given.folder)
    _write(sorted(RESULTS.glob("*.md")))


if __name__ == "__main__":
    main()
